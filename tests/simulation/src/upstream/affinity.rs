//! Gives blocks up.

use libcalico::ipam::{
    AffinityKey, AffinityOwner, AffinitySelect, AffinityState, Block, BlockAffinity,
};
use libcalico::net::{Cidr, IpVersion};
use libcalico::store::{Store, StoreError, ignore_missing};

use super::client::Client;
use super::{ATTEMPTS, UpstreamError};

/// The conditions under which a block is given up.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Conditions {
    /// Whether to refuse a block that is in use.
    pub(super) must_be_empty: bool,
    /// The sequence number that the block must have.
    pub(super) sequence: Option<u64>,
}

impl Conditions {
    /// The only condition is that the block is empty.
    pub(super) const EMPTY: Conditions = Conditions {
        must_be_empty: true,
        sequence: None,
    };
}

impl<S: Store> Client<'_, S> {
    /// Lists the ranges of the blocks that an owner claims.
    pub(super) async fn affine_blocks(
        &self,
        owner: &AffinityOwner,
        version: IpVersion,
    ) -> Result<Vec<Cidr>, StoreError> {
        let select = AffinitySelect {
            version: Some(version),
            ..AffinitySelect::of(owner.clone())
        };
        let affinities = self.store.list::<BlockAffinity>(&select).await?;
        Ok(affinities
            .into_iter()
            .filter(|entry| !entry.value.deleted && entry.key.owner == *owner)
            .map(|entry| entry.key.cidr)
            .collect())
    }

    /// Deletes the block and the affinity, or only removes the owner from a block in use
    /// (IPAM-126).
    pub(super) async fn release_affinity(
        &self,
        owner: &AffinityOwner,
        cidr: Cidr,
        conditions: Conditions,
    ) -> Result<(), UpstreamError> {
        if owner.name().is_empty() {
            return Err(UpstreamError::NoOwner);
        }
        let key = AffinityKey {
            owner: owner.clone(),
            cidr,
        };
        let affinity = self.get::<BlockAffinity>(&key).await?;
        // The affinity of a missing block stays.
        let block = self.get::<Block>(&cidr).await?;
        let stored = block.value.sequence_number;
        if conditions.sequence.is_some_and(|wanted| wanted != stored) {
            return Err(UpstreamError::BlockChanged);
        }
        // A block without owner passes.
        if block.value.owner().is_some_and(|found| found != *owner) {
            _ = self.delete(affinity).await;
            return Err(UpstreamError::ClaimConflict(cidr));
        }
        let is_empty = block.value.is_empty();
        if conditions.must_be_empty && !is_empty {
            return Err(UpstreamError::NotEmpty(cidr));
        }
        let state = AffinityState::PendingDeletion;
        let affinity = self.with_state(&affinity, state).await?;
        if is_empty {
            ignore_missing(self.delete(block).await)?;
        } else {
            let mut disowned = block.value.clone();
            disowned.clear_affinity();
            self.update_block(&block, disowned).await?;
        }
        Ok(ignore_missing(self.delete(affinity).await)?)
    }

    /// Gives up all blocks of an owner that are empty. Returns the error of the last block that
    /// failed. The affinity of a missing block stays without an error.
    pub(super) async fn release_owner(&self, owner: &AffinityOwner) -> Result<(), UpstreamError> {
        let mut outcome = Ok(());
        for version in [IpVersion::V4, IpVersion::V6] {
            let blocks = match self.affine_blocks(owner, version).await {
                Ok(blocks) => blocks,
                Err(error) => {
                    outcome = Err(error.into());
                    continue;
                }
            };
            for cidr in blocks {
                match self.release_empty(owner, cidr).await {
                    Ok(()) | Err(UpstreamError::ClaimConflict(_)) => {}
                    Err(error) if error.is_missing() => {}
                    Err(error) => outcome = Err(error),
                }
            }
        }
        outcome
    }

    /// Gives up an empty block. Repeats lost races.
    async fn release_empty(&self, owner: &AffinityOwner, cidr: Cidr) -> Result<(), UpstreamError> {
        let mut outcome = Ok(());
        for _ in 0..ATTEMPTS {
            outcome = self.release_affinity(owner, cidr, Conditions::EMPTY).await;
            if !matches!(&outcome, Err(error) if error.is_conflict()) {
                break;
            }
        }
        outcome
    }
}

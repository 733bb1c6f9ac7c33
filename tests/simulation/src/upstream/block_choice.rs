//! Finds a block with a free address, or claims one.

use libcalico::ipam::{AffinityKey, AffinityOwner, Block, BlockAffinity, BlockWalk, RECLAIM_AFTER};
use libcalico::net::Cidr;
use libcalico::store::{Entry, Store};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::affinity::Conditions;
use super::client::Client;
use super::pools::Inputs;
use super::{ATTEMPTS, UpstreamError};

/// A block of the node.
#[derive(Debug)]
pub(super) struct OwnBlock {
    pub(super) block: Entry<Block>,
    /// Whether the block counts as a new one, even if the node already owned the block.
    pub(super) is_claimed: bool,
}

impl<S: Store> Client<'_, S> {
    /// Returns the next of the node's blocks with a free address, or claims a block.
    pub(super) async fn find_or_claim(
        &self,
        inputs: &mut Inputs,
        owner: &AffinityOwner,
        may_claim: bool,
    ) -> Result<OwnBlock, UpstreamError> {
        while let Some(cidr) = inputs.affine.pop_front() {
            if inputs.reservations.covers(&cidr) {
                continue;
            }
            if let Some(block) = self.own_block(inputs, owner, cidr).await {
                return Ok(OwnBlock {
                    block,
                    is_claimed: false,
                });
            }
        }
        if !may_claim {
            return Err(UpstreamError::BlockLimit);
        }
        if !inputs.config.auto_allocate_blocks {
            return Err(UpstreamError::AutoAllocateOff);
        }
        for _ in 0..ATTEMPTS {
            let cidr = self.usable_block(inputs, owner).await?;
            if let Some(block) = self.claim_range(inputs, owner, cidr).await? {
                return Ok(OwnBlock {
                    block,
                    is_claimed: true,
                });
            }
        }
        Err(UpstreamError::TooManyAttempts)
    }

    /// Returns a block that the node's affinity names, if the block has a free address.
    async fn own_block(
        &self,
        inputs: &Inputs,
        owner: &AffinityOwner,
        cidr: Cidr,
    ) -> Option<Entry<Block>> {
        let key = key_of(owner, cidr);
        for _ in 0..ATTEMPTS {
            let affinity = self.get::<BlockAffinity>(&key).await.ok()?;
            match self.block_of_affinity(affinity).await {
                Ok(block) => return self.has_free(inputs, &block).then_some(block),
                Err(error) if error.is_conflict() => {}
                Err(_) => return None,
            }
        }
        None
    }

    /// Claims the block of a range. Returns `None` if another owner was faster.
    async fn claim_range(
        &self,
        inputs: &Inputs,
        owner: &AffinityOwner,
        cidr: Cidr,
    ) -> Result<Option<Entry<Block>>, UpstreamError> {
        let key = key_of(owner, cidr);
        for _ in 0..ATTEMPTS {
            let claimed = match self.pending_affinity(&key).await {
                Ok(affinity) => self.block_of_affinity(affinity).await,
                Err(error) => Err(error.into()),
            };
            match claimed {
                Ok(block) if self.has_free(inputs, &block) => return Ok(Some(block)),
                Ok(block) => return Err(UpstreamError::Full(block.key)),
                Err(error) if error.is_conflict() => {}
                Err(UpstreamError::ClaimConflict(_) | UpstreamError::StaleAffinity(_)) => {
                    return Ok(None);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    /// Returns the first range that has no block, or whose block is the node's and has a free
    /// address. Without such a range, takes an empty block from another owner (IPAM-116).
    async fn usable_block(
        &self,
        inputs: &Inputs,
        owner: &AffinityOwner,
    ) -> Result<Cidr, UpstreamError> {
        // The list has the blocks of both families, and those that are marked for deletion.
        let blocks = self.store.list::<Block>(&None).await?;
        let now = (self.now)();
        let mut reclaimable = Vec::new();
        for pool in &inputs.pools {
            for cidr in BlockWalk::new(pool.cidr, pool.block_prefix, owner.name(), now) {
                if inputs.reservations.covers(&cidr) {
                    continue;
                }
                let Some(block) = blocks.iter().find(|entry| entry.key == cidr) else {
                    return Ok(cidr);
                };
                if !self.has_free(inputs, block) {
                    continue;
                }
                if block.value.owner().as_ref() == Some(owner) {
                    return Ok(cidr);
                }
                let collected = self.collected(block, &inputs.config);
                if collected.is_ok_and(|collected| collected.is_empty()) {
                    reclaimable.push(block);
                }
            }
        }
        for block in reclaimable {
            if is_recent(&block.value, (self.now)()) {
                continue;
            }
            let conditions = Conditions {
                sequence: Some(block.value.sequence_number),
                ..Conditions::EMPTY
            };
            // A block without owner is never taken.
            let Some(former) = block.value.owner() else {
                continue;
            };
            let released = self.release_affinity(&former, block.key, conditions).await;
            if released.is_ok() {
                return Ok(block.key);
            }
        }
        Err(UpstreamError::NoFreeBlocks)
    }

    fn has_free(&self, inputs: &Inputs, block: &Entry<Block>) -> bool {
        let collected = self.collected(block, &inputs.config);
        collected.is_ok_and(|collected| collected.free(&inputs.reservations) > 0)
    }
}

fn key_of(owner: &AffinityOwner, cidr: Cidr) -> AffinityKey {
    AffinityKey {
        owner: owner.clone(),
        cidr,
    }
}

/// Returns true if the block was claimed in the last minute, or in the future.
fn is_recent(block: &Block, now: OffsetDateTime) -> bool {
    let claimed = block.affinity_claim_time.as_deref();
    claimed
        .and_then(|text| OffsetDateTime::parse(text, &Rfc3339).ok())
        .is_some_and(|claimed| now - claimed < RECLAIM_AFTER)
}

//! [`AffinityRepair`]: repairs or releases the affinity of an owner to a block during an
//! allocation.

use libcalico::ipam::{AffinityOwner, Block, BlockAffinity};
use libcalico::net::Cidr;
use libcalico::store::{Entry, Store, StoreError};

use super::snapshot::Snapshot;
use crate::affinity::repair::{reconfirm, release_affinity};
use crate::block_writes::PriorAffinity;

/// A repair of an affinity. It fails if an object that it writes has changed since it was read.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum AffinityRepair {
    /// Deletes the affinity, because the block is not the owner's.
    Delete { affinity: Entry<BlockAffinity> },
    /// Confirms the affinity, because the block is the owner's. A rewrite of the block makes a
    /// concurrent release of it fail (IPAM-123).
    Confirm {
        affinity: Entry<BlockAffinity>,
        block: Entry<Block>,
    },
    /// Deletes the empty block and the affinity.
    Release {
        affinity: Entry<BlockAffinity>,
        block: Entry<Block>,
    },
}

impl AffinityRepair {
    pub(crate) fn cidr(&self) -> Cidr {
        match self {
            AffinityRepair::Delete { affinity }
            | AffinityRepair::Confirm { affinity, .. }
            | AffinityRepair::Release { affinity, .. } => affinity.key.cidr,
        }
    }

    /// Returns true if the repair releases the block of another owner, so that `owner` can claim
    /// it.
    pub(crate) fn is_reclaim(&self, owner: &AffinityOwner) -> bool {
        matches!(self, AffinityRepair::Release { affinity, .. } if affinity.key.owner != *owner)
    }

    /// Returns the reason of a repair for `owner`, for the log.
    pub(crate) fn reason(&self, owner: &AffinityOwner) -> &'static str {
        match self {
            AffinityRepair::Delete { .. } => "no block of the owner",
            AffinityRepair::Confirm { .. } => "unconfirmed",
            AffinityRepair::Release { .. } if self.is_reclaim(owner) => "reclaimed",
            AffinityRepair::Release { .. } => "stale",
        }
    }

    /// Records the writes in `snapshot`. After an error `snapshot` is out of date.
    pub(crate) async fn apply<S: Store>(
        self,
        store: &S,
        snapshot: &mut Snapshot,
    ) -> Result<(), StoreError> {
        match self {
            AffinityRepair::Delete { affinity } => {
                store
                    .delete::<BlockAffinity>(&affinity.key, Some(&affinity.revision))
                    .await?;
                snapshot.remove_affinity(&affinity.key);
            }
            AffinityRepair::Confirm { affinity, block } => {
                let owner = affinity.key.owner.clone();
                let (affinity, block) =
                    reconfirm(store, &owner, &PriorAffinity::Existing(affinity), block).await?;
                snapshot.record_block(block.value, block.revision);
                snapshot.record_affinity(affinity);
            }
            AffinityRepair::Release { affinity, block } => {
                release_affinity(store, &affinity, &block).await?;
                snapshot.remove_block(block.key);
                snapshot.remove_affinity(&affinity.key);
            }
        }
        Ok(())
    }
}

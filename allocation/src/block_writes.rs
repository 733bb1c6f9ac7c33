//! The writes of a block: its creation after its affinity, its update or deletion after a release,
//! and the deletion that another program began.

use libcalico::ipam::{AffinityKey, AffinityOwner, AffinityState, Block, BlockAffinity};
use libcalico::net::Cidr;
use libcalico::store::{Entry, Revision, Store, StoreError, Write};

use crate::reads::find;
use crate::write_gate::{WriteGate, write_admitted};

/// The affinity from which a claim starts.
#[derive(Debug, Clone, PartialEq)]
pub enum PriorAffinity {
    /// No affinity exists.
    Absent,
    /// Writing an affinity of an earlier attempt as pending again makes a concurrent release of the
    /// block fail.
    Existing(Entry<BlockAffinity>),
}

impl PriorAffinity {
    pub(crate) fn pending_write(
        &self,
        owner: &AffinityOwner,
        cidr: Cidr,
    ) -> Result<Write, StoreError> {
        let key = AffinityKey {
            owner: owner.clone(),
            cidr,
        };
        match self {
            PriorAffinity::Absent => Write::create::<BlockAffinity>(&key, &self.value()),
            PriorAffinity::Existing(read) => {
                Write::update::<BlockAffinity>(&key, &self.value(), &read.revision)
            }
        }
    }

    pub(crate) fn pending_entry(
        &self,
        owner: &AffinityOwner,
        cidr: Cidr,
        revision: Revision,
    ) -> Entry<BlockAffinity> {
        Entry {
            key: AffinityKey {
                owner: owner.clone(),
                cidr,
            },
            value: self.value(),
            revision,
        }
    }

    /// Returns true if `now`, the affinity as read later, is the affinity from which the claim
    /// starts.
    pub(crate) fn is_unchanged(&self, now: Option<&Entry<BlockAffinity>>) -> bool {
        match self {
            PriorAffinity::Absent => now.is_none(),
            PriorAffinity::Existing(read) => now.is_some_and(|now| now.revision == read.revision),
        }
    }

    fn value(&self) -> BlockAffinity {
        let before = match self {
            PriorAffinity::Absent => BlockAffinity::default(),
            PriorAffinity::Existing(read) => read.value.clone(),
        };
        BlockAffinity {
            state: AffinityState::Pending,
            ..before
        }
    }
}

/// Returns the writes that create a block without addresses, after its affinity if `prior` is
/// given.
pub fn empty_block_writes(
    mut empty: Block,
    owner: &AffinityOwner,
    prior: Option<&PriorAffinity>,
) -> Result<Vec<Write>, StoreError> {
    empty.count_write();
    let pending = prior
        .map(|prior| prior.pending_write(owner, empty.cidr))
        .transpose()?;
    Ok(pending
        .into_iter()
        .chain([Write::create::<Block>(&empty.cidr, &empty)?])
        .collect())
}

/// Returns true if the parts of two revisions that a write compares are equal. Other parts may
/// depend on the request that read the object.
pub(crate) fn has_same_version(one: Option<&Revision>, other: Option<&Revision>) -> bool {
    one.map(Revision::resource_version) == other.map(Revision::resource_version)
}

pub(crate) fn is_deleted_by_release(block: &Block) -> bool {
    block.is_empty() && block.owner().is_none()
}

pub(crate) fn write_released(block: &Entry<Block>) -> Result<Write, StoreError> {
    if is_deleted_by_release(&block.value) {
        return Ok(Write::delete::<Block>(&block.key, Some(&block.revision)));
    }
    let mut counted = block.value.clone();
    counted.count_write();
    Write::update::<Block>(&block.key, &counted, &block.revision)
}

/// Completes the deletion of an empty block that is marked for deletion, at the revision read: its
/// deleter may have been killed (DS-72). Returns true if the block is gone.
///
/// # Errors
/// Returns the error of a read or of a write. A lost race is no error.
pub async fn complete_deletion<S: Store, G: WriteGate>(
    store: &S,
    gate: &G,
    cidr: &Cidr,
) -> Result<bool, StoreError> {
    // On an API server, the read itself completes the deletion.
    let Some(block) = find::<Block>(store, cidr).await? else {
        return Ok(true);
    };
    if !block.value.awaits_deletion() {
        return Ok(false);
    }
    match write_admitted(
        store,
        gate,
        Write::delete::<Block>(cidr, Some(&block.revision)),
    )
    .await
    {
        Some(Ok(_) | Err(StoreError::NotFound { .. })) => Ok(true),
        None => Ok(false),
        Some(Err(error)) if error.is_race() => Ok(false),
        Some(Err(error)) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use libcalico::ipam::{AffinityOwner, HandleId};
    use time::OffsetDateTime;

    use super::*;
    use crate::testing::{Cluster, Fault, cidr, take_one};
    use crate::write_gate::OpenGate;

    fn marked() -> Block {
        let owner = AffinityOwner::Host("node2".into());
        let mut block =
            Block::new(cidr("10.0.0.0/26"), &owner, OffsetDateTime::UNIX_EPOCH).unwrap();
        block.deleted = true;
        block
    }

    #[tokio::test]
    async fn only_an_empty_marked_block_is_deleted() {
        let (cluster, range) = (Cluster::new(), cidr("10.0.0.0/26"));
        let mut used = marked();
        take_one(&mut used, "node2", &HandleId::new("net.a"));
        for (block, is_gone) in [
            (
                Block {
                    deleted: false,
                    ..marked()
                },
                false,
            ),
            (used, false),
            (marked(), true),
        ] {
            cluster.store.put(&range, &block);
            assert_eq!(
                complete_deletion(&cluster.store, &OpenGate, &range)
                    .await
                    .unwrap(),
                is_gone
            );
            assert_eq!(cluster.block("10.0.0.0/26").is_none(), is_gone);
        }
        assert!(
            complete_deletion(&cluster.store, &OpenGate, &range)
                .await
                .unwrap(),
            "a missing block"
        );
    }

    #[tokio::test]
    async fn block_that_is_written_after_the_read_is_not_deleted() {
        let (cluster, range) = (Cluster::new(), cidr("10.0.0.0/26"));
        cluster.store.put(&range, &marked());
        let path = <Block as libcalico::store::Kind>::path(&range);
        cluster.store.before_each(move |_, writes, pairs| {
            if writes.is_some() {
                pairs.touch(&path);
            }
            Fault::None
        });
        assert!(
            !complete_deletion(&cluster.store, &OpenGate, &range)
                .await
                .unwrap()
        );
        assert!(cluster.block("10.0.0.0/26").is_some());
    }
}

//! The writes of a block: its creation after its affinity, and its update or deletion after a release.

use libcalico::ipam::{AffinityKey, AffinityOwner, AffinityState, Block, BlockAffinity};
use libcalico::net::Cidr;
use libcalico::store::{Entry, Revision, StoreError, Write};

/// The affinity from which a claim starts.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum PriorAffinity {
    /// No affinity exists.
    Absent,
    /// Writing an affinity of an earlier attempt as pending again makes a concurrent release of the block fail.
    Existing(Entry<BlockAffinity>),
}

impl PriorAffinity {
    pub(crate) fn pending_write(&self, owner: &AffinityOwner, cidr: Cidr) -> Result<Write, StoreError> {
        let key = AffinityKey { owner: owner.clone(), cidr };
        match self {
            PriorAffinity::Absent => Write::create::<BlockAffinity>(&key, &self.value()),
            PriorAffinity::Existing(read) => Write::update::<BlockAffinity>(&key, &self.value(), &read.revision),
        }
    }

    pub(crate) fn pending_entry(&self, owner: &AffinityOwner, cidr: Cidr, revision: Revision) -> Entry<BlockAffinity> {
        Entry { key: AffinityKey { owner: owner.clone(), cidr }, value: self.value(), revision }
    }

    /// Returns true if `now`, the affinity as read later, is the affinity from which the claim starts.
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
        BlockAffinity { state: AffinityState::Pending, ..before }
    }
}

/// Returns the writes that create a block without addresses, after its affinity if `prior` is given.
pub(crate) fn empty_block_writes(
    mut empty: Block,
    owner: &AffinityOwner,
    prior: Option<&PriorAffinity>,
) -> Result<Vec<Write>, StoreError> {
    empty.count_write();
    let pending = prior.map(|prior| prior.pending_write(owner, empty.cidr)).transpose()?;
    Ok(pending.into_iter().chain([Write::create::<Block>(&empty.cidr, &empty)?]).collect())
}

/// Returns true if the parts of two revisions that a write compares are equal. Other parts may depend on the request
/// that read the object.
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

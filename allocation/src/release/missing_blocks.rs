//! Missing blocks that a handle counts in.
//!
//! A killed ADD writes the handle and the pending affinity before its block, whose creation may
//! still be in progress at the server. If it took effect after the handle is deleted, no DEL would
//! find the address again. The block is therefore created empty first, and the killed ADD's
//! creation then fails.

use libcalico::api::{IpPool, ObjectSelect};
use libcalico::ipam::{
    AffinityKey, AffinityOwner, AffinityState, Block, BlockAffinity, any_pool_of,
};
use libcalico::net::{Cidr, IpVersion};
use libcalico::store::{Entry, ReadBatch, Store, StoreError, Write};
use time::OffsetDateTime;

use crate::block_writes::{PriorAffinity, empty_block_writes};

/// Returns the owner's pending affinities to those of the missing blocks that may still be created.
/// Without a pending affinity, no creation can be in progress.
///
/// A block outside every pool is not created either, because no allocation would ever read and
/// release it. Nor is a block that overlaps with another one, because both would assign the same
/// addresses.
pub(super) async fn read_affinities<S: Store>(
    store: &S,
    owner: Option<&AffinityOwner>,
    missing: &[Cidr],
) -> Result<Vec<Entry<BlockAffinity>>, StoreError> {
    let Some(owner) = owner.filter(|_| !missing.is_empty()) else {
        return Ok(Vec::new());
    };
    let mut batch = ReadBatch::new();
    let key = |cidr: &Cidr| AffinityKey {
        owner: owner.clone(),
        cidr: *cidr,
    };
    let affinities: Vec<_> = missing
        .iter()
        .map(|cidr| batch.get::<BlockAffinity>(&key(cidr)))
        .collect();
    let pools = batch.list::<IpPool>(&ObjectSelect::default());
    let has_family = |version: &IpVersion| missing.iter().any(|cidr| cidr.version() == *version);
    let families = [IpVersion::V4, IpVersion::V6]
        .into_iter()
        .filter(has_family);
    let ranges: Vec<_> = families
        .map(|version| batch.list_keys::<Block>(&Some(version)))
        .collect();
    let answers = store.read(&batch).await?;
    let pools: Vec<IpPool> = answers
        .list(&pools)
        .into_iter()
        .map(|entry| entry.value)
        .collect();
    let ranges: Vec<Cidr> = ranges
        .iter()
        .flat_map(|ticket| answers.listed_keys(ticket))
        .collect();
    let mut affinities = answers.readable(&affinities, |key, reason| {
        tracing::warn!(
            affinity = %key, %reason,
            "not creating a missing block, whose affinity cannot be read"
        );
    })?;
    affinities.retain(|affinity| {
        let cidr = &affinity.key.cidr;
        affinity.value.state == AffinityState::Pending
            && !affinity.value.deleted
            && any_pool_of(&pools, cidr.network()).is_some()
            && !ranges.iter().any(|range| range.conflicts_with(cidr))
    });
    Ok(affinities)
}

/// Returns the writes that create the block without addresses. The affinity is rewritten, so that a
/// concurrent release of it fails (IPAM-123).
///
/// The block must not be deleted at once, because the creation in progress would then succeed.
pub(super) fn writes(
    affinity: &Entry<BlockAffinity>,
    now: OffsetDateTime,
) -> Result<Vec<Write>, StoreError> {
    let AffinityKey { owner, cidr } = &affinity.key;
    match Block::new(*cidr, owner, now) {
        Ok(empty) => empty_block_writes(
            empty,
            owner,
            Some(&PriorAffinity::Existing(affinity.clone())),
        ),
        Err(error) => {
            tracing::warn!(block = %cidr, %error, "not creating a missing block that is invalid");
            Ok(Vec::new())
        }
    }
}

#[cfg(test)]
mod tests;

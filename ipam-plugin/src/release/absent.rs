//! Blocks that a handle counts in, and that are not there.
//!
//! An ADD that was killed may have left the creation of its block with the server, behind the handle and the pending claim. When
//! that takes effect after the handle is gone, nobody finds the address again. So the block is created empty first: one
//! creation of two loses.

use libcalico::api::{IpPool, ObjectSelect};
use libcalico::ipam::{AffinityKey, AffinityState, Block, BlockAffinity, Owner, any_pool_of};
use libcalico::net::{Cidr, IpVersion};
use libcalico::store::{Entry, ReadBatch, Store, StoreError, Write};
use time::OffsetDateTime;

use crate::settle::create_first;
use crate::take::ClaimFrom;

/// The owner's pending claims to those of the absent blocks that may still be created. Without a claim, or with one of
/// another state, nobody is about to: a block would be junk.
///
/// So would one outside of every pool, which no allocation ever looks at, for it to be given up; and two blocks with the
/// same addresses would give them away twice.
pub(super) async fn claims<S: Store>(
    store: &S,
    owner: Option<&Owner>,
    absent: &[Cidr],
) -> Result<Vec<Entry<BlockAffinity>>, StoreError> {
    let Some(owner) = owner.filter(|_| !absent.is_empty()) else { return Ok(Vec::new()) };
    let mut batch = ReadBatch::new();
    let key = |cidr: &Cidr| AffinityKey { owner: owner.clone(), cidr: *cidr };
    let claims: Vec<_> = absent.iter().map(|cidr| batch.get::<BlockAffinity>(&key(cidr))).collect();
    let pools = batch.list::<IpPool>(&ObjectSelect::default());
    let has = |version: &IpVersion| absent.iter().any(|cidr| cidr.version() == *version);
    let families = [IpVersion::V4, IpVersion::V6].into_iter().filter(has);
    let ranges: Vec<_> = families.map(|version| batch.list_keys::<Block>(&Some(version))).collect();
    let answers = store.read(&batch).await?;
    let pools: Vec<IpPool> = answers.list(&pools).into_iter().map(|entry| entry.value).collect();
    let ranges: Vec<Cidr> = ranges.iter().flat_map(|ticket| answers.listed_keys(ticket)).collect();
    let mut claims = answers.readable(&claims, |key, reason| {
        tracing::warn!(affinity = %key, %reason, "leaving a block alone whose claim cannot be read");
    })?;
    claims.retain(|claim| {
        let cidr = &claim.key.cidr;
        claim.value.state == AffinityState::Pending
            && !claim.value.deleted
            && any_pool_of(&pools, cidr.network()).is_some()
            && !ranges.iter().any(|range| range.clashes_with(cidr))
    });
    Ok(claims)
}

/// Creates the block without addresses. The claim is written as it is, so that whoever is giving it up finds out, and stays
/// pending: the next allocation of its owner confirms it (IPAM-123).
///
/// Nothing may delete the block at once, whatever its pool selects: what is under way would be created after all.
pub(super) fn writes(claim: &Entry<BlockAffinity>, now: OffsetDateTime) -> Result<Vec<Write>, StoreError> {
    let AffinityKey { owner, cidr } = &claim.key;
    match Block::new(*cidr, owner, now) {
        Ok(empty) => create_first(empty, owner, Some(&ClaimFrom::Affinity(claim.clone()))),
        Err(error) => {
            tracing::warn!(block = %cidr, %error, "nobody can create this block");
            Ok(Vec::new())
        }
    }
}

#[cfg(test)]
mod tests;

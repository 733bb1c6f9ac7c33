//! [`read_blocks`]: reads several blocks in one request. [`blocks_of`]: reads the blocks of addresses. [`pooled`] and
//! [`names_with`]: find the blocks of addresses. [`attributes_of`]: returns the attributes of allocations.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use libcalico::api::{IpPool, ObjectSelect};
use libcalico::ipam::{Attribute, Block, any_pool_of};
use libcalico::net::{Cidr, IpVersion};
use libcalico::store::{Entry, ReadBatch, Store, StoreError};

/// Reads those of the blocks that exist, in order. Sends no request if `wanted` is empty. An unreadable block is an
/// error.
pub(crate) async fn read_blocks<S: Store>(store: &S, wanted: BTreeSet<Cidr>) -> Result<Vec<Entry<Block>>, StoreError> {
    if wanted.is_empty() {
        return Ok(Vec::new());
    }
    let mut batch = ReadBatch::new();
    let tickets: Vec<_> = wanted.iter().map(|cidr| batch.get::<Block>(cidr)).collect();
    let answers = store.read(&batch).await?;
    let mut blocks = Vec::new();
    for ticket in &tickets {
        blocks.extend(answers.get(ticket)?);
    }
    Ok(blocks)
}

/// Returns the blocks of `addresses` by the pools' block sizes. If such a block is missing, its address may be in a
/// block of another size ([`names_with`]).
pub(crate) fn pooled(pools: &[IpPool], addresses: &[IpAddr]) -> BTreeSet<Cidr> {
    addresses.iter().filter_map(|ip| any_pool_of(pools, *ip)?.block_of(*ip)).collect()
}

/// Returns the block of each of `addresses`, by the names of all blocks. Sends no request if `addresses` is empty. The
/// block sizes of pools do not suffice for an address outside all pools. Neither do they for a pool that was recreated
/// with another block size while the block was in use.
pub(crate) async fn names_with<S: Store>(
    store: &S,
    addresses: &BTreeSet<IpAddr>,
) -> Result<BTreeMap<IpAddr, Cidr>, StoreError> {
    let mut found = BTreeMap::new();
    for version in addresses.iter().map(|ip| IpVersion::of(*ip)).collect::<BTreeSet<_>>() {
        let mut batch = ReadBatch::new();
        let keys = batch.list_keys::<Block>(&Some(version));
        let answers = store.read(&batch).await?;
        for cidr in answers.listed_keys(&keys) {
            found.extend(addresses.iter().filter(|ip| cidr.contains(**ip)).map(|ip| (*ip, cidr)));
        }
    }
    Ok(found)
}

/// Returns those blocks of `addresses` and of `more` that exist. An address outside these blocks is looked up by the
/// names of all blocks. An unreadable block is an error.
pub(crate) async fn blocks_of<S: Store>(
    store: &S,
    pools: &[IpPool],
    addresses: &[IpAddr],
    more: BTreeSet<Cidr>,
) -> Result<Vec<Entry<Block>>, StoreError> {
    let mut wanted = pooled(pools, addresses);
    wanted.extend(more);
    let mut blocks = read_blocks(store, wanted).await?;
    let is_there = |ip: &IpAddr| blocks.iter().any(|block| block.key.contains(*ip));
    let elsewhere: BTreeSet<IpAddr> = addresses.iter().copied().filter(|ip| !is_there(ip)).collect();
    let named = names_with(store, &elsewhere).await?;
    blocks.extend(read_blocks(store, named.into_values().collect()).await?);
    Ok(blocks)
}

/// Returns the attributes of the allocation of each of `addresses`. An address that is free or cooling down has none.
pub async fn attributes_of<S: Store>(store: &S, addresses: &[IpAddr]) -> Result<Vec<Attribute>, StoreError> {
    let pools = store.list::<IpPool>(&ObjectSelect::default()).await?;
    let pools: Vec<IpPool> = pools.into_iter().map(|entry| entry.value).collect();
    let blocks = blocks_of(store, &pools, addresses, BTreeSet::new()).await?;
    let allocations = addresses.iter().filter_map(|ip| {
        let held = blocks.iter().find_map(|block| block.value.allocation(*ip))?;
        held.attribute.filter(|_| !held.is_cooling()).cloned()
    });
    Ok(allocations.collect())
}

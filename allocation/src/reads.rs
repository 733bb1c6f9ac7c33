//! Reads that several operations share.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use libcalico::api::{IpPool, ObjectSelect};
use libcalico::ipam::{Attribute, Block, any_pool_of};
use libcalico::net::{Cidr, IpVersion};
use libcalico::store::{Entry, Kind, ReadBatch, Store, StoreError};

/// The answer to the read of one object; `Ok(None)` if the object is missing.
pub type FoundEntry<K> = Result<Option<Entry<K>>, StoreError>;

/// Returns `None` if the object is missing.
pub async fn find<K: Kind>(store: &impl Store, key: &K::Key) -> FoundEntry<K> {
    match store.get::<K>(key).await {
        Ok(found) => Ok(Some(found)),
        Err(StoreError::NotFound { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Reads objects of one kind in one batch. Returns the answers in the order of `keys`.
pub async fn find_each<K: Kind>(
    store: &impl Store,
    keys: impl IntoIterator<Item = &K::Key>,
) -> Result<Vec<FoundEntry<K>>, StoreError> {
    let mut batch = ReadBatch::new();
    let tickets: Vec<_> = keys.into_iter().map(|key| batch.get::<K>(key)).collect();
    let answers = store.read(&batch).await?;
    Ok(tickets.iter().map(|ticket| answers.get(ticket)).collect())
}

pub(crate) async fn all_pools(store: &impl Store) -> Result<Vec<IpPool>, StoreError> {
    Ok(store
        .list::<IpPool>(&ObjectSelect::default())
        .await?
        .into_iter()
        .map(|entry| entry.value)
        .collect())
}

/// Reads those of the blocks `wanted` that exist, in the order of their ranges. An unreadable block
/// is an error.
pub async fn read_blocks<S: Store>(
    store: &S,
    wanted: BTreeSet<Cidr>,
) -> Result<Vec<Entry<Block>>, StoreError> {
    if wanted.is_empty() {
        return Ok(Vec::new());
    }
    find_each::<Block>(store, &wanted)
        .await?
        .into_iter()
        .filter_map(Result::transpose)
        .collect()
}

/// Returns the ranges of the blocks that contain `addresses`, calculated from the pools' block
/// sizes. An address may be in a block of another size ([`blocks_by_name`]).
pub(crate) fn blocks_by_pool(pools: &[IpPool], addresses: &[IpAddr]) -> BTreeSet<Cidr> {
    addresses
        .iter()
        .filter_map(|ip| any_pool_of(pools, *ip)?.block_of(*ip))
        .collect()
}

/// Returns the block of each address that has one, from the names of all blocks. The block size of
/// a pool does not locate the block of an address outside all pools, or of a former block size.
pub(crate) async fn blocks_by_name<S: Store>(
    store: &S,
    addresses: &BTreeSet<IpAddr>,
) -> Result<BTreeMap<IpAddr, Cidr>, StoreError> {
    let mut found = BTreeMap::new();
    for version in addresses
        .iter()
        .map(|ip| IpVersion::of(*ip))
        .collect::<BTreeSet<_>>()
    {
        let mut batch = ReadBatch::new();
        let keys = batch.list_keys::<Block>(&Some(version));
        let answers = store.read(&batch).await?;
        for cidr in answers.listed_keys(&keys) {
            found.extend(
                addresses
                    .iter()
                    .filter(|ip| cidr.contains(**ip))
                    .map(|ip| (*ip, cidr)),
            );
        }
    }
    Ok(found)
}

/// Returns the blocks that contain `addresses`, and those of the blocks `more` that exist. An
/// unreadable block is an error.
pub async fn blocks_of<S: Store>(
    store: &S,
    pools: &[IpPool],
    addresses: &[IpAddr],
    more: BTreeSet<Cidr>,
) -> Result<Vec<Entry<Block>>, StoreError> {
    let mut wanted = blocks_by_pool(pools, addresses);
    wanted.extend(more);
    let mut blocks = read_blocks(store, wanted).await?;
    let is_located = |ip: &IpAddr| blocks.iter().any(|block| block.key.contains(*ip));
    let unlocated: BTreeSet<IpAddr> = addresses
        .iter()
        .copied()
        .filter(|ip| !is_located(ip))
        .collect();
    let named = blocks_by_name(store, &unlocated).await?;
    blocks.extend(read_blocks(store, named.into_values().collect()).await?);
    Ok(blocks)
}

/// Returns the attributes of the allocations of `addresses`, without those that are free or cooling
/// down.
pub async fn attributes_of<S: Store>(
    store: &S,
    addresses: &[IpAddr],
) -> Result<Vec<Attribute>, StoreError> {
    let blocks = blocks_of(store, &all_pools(store).await?, addresses, BTreeSet::new()).await?;
    let allocations = addresses.iter().filter_map(|ip| {
        let held = blocks
            .iter()
            .find_map(|block| block.value.allocation(*ip))?;
        held.attribute.filter(|_| !held.is_cooling()).cloned()
    });
    Ok(allocations.collect())
}

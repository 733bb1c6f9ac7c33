//! [`read_blocks`]: several blocks in one request. [`attributes_of`]: the attributes of allocations in them.

use std::collections::BTreeSet;
use std::net::IpAddr;

use libcalico::api::{IpPool, ObjectSelect};
use libcalico::ipam::{Attribute, Block, any_pool_of};
use libcalico::net::Cidr;
use libcalico::store::{Entry, ReadBatch, Store, StoreError};

/// Those of the blocks that are there, in order; no request when none is wanted. One that cannot be read is an error.
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

/// Returns the attributes of the allocation of each of `addresses`. An address that is free or cools down after its release has none.
pub async fn attributes_of<S: Store>(store: &S, addresses: &[IpAddr]) -> Result<Vec<Attribute>, StoreError> {
    let pools = store.list::<IpPool>(&ObjectSelect::default()).await?;
    let pools: Vec<IpPool> = pools.into_iter().map(|entry| entry.value).collect();
    let wanted: BTreeSet<Cidr> = addresses.iter().filter_map(|ip| any_pool_of(&pools, *ip)?.block_of(*ip)).collect();
    let blocks = read_blocks(store, wanted).await?;
    let allocations = addresses.iter().filter_map(|ip| {
        let held = blocks.iter().find_map(|block| block.value.allocation(*ip))?;
        held.attribute.filter(|_| !held.is_cooling()).cloned()
    });
    Ok(allocations.collect())
}

//! What is noted with addresses.

use std::collections::BTreeSet;
use std::net::IpAddr;

use libcalico::api::{IpPool, ObjectSelect};
use libcalico::ipam::{Attribute, any_pool_of};
use libcalico::net::Cidr;
use libcalico::store::{Store, StoreError};

use crate::read_blocks::read_blocks;

/// Returns what is noted with each of `addresses` that is allocated. A released address that still cools down is not.
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

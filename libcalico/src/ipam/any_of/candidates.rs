//! [`candidates`]: the addresses of a fixed list that the pools permit.

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::parse::{ANY_OF, MAX_BLOCKS};
use super::unavailable::{Obstacle, Unavailable};
use crate::api::IpPool;
use crate::failure::Failure;
use crate::ipam::address_pool::{AddressRefusal, AddressRules, pool_of_address};
use crate::ipam::pool_choice::NoPool;
use crate::net::Cidr;

/// An address of the list that its pool permits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Candidate {
    /// The address.
    pub ip: IpAddr,
    /// The block of the address: by the block size of its pool, or an existing block of another
    /// size.
    pub block: Cidr,
}

/// The addresses of a list, divided by the pools.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Candidates {
    /// The addresses that a pool permits, in the order of the list.
    pub permitted: Vec<Candidate>,
    /// The other addresses, with the reasons.
    pub unavailable: Vec<Unavailable>,
}

impl Candidates {
    /// Fails if the permitted addresses are in too many blocks.
    pub fn ensure_few_blocks(&self) -> Result<(), Failure> {
        let blocks: BTreeSet<Cidr> = self
            .permitted
            .iter()
            .map(|candidate| candidate.block)
            .collect();
        let found = blocks.len();
        if found > MAX_BLOCKS {
            Err(Failure::new(format_args!(
                "annotation \"{ANY_OF}\" names addresses in {found} blocks"
            ))
            .way_out(format!("at most {MAX_BLOCKS} of a family")))
        } else {
            Ok(())
        }
    }
}

/// Divides the addresses `wanted` by the rules of their pools. `pools` are ordered by name
/// (IPAM-94).
///
/// # Errors
/// Returns the error of a malformed namespace selector of a pool that contains one of the
/// addresses.
pub fn candidates<'a>(
    pools: impl IntoIterator<Item = &'a IpPool>,
    rules: &AddressRules<'_>,
    wanted: &[IpAddr],
) -> Result<Candidates, NoPool> {
    // A cluster may have many more pools than those of the list, and each look at a pool parses its
    // CIDR.
    let has_wanted = |pool: &&IpPool| {
        pool.spec
            .range()
            .is_ok_and(|range| wanted.iter().any(|ip| range.contains(*ip)))
    };
    let pools: Vec<&IpPool> = pools.into_iter().filter(has_wanted).collect();
    let mut found = Candidates::default();
    for &ip in wanted {
        let reason = match pool_of_address(pools.iter().copied(), ip, rules) {
            Ok(pool) => match pool.block_of(ip) {
                Some(block) => {
                    found.permitted.push(Candidate { ip, block });
                    continue;
                }
                None => Obstacle::NoPool(Vec::new()),
            },
            Err(AddressRefusal::NotInPool(refused)) => Obstacle::NoPool(refused),
            Err(AddressRefusal::Pool(refused)) => Obstacle::NoPool(vec![refused]),
            Err(AddressRefusal::Reserved) => Obstacle::Reserved,
            Err(AddressRefusal::Selector(error)) => return Err(error),
        };
        found.unavailable.push(Unavailable { ip, reason });
    }
    Ok(found)
}

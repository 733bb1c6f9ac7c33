//! Counts the addresses in use in pools and blocks.

use serde::Serialize;

use super::{Block, Reservations};
use crate::net::Cidr;

/// The use of a block.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BlockUse {
    /// The block.
    pub cidr: Cidr,
    /// The block's owner, `host:<node>` or `virtual:<name>`, if it has one.
    pub owner: Option<String>,
    /// The number of addresses in the block.
    pub capacity: u128,
    /// The number of addresses that are not free, including those that are cooling down or reserved
    /// by a host.
    pub in_use: u128,
    /// The number of addresses that IPReservations cover, allocated or not.
    pub reserved: u128,
    /// The number of free addresses that no IPReservation covers.
    pub available: u128,
}

/// The use of a pool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PoolUse {
    /// The pool's name.
    pub name: String,
    /// The pool's range.
    pub cidr: Cidr,
    /// The number of addresses in the pool.
    pub capacity: u128,
    /// The number of addresses in use in the pool's blocks.
    pub in_use: u128,
    /// The number of addresses that IPReservations cover.
    pub reserved: u128,
    /// The number of addresses that are free and not reserved, inside and outside of blocks.
    pub available: u128,
    /// The pool's blocks, sorted by range.
    pub blocks: Vec<BlockUse>,
}

/// The use of all pools.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Utilization {
    /// The pools, in the given order.
    pub pools: Vec<PoolUse>,
    /// The blocks that are in no pool. Upstream lists only IPv4 ones (IPAM-158).
    pub orphans: Vec<BlockUse>,
}

impl BlockUse {
    /// Counts the addresses of a block.
    pub fn of(block: &Block, reservations: &Reservations) -> Self {
        let capacity = block.capacity();
        BlockUse {
            cidr: block.cidr,
            owner: block.affinity.clone(),
            capacity,
            in_use: capacity.saturating_sub(block.unallocated.len() as u128),
            reserved: reservations.within(&block.cidr),
            available: block.free(reservations) as u128,
        }
    }
}

/// Counts the addresses of pools, given by name and range, and of their blocks. A block counts for
/// the first pool that contains it.
pub fn utilization<'a>(
    pools: impl IntoIterator<Item = (&'a str, Cidr)>,
    blocks: impl IntoIterator<Item = &'a Block>,
    reservations: &Reservations,
) -> Utilization {
    let mut remaining: Vec<BlockUse> = blocks
        .into_iter()
        .map(|block| BlockUse::of(block, reservations))
        .collect();
    remaining.sort_by_key(|block| block.cidr);
    let mut pool_uses = Vec::new();
    for (name, cidr) in pools {
        let (inside, outside) = remaining
            .into_iter()
            .partition(|block| cidr.covers(&block.cidr));
        remaining = outside;
        pool_uses.push(pool_use(name, cidr, inside, reservations));
    }
    Utilization {
        pools: pool_uses,
        orphans: remaining,
    }
}

fn pool_use(name: &str, cidr: Cidr, blocks: Vec<BlockUse>, reservations: &Reservations) -> PoolUse {
    let sum = |count: fn(&BlockUse) -> u128| {
        blocks
            .iter()
            .fold(0u128, |sum, block| sum.saturating_add(count(block)))
    };
    let (capacity, reserved) = (cidr.size(), reservations.within(&cidr));
    let outside_blocks = capacity.saturating_sub(sum(|block| block.capacity));
    let reserved_outside = reserved.saturating_sub(sum(|block| block.reserved));
    let available = sum(|block| block.available)
        .saturating_add(outside_blocks.saturating_sub(reserved_outside));
    PoolUse {
        name: name.to_owned(),
        cidr,
        capacity,
        in_use: sum(|block| block.in_use),
        reserved,
        available,
        blocks,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use time::macros::datetime;

    use super::*;
    use crate::ipam::{AffinityOwner, BlockRequest, HandleId};

    fn cidr(text: &str) -> Cidr {
        text.parse().unwrap()
    }

    fn block(range: &str, used: usize, cooling: bool) -> Block {
        let now = datetime!(2026-08-22 01:02:03 UTC);
        let owner = AffinityOwner::Host("node1".into());
        let mut block = Block::new(cidr(range), &owner, now).unwrap();
        let handle = HandleId::new("h");
        let request = BlockRequest {
            handle: Some(&handle),
            attributes: &BTreeMap::new(),
            requester: &owner,
            check_affinity: false,
        };
        block.assign(used, &request, &Reservations::none()).unwrap();
        if cooling {
            block.release_by_handle(&handle, None, 60, now).unwrap();
        }
        block
    }

    fn counts(used: &PoolUse) -> (u128, u128, u128, u128) {
        (used.capacity, used.in_use, used.reserved, used.available)
    }

    #[test]
    fn pool_utilization_sums_blocks_reservations_and_unclaimed_space() {
        let blocks = [
            block("10.0.0.0/30", 3, false),
            block("10.0.0.8/30", 2, true),
        ];
        for (reserved, expected) in [
            (&[][..], (16, 5, 0, 11)),
            (&["10.0.0.3/32"][..], (16, 5, 1, 10)),
            (&["10.0.0.0/32"], (16, 5, 1, 11)),
            (&["10.0.0.4/30"], (16, 5, 4, 7)),
            (&["10.0.1.0/24"], (16, 5, 0, 11)),
            (&["10.0.0.0/8"], (16, 5, 16, 0)),
            (
                &["10.0.0.4/30", "10.0.0.4/31", "10.0.0.6/32"],
                (16, 5, 4, 7),
            ),
        ] {
            let reservations = Reservations::new(reserved.iter().map(|range| cidr(range)));
            let used = utilization([("p", cidr("10.0.0.0/28"))], &blocks, &reservations);
            assert_eq!(counts(&used.pools[0]), expected, "{reserved:?}");
        }
    }

    #[test]
    fn blocks_outside_all_pools_are_orphans_in_both_families() {
        let blocks = [
            block("fd00::/122", 1, false),
            block("10.9.0.0/30", 1, false),
            block("10.0.0.0/30", 0, false),
        ];
        let used = utilization([("p", cidr("10.0.0.0/28"))], &blocks, &Reservations::none());
        assert_eq!(
            used.pools[0]
                .blocks
                .iter()
                .map(|b| b.cidr)
                .collect::<Vec<_>>(),
            [cidr("10.0.0.0/30")]
        );
        assert_eq!(
            used.orphans.iter().map(|b| b.cidr).collect::<Vec<_>>(),
            [cidr("10.9.0.0/30"), cidr("fd00::/122")]
        );
        assert_eq!(
            (
                used.orphans[1].capacity,
                used.orphans[1].in_use,
                used.orphans[1].available
            ),
            (64, 1, 63)
        );
    }

    #[test]
    fn utilization_of_the_largest_pools_does_not_overflow() {
        let blocks = [block("fd00::/122", 1, false)];
        let pools = [("p", cidr("fd00::/64")), ("all", cidr("::/0"))];
        let used = utilization(pools, &blocks, &Reservations::none());
        assert_eq!(counts(&used.pools[0]), (1 << 64, 1, 0, (1 << 64) - 1));
        assert_eq!(used.pools[1].capacity, u128::MAX);
    }
}

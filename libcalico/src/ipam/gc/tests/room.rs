//! The rooms of pools: the index counts what `usage` counts.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::super::*;
use super::cluster::EPOCH;
use crate::api::{IpPool, IpPoolSpec};
use crate::ipam::{
    AffinityOwner, Block, BlockRequest, HandleId, IpamConfig, PoolUsage, ReleaseRequest,
    Reservations, UsageInput, WINDOWS_RESERVED_HANDLE, usage,
};
use crate::net::Cidr;

/// The pools: range, block size, whether the pool is in service. `other` has blocks of a former
/// size.
const POOLS: [(&str, &str, u8, bool); 3] = [
    ("first", "10.0.0.0/27", 29, true),
    ("off", "10.0.2.0/27", 29, false),
    ("other", "10.0.1.0/27", 28, true),
];

/// A block, by the numbers of its pool, its place in the pool, and its owner.
#[derive(Debug, Clone)]
struct Given {
    place: (usize, u8),
    owner: usize,
    /// The kinds of its addresses: with a handle, without one, of Windows, or cooling down.
    addresses: Vec<usize>,
    /// True if the free list lacks an ordinal.
    loses_one: bool,
    state: usize,
}

fn cidr(text: &str) -> Cidr {
    text.parse().unwrap()
}

fn given() -> impl Strategy<Value = Given> {
    let parts = (
        0usize..3,
        0u8..4,
        0usize..5,
        proptest::collection::vec(0usize..4, 0..9),
        any::<bool>(),
        0usize..12,
    );
    parts.prop_map(|(pool, place, owner, addresses, loses_one, state)| Given {
        place: (pool, place),
        owner,
        addresses,
        loses_one,
        state,
    })
}

fn block(given: &Given) -> Block {
    let (pool, place) = given.place;
    let range = Cidr::new(cidr(POOLS[pool].1).nth(u128::from(place) * 8).unwrap(), 29).unwrap();
    let nodes = ["n1", "n2", "n3"].map(|node| AffinityOwner::Host(node.into()));
    let owner = nodes
        .get(given.owner)
        .cloned()
        .unwrap_or(AffinityOwner::Virtual("load-balancer".into()));
    let mut block = Block::new(range, &owner, EPOCH).unwrap();
    let (handle, windows) = (
        HandleId::new("net.h"),
        HandleId::new(WINDOWS_RESERVED_HANDLE),
    );
    for kind in &given.addresses {
        let handle = [Some(&handle), None, Some(&windows), Some(&handle)][*kind];
        let attributes = BTreeMap::new();
        let request = BlockRequest {
            handle,
            attributes: &attributes,
            requester: &owner,
            check_affinity: false,
        };
        let Some(ip) = block
            .assign(1, &request, &Reservations::none())
            .unwrap()
            .first()
            .copied()
        else {
            break;
        };
        if *kind == 3 {
            let request = ReleaseRequest {
                ip,
                handle: None,
                sequence: None,
            };
            block.release(&[request], 1_000_000, EPOCH).unwrap();
        }
    }
    if given.loses_one {
        block.unallocated.pop();
    }
    if given.owner == 4 {
        block.clear_affinity();
    }
    match given.state {
        0 => block.deleted = true,
        1 => block.allocations.push(None),
        _ => {}
    }
    block
}

fn shape(range: &str, block_prefix: u8, in_service: bool) -> PoolShape {
    PoolShape {
        cidr: cidr(range),
        block_prefix,
        uid: format!("uid of {range}"),
        in_service,
    }
}

fn objects() -> Vec<IpPool> {
    let pool = |(name, range, size, in_service): (&str, &str, u8, bool)| {
        let spec = IpPoolSpec {
            cidr: range.into(),
            block_size: Some(size),
            disabled: !in_service,
            ..IpPoolSpec::default()
        };
        IpPool::new(name, spec)
    };
    POOLS.map(pool).into()
}

/// The numbers that both count: of each pool in service the name, free addresses, the fullest node
/// and sparse blocks.
type Numbers = Vec<(String, u128, Option<(String, u128)>, u64)>;

fn by_usage(blocks: &[Block], reservations: &Reservations, config: &IpamConfig) -> Numbers {
    let pools = objects();
    let found = usage(&UsageInput {
        pools: &pools,
        blocks,
        reservations,
        config,
        nodes: None,
    });
    let in_service = found.pools.into_iter().filter(|pool| pool.name != "off");
    let number = |pool: PoolUsage| {
        let fullest = pool
            .fullest_node
            .map(|fullest| (fullest.node, fullest.addresses));
        (pool.name, pool.free, fullest, pool.sparse_blocks)
    };
    in_service.map(number).collect()
}

fn by_index(index: &Index) -> Numbers {
    let number = |named: NamedRoom<'_>| {
        (
            named.name.to_owned(),
            named.room.free,
            named.room.fullest.clone(),
            named.room.sparse,
        )
    };
    index.rooms().map(number).collect()
}

fn index(blocks: &[Block]) -> Index {
    let mut index = Index::new(GcSettings::default());
    for (name, range, size, in_service) in POOLS {
        index.put_pool(name, shape(range, size, in_service));
    }
    for block in blocks {
        // A corrupt block is refused, and occupies its range.
        let _ = index.put_block(block);
    }
    index
}

proptest! {
    #[test]
    fn room_equals_usage(
        cases in proptest::collection::vec(given(), 0..9),
        reserved in proptest::collection::vec((0u8..2, 0u8..32, 27u8..33), 0..4),
        limit in 0i64..4,
        auto_allocate_blocks in any::<bool>(),
    ) {
        let by_place: BTreeMap<(usize, u8), Given> = cases
            .into_iter()
            .map(|given| (given.place, given))
            .collect();
        let blocks: Vec<Block> = by_place.values().map(block).collect();
        let range =
            |(pool, at, prefix): (u8, u8, u8)| Cidr::new([10, 0, pool, at].into(), prefix).unwrap();
        let ranges: Vec<Cidr> = reserved.into_iter().map(range).collect();
        let mut config = IpamConfig {
            max_blocks_per_host: limit,
            ..IpamConfig::absent()
        };
        config.auto_allocate_blocks = auto_allocate_blocks;
        let mut index = index(&blocks);
        let texts: Vec<String> = ranges.iter().map(ToString::to_string).collect();
        let mut reservation = crate::api::IpReservation::new("r", Default::default());
        reservation.spec.reserved_cidrs = texts;
        index.put_reservation(&reservation);
        index.count_rooms(&config);
        prop_assert_eq!(
            by_index(&index),
            by_usage(&blocks, &Reservations::new(ranges), &config)
        );
        index.verify().unwrap();
    }
}

#[test]
fn changes_that_affect_a_room_are_noticed() {
    let given = Given {
        place: (0, 0),
        owner: 0,
        addresses: vec![0, 3],
        loses_one: false,
        state: 9,
    };
    let first = block(&given);
    let mut index = index(std::slice::from_ref(&first));
    let config = IpamConfig::absent();
    let changed = |index: &mut Index, change: &dyn Fn(&mut Index)| {
        index.count_rooms(&config);
        assert!(!index.has_changed_rooms());
        change(index);
        index.has_changed_rooms()
    };
    let put = |given: Given| move |index: &mut Index| index.put_block(&block(&given)).unwrap();
    let deleted = block(&Given {
        state: 0,
        ..given.clone()
    });
    assert!(
        !changed(&mut index, &|index: &mut Index| index
            .put_block(&first)
            .unwrap()),
        "an equal block"
    );
    assert!(
        !changed(&mut index, &|index: &mut Index| index
            .put_pool("first", shape(POOLS[0].1, 29, true))),
        "an equal pool"
    );
    assert!(changed(
        &mut index,
        &put(Given {
            addresses: vec![0, 3, 0],
            ..given.clone()
        })
    ));
    assert!(
        changed(
            &mut index,
            &put(Given {
                addresses: vec![0, 3, 3],
                ..given.clone()
            })
        ),
        "an address cools down"
    );
    assert!(changed(
        &mut index,
        &put(Given {
            owner: 1,
            addresses: vec![0, 3, 3],
            ..given.clone()
        })
    ));
    assert!(changed(&mut index, &|index: &mut Index| index
        .put_block(&deleted)
        .unwrap()));
    assert!(
        !changed(&mut index, &|index: &mut Index| index
            .put_block(&deleted)
            .unwrap()),
        "the block is still being deleted"
    );
    assert!(changed(&mut index, &|index: &mut Index| index
        .remove_block(&deleted.cidr)));
    assert!(changed(&mut index, &|index: &mut Index| index
        .put_pool("first", shape(POOLS[0].1, 28, true))));
    assert!(changed(&mut index, &|index: &mut Index| index.remove_pool("other")));
    assert!(changed(&mut index, &|index: &mut Index| index
        .remove_reservation("r")));
}

#[test]
fn block_that_a_list_lacks_occupies_nothing() {
    let given = Given {
        place: (0, 0),
        owner: 0,
        addresses: Vec::new(),
        loses_one: false,
        state: 0,
    };
    let mut index = index(&[block(&given)]);
    let free = |index: &mut Index| {
        index.count_rooms(&IpamConfig::absent());
        index
            .rooms()
            .next()
            .map(|named| (named.name.to_owned(), named.room.free))
    };
    assert_eq!(free(&mut index), Some(("first".to_owned(), 24)));
    index.begin_list(WatchedKind::Blocks);
    index.end_list(WatchedKind::Blocks);
    assert_eq!(free(&mut index), Some(("first".to_owned(), 32)));
    index.remove_pool("first");
    assert_eq!(
        index
            .rooms()
            .map(|named| named.name.to_owned())
            .collect::<Vec<_>>(),
        ["other"]
    );
}

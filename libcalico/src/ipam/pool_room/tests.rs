use super::*;

fn cidr(text: &str) -> Cidr {
    text.parse().unwrap()
}

fn pool(range: &str, block_prefix: u8) -> Pool {
    let (node_selector, allowed_uses) = (String::new(), Vec::new());
    Pool {
        name: "p".into(),
        cidr: cidr(range),
        block_prefix,
        node_selector,
        allowed_uses,
    }
}

/// Returns a block of `node` with this number of allocated addresses.
fn block<'a>(range: &str, node: &'a str, allocated: u64) -> BlockRoom<'a> {
    let (cidr, node) = (cidr(range), (!node.is_empty()).then_some(node));
    let free = u64::try_from(cidr.size()).unwrap() - allocated;
    BlockRoom {
        cidr,
        node,
        allocated,
        free,
        is_empty: allocated == 0,
        counts: true,
    }
}

/// Returns three of the four blocks of the pool: a full one and one with room of `n1`, and one with
/// room of `n2`.
fn blocks() -> [BlockRoom<'static>; 3] {
    [
        block("10.0.0.0/29", "n1", 8),
        block("10.0.0.8/29", "n1", 2),
        block("10.0.0.16/29", "n2", 3),
    ]
}

fn room(blocks: &[BlockRoom<'_>], reserved: &[&str], config: &IpamConfig) -> PoolRoom {
    let reservations = Reservations::new(reserved.iter().map(|range| cidr(range)));
    pool_room(
        &pool("10.0.0.0/27", 29),
        blocks.iter().copied(),
        &reservations,
        config,
    )
}

fn fullest(blocks: &[BlockRoom<'_>], config: &IpamConfig) -> Option<(String, u128)> {
    room(blocks, &[], config).fullest
}

fn on(node: &str, addresses: u128) -> Option<(String, u128)> {
    Some((node.to_owned(), addresses))
}

#[test]
fn room_counts_free_and_usable_addresses_in_and_outside_of_blocks() {
    let config = IpamConfig::absent();
    let PoolRoom {
        free,
        usable,
        sparse,
        ..
    } = room(&blocks(), &[], &config);
    assert_eq!(
        (free, usable, sparse),
        (6 + 5 + 8, 32, 1),
        "two of eight are a quarter"
    );
    let PoolRoom { free, usable, .. } = room(&blocks(), &["10.0.0.24/30"], &config);
    assert_eq!((free, usable), (6 + 5 + 4, 28));
    let full = room(&[block("10.0.0.0/27", "n1", 32)], &[], &config);
    assert_eq!((full.free, full.used_share()), (0, Some(1.0)));
    assert_eq!(room(&blocks(), &["10.0.0.0/8"], &config).used_share(), None);
    assert_eq!(
        room(&[], &[], &config),
        PoolRoom {
            free: 32,
            usable: 32,
            fullest: None,
            sparse: 0
        }
    );
}

#[test]
fn fullest_node_takes_its_own_claimable_and_reclaimable_addresses_only() {
    let mut config = IpamConfig::absent();
    assert_eq!(
        fullest(&blocks(), &config),
        on("n2", 5 + 8),
        "n1 can take 6 + 8"
    );
    let with_an_empty_block = [&blocks()[..], &[block("10.0.0.24/29", "n2", 0)]].concat();
    assert_eq!(
        fullest(&with_an_empty_block, &config),
        on("n2", 5 + 8),
        "n1 reclaims the block of n2"
    );
    config.max_blocks_per_host = 2;
    assert_eq!(
        fullest(&blocks(), &config),
        on("n1", 6),
        "the node has reached the limit"
    );
    config.max_blocks_per_host = 0;
    config.auto_allocate_blocks = false;
    assert_eq!(fullest(&blocks(), &config), on("n2", 5));
    config.strict_affinity = true;
    assert_eq!(
        fullest(&blocks(), &config),
        on("n2", 5),
        "borrowed addresses count in no case"
    );
}

#[test]
fn first_node_by_name_is_the_fullest_among_equal_ones() {
    let equal = [block("10.0.0.8/29", "n2", 4), block("10.0.0.0/29", "n1", 4)];
    assert_eq!(fullest(&equal, &IpamConfig::absent()), on("n1", 4 + 16));
}

#[test]
fn block_of_a_former_size_is_reclaimed_by_no_other_node() {
    let former = [
        block("10.0.0.0/28", "n1", 0),
        block("10.0.0.16/29", "n2", 8),
        block("10.0.0.24/29", "n3", 8),
    ];
    assert_eq!(fullest(&former, &IpamConfig::absent()), on("n2", 0));
    assert_eq!(
        room(&former, &[], &IpamConfig::absent()).free,
        16,
        "its owner takes addresses from it"
    );
}

#[test]
fn block_that_does_not_count_occupies_its_range() {
    let uncounted = BlockRoom {
        counts: false,
        ..block("10.0.0.24/29", "n3", 1)
    };
    let found = room(
        &[&blocks()[..], &[uncounted]].concat(),
        &[],
        &IpamConfig::absent(),
    );
    assert_eq!(
        (found.free, found.sparse, found.fullest),
        (6 + 5, 1, on("n2", 5))
    );
    let outside = block("10.9.0.0/29", "n0", 8);
    let found = room(
        &[&blocks()[..], &[outside]].concat(),
        &[],
        &IpamConfig::absent(),
    );
    assert_eq!(found, room(&blocks(), &[], &IpamConfig::absent()));
}

#[test]
fn empty_block_is_sparse_only_if_a_node_owns_it() {
    let of_no_node = [block("10.0.0.0/29", "", 0), block("10.0.0.8/29", "", 1)];
    let of_a_node = [
        block("10.0.0.16/29", "n1", 0),
        block("10.0.0.24/29", "n1", 3),
    ];
    let sparse = |blocks: &[BlockRoom<'_>]| room(blocks, &[], &IpamConfig::absent()).sparse;
    assert_eq!((sparse(&of_no_node), sparse(&of_a_node)), (0, 1));
}

#[test]
fn room_of_a_large_pool_is_exact() {
    let none = Reservations::none();
    let blocks = [block("fd00::/122", "n1", 1)];
    let room = pool_room(
        &pool("fd00::/48", 122),
        blocks,
        &none,
        &IpamConfig::absent(),
    );
    assert_eq!((room.free, room.usable), ((1u128 << 80) - 1, 1u128 << 80));
    assert_eq!(
        room.fullest,
        on("n1", 63 + 19 * 64),
        "19 more blocks reach the limit"
    );
}

use std::collections::BTreeMap;

use proptest::prelude::*;
use time::macros::datetime;

use super::*;
use crate::api::{AllowedUse, AssignmentMode, IpPool, IpPoolSpec, Node, NodeSpec, StringEnum};
use crate::ipam::{AffinityOwner, Block, BlockRequest, HandleId, IpamConfig, Reservations};
use crate::net::{Cidr, IpVersion};

fn cidr(text: &str) -> Cidr {
    text.parse().unwrap()
}

fn pool(name: &str, range: &str, block_size: u8) -> IpPool {
    IpPool::new(
        name,
        IpPoolSpec {
            cidr: range.into(),
            block_size: Some(block_size),
            ..IpPoolSpec::default()
        },
    )
}

fn node(name: &str) -> Node {
    let mut node = Node::new(name, NodeSpec::default());
    node.metadata.labels.insert("name".into(), name.into());
    node
}

fn of(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs
        .iter()
        .map(|&(key, value)| (key.to_owned(), value.to_owned()))
        .collect()
}

fn of_pod(node: &str, namespace: &str) -> BTreeMap<String, String> {
    of(&[("node", node), ("namespace", namespace), ("pod", "p")])
}

/// A cluster with the default settings and no reservations.
struct Cluster {
    pools: Vec<IpPool>,
    blocks: Vec<Block>,
    reservations: Reservations,
    config: IpamConfig,
    nodes: Option<Vec<Node>>,
}

impl Cluster {
    fn new(pools: Vec<IpPool>, nodes: &[&str]) -> Self {
        let nodes = Some(nodes.iter().map(|name| node(name)).collect());
        let (blocks, reservations, config) =
            (Vec::new(), Reservations::none(), IpamConfig::absent());
        Cluster {
            pools,
            blocks,
            reservations,
            config,
            nodes,
        }
    }

    /// Adds a block of `owner` with one address for each of `users`.
    fn block(
        &mut self,
        range: &str,
        owner: Option<AffinityOwner>,
        users: &[BTreeMap<String, String>],
    ) {
        let requester = owner.clone().unwrap_or(AffinityOwner::Host("none".into()));
        let mut block =
            Block::new(cidr(range), &requester, datetime!(2026-08-22 01:02:03 UTC)).unwrap();
        for attributes in users {
            let handle = HandleId::new("h");
            let request = BlockRequest {
                handle: Some(&handle),
                attributes,
                requester: &requester,
                check_affinity: false,
            };
            block.assign(1, &request, &Reservations::none()).unwrap();
        }
        if owner.is_none() {
            block.clear_affinity();
        }
        self.blocks.push(block);
    }

    fn usage(&self) -> Usage {
        usage(&UsageInput {
            pools: &self.pools,
            blocks: &self.blocks,
            reservations: &self.reservations,
            config: &self.config,
            nodes: self.nodes.as_deref(),
        })
    }

    fn fits(&self, name: &str) -> Option<u128> {
        row(&self.usage(), name, IpVersion::V4).fits
    }
}

fn host(name: &str) -> Option<AffinityOwner> {
    Some(AffinityOwner::Host(name.into()))
}

fn row(usage: &Usage, name: &str, version: IpVersion) -> NodeUsage {
    let mut rows = usage.nodes.iter();
    rows.find(|row| row.node == name && row.version == version)
        .cloned()
        .unwrap_or_else(|| panic!("no row of {name}"))
}

/// A pool of four blocks of 8. node1 has a full block and one with room, node2 has one with room.
fn small() -> Cluster {
    let mut cluster = Cluster::new(vec![pool("p", "10.0.0.0/27", 29)], &["node1", "node2"]);
    cluster.block(
        "10.0.0.0/29",
        host("node1"),
        &vec![of_pod("node1", "web"); 8],
    );
    cluster.block(
        "10.0.0.8/29",
        host("node1"),
        &[of_pod("node1", "web"), of_pod("node2", "db")],
    );
    cluster.block(
        "10.0.0.16/29",
        host("node2"),
        &[of(&[("node", "node2"), ("type", "ipipTunnelAddress")])],
    );
    cluster
}

#[test]
fn usage_counts_each_address_once() {
    let mut cluster = small();
    let service = of(&[
        ("node", "load-balancer"),
        ("type", "LoadBalancer"),
        ("namespace", "web"),
        ("service", "s"),
    ]);
    cluster.block(
        "10.9.0.0/30",
        Some(AffinityOwner::Virtual("load-balancer".into())),
        &[service],
    );
    let usage = cluster.usage();
    let PoolUsage {
        used,
        blocks,
        empty_blocks,
        unclaimed_blocks,
        free,
        ..
    } = &usage.pools[0];
    assert_eq!(
        (*used, *blocks, *empty_blocks, *unclaimed_blocks, *free),
        (11, 3, 0, 1, 6 + 7 + 8)
    );
    assert_eq!((usage.outside_pools.ipv4, usage.without_node.ipv4), (1, 1));
    let (first, second) = (
        row(&usage, "node1", IpVersion::V4),
        row(&usage, "node2", IpVersion::V4),
    );
    assert_eq!(
        (
            first.blocks,
            first.used,
            first.borrowed,
            first.lent,
            first.free
        ),
        (2, 9, 0, 1, 6)
    );
    assert_eq!(
        (
            second.blocks,
            second.used,
            second.borrowed,
            second.lent,
            second.free
        ),
        (1, 2, 1, 0, 7)
    );
    let namespaces: Vec<_> = usage
        .namespaces
        .iter()
        .map(|row| (row.namespace.as_str(), row.used.sum()))
        .collect();
    assert_eq!(
        namespaces,
        [("(services)", 1), ("(tunnels)", 1), ("db", 1), ("web", 9)]
    );
    assert_eq!(usage.borrowed.rows.len(), 1);
}

#[test]
fn node_fits_its_blocks_and_those_that_it_can_claim_or_borrow_from() {
    let mut cluster = small();
    assert_eq!(
        cluster.fits("node1"),
        Some(6 + 8 + 7),
        "own, unclaimed, borrowed"
    );
    assert_eq!(cluster.fits("node2"), Some(7 + 8 + 6));
    assert_eq!(
        cluster.usage().fits,
        [PodsFit {
            version: IpVersion::V4,
            pods: 21,
            on_request: 0
        }]
    );
    cluster.block("10.0.0.24/29", host("node2"), &[]);
    assert_eq!(
        cluster.fits("node1"),
        Some(6 + 8 + 7),
        "own, reclaimed, borrowed"
    );
    cluster.config.auto_allocate_blocks = false;
    assert_eq!(cluster.fits("node1"), Some(6), "own only");
}

#[test]
fn node_at_its_block_limit_fits_only_its_own_free_addresses() {
    let mut cluster = small();
    cluster.config.max_blocks_per_host = 2;
    assert_eq!(cluster.fits("node1"), Some(6));
    assert_eq!(
        cluster.fits("node2"),
        Some(7 + 8),
        "one more block reaches the limit"
    );
}

#[test]
fn strict_affinity_excludes_borrowing() {
    let mut cluster = small();
    cluster.config.strict_affinity = true;
    assert_eq!(
        (cluster.fits("node1"), cluster.fits("node2")),
        (Some(6 + 8), Some(7 + 8))
    );
}

#[test]
fn room_of_a_node_follows_node_selectors_if_labels_are_known() {
    let mut cluster = small();
    cluster.pools[0].spec.node_selector = "name == 'node1'".into();
    cluster.pools[0].spec.namespace_selector = "team == 'web'".into();
    assert_eq!(
        (cluster.fits("node1"), cluster.fits("node2")),
        (Some(21), Some(0))
    );
    cluster.block("10.0.0.24/29", host("gone"), &[]);
    assert_eq!(cluster.fits("gone"), None, "the node does not exist");
    cluster.nodes = None;
    assert_eq!(
        (cluster.fits("node2"), cluster.fits("gone")),
        (Some(21), Some(21))
    );
}

#[test]
fn malformed_selector_of_a_pool_in_service_leaves_no_room_and_is_named() {
    let named = |usage: &Usage| {
        usage
            .malformed_selectors
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
    };
    let mut cluster = small();
    cluster.pools.push(pool("q", "10.1.0.0/27", 29));
    cluster.pools[1].spec.namespace_selector = "team ==".into();
    for nodes in [cluster.nodes.clone(), None] {
        cluster.nodes = nodes;
        let usage = cluster.usage();
        assert_eq!(
            row(&usage, "node1", IpVersion::V4).fits,
            Some(0),
            "an ADD fails"
        );
        let found = named(&usage);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(
            found[0].starts_with("IPPool q: namespaceSelector `team ==` is invalid: "),
            "{found:?}"
        );
    }
    let spec = cluster.pools[1].spec.clone();
    cluster.pools[1].spec = IpPoolSpec {
        node_selector: "(".into(),
        namespace_selector: String::new(),
        ..spec
    };
    assert_eq!(
        (cluster.fits("node1"), named(&cluster.usage()).len()),
        (Some(0), 1)
    );
    cluster.pools[1].spec.disabled = true;
    assert_eq!(
        (cluster.fits("node1"), named(&cluster.usage()).len()),
        (Some(21), 0)
    );
    cluster.pools[1].spec.disabled = false;
    cluster.pools[1].spec.assignment_mode = Some(StringEnum::from(AssignmentMode::Manual));
    assert_eq!(
        (cluster.fits("node1"), named(&cluster.usage()).len()),
        (Some(21), 0)
    );
}

#[test]
fn node_of_a_cluster_without_pools_has_a_row() {
    let usage = Cluster::new(Vec::new(), &["node1"]).usage();
    assert_eq!(row(&usage, "node1", IpVersion::V4).fits, Some(0));
    assert_eq!((usage.nodes.len(), usage.fits.len()), (1, 0));
}

#[test]
fn pools_that_serve_no_pods_count_apart() {
    let mut pools =
        ["pods", "manual", "services", "disabled"].map(|name| pool(name, "10.0.0.0/27", 29));
    for (index, pool) in pools.iter_mut().enumerate() {
        pool.spec.cidr = format!("10.{index}.0.0/27");
    }
    pools[1].spec.assignment_mode = Some(StringEnum::from(AssignmentMode::Manual));
    pools[2].spec.allowed_uses = vec![StringEnum::from(AllowedUse::LoadBalancer)];
    pools[3].spec.disabled = true;
    let usage = Cluster::new(pools.to_vec(), &["node1"]).usage();
    let serves: Vec<PoolService> = usage.pools.iter().map(|pool| pool.serves).collect();
    let expected = [
        PoolService::Pods,
        PoolService::OnRequest,
        PoolService::OtherUses,
        PoolService::OutOfService,
    ];
    assert_eq!(serves, expected);
    assert_eq!(
        usage.fits,
        [PodsFit {
            version: IpVersion::V4,
            pods: 32,
            on_request: 32
        }]
    );
}

#[test]
fn pool_names_its_fullest_node_and_counts_sparse_blocks() {
    let mut cluster = small();
    let numbers = |cluster: &Cluster| {
        let PoolUsage {
            fullest_node,
            sparse_blocks,
            ..
        } = cluster.usage().pools.remove(0);
        (
            fullest_node.map(|fullest| (fullest.node, fullest.addresses)),
            sparse_blocks,
        )
    };
    assert_eq!(
        numbers(&cluster),
        (Some(("node1".into(), 6 + 8)), 2),
        "node2 can take 7 + 8"
    );
    cluster.block(
        "10.0.0.24/29",
        host("node2"),
        &vec![of_pod("node2", "web"); 8],
    );
    assert_eq!(numbers(&cluster), (Some(("node1".into(), 6)), 2));
    cluster.pools[0].spec.disabled = true;
    assert_eq!(
        numbers(&cluster),
        (None, 2),
        "no node takes addresses from a pool that is out of service"
    );
}

#[test]
fn fragmented_blocks_are_listed() {
    let mut cluster = small();
    cluster.block("10.0.0.24/30", host("node1"), &[]);
    cluster.block("10.0.0.28/30", None, &vec![of_pod("node1", "web"); 3]);
    let Fragmentation { free, blocks } = cluster.usage().fragmented;
    let listed: Vec<_> = blocks
        .iter()
        .map(|block| (block.cidr.to_string(), block.reasons.clone()))
        .collect();
    let [few, size, none] = [
        FragmentedBy::FewAddresses,
        FragmentedBy::FormerSize,
        FragmentedBy::NoOwner,
    ];
    let expected = [
        ("10.0.0.8/29", vec![few]),
        ("10.0.0.16/29", vec![few]),
        ("10.0.0.24/30", vec![size]),
        ("10.0.0.28/30", vec![none, size]),
    ];
    assert_eq!(
        listed,
        expected.map(|(range, reasons)| (range.to_owned(), reasons))
    );
    assert_eq!(free, 6 + 7 + 4 + 1);
}

#[test]
fn reserved_and_occupied_ranges_are_no_room() {
    for (reserved, blocks, free) in [
        (&[][..], 1, 21),
        (&["10.0.0.24/29"][..], 0, 13),
        (&["10.0.0.24/30", "10.0.0.28/30"], 0, 13),
        (&["10.0.0.24/31"], 1, 19),
        (&["10.0.0.15/32"], 1, 20),
        (&["10.0.0.0/8"], 0, 0),
    ] {
        let mut cluster = small();
        cluster.reservations = Reservations::new(reserved.iter().map(|range| cidr(range)));
        let usage = cluster.usage();
        assert_eq!(
            (usage.pools[0].unclaimed_blocks, usage.pools[0].free),
            (blocks, free),
            "{reserved:?}"
        );
    }
    let mut cluster = small();
    cluster.block("10.0.0.24/30", host("node1"), &[]);
    let pool = cluster.usage().pools.remove(0);
    assert_eq!(
        (pool.unclaimed_blocks, pool.free),
        (0, 6 + 7 + 4),
        "a smaller block takes the place of a whole one"
    );
}

#[test]
fn corrupt_and_deleted_blocks_have_no_room_and_keep_their_addresses() {
    let mut cluster = small();
    cluster.blocks[2].deleted = true;
    assert_eq!(
        (
            cluster.usage().corrupt_blocks,
            cluster.usage().pools[0].free
        ),
        (0, 6 + 8)
    );
    let mut cluster = small();
    cluster.blocks[1].unallocated.push(0);
    let usage = cluster.usage();
    assert_eq!(
        (
            usage.corrupt_blocks,
            usage.pools[0].used,
            usage.pools[0].free
        ),
        (1, 11, 7 + 8)
    );
}

#[test]
fn room_of_large_pools_is_exact() {
    let usage = Cluster::new(
        vec![pool("p", "fd00::/48", 122), pool("q", "fd01::/48", 122)],
        &["node1"],
    )
    .usage();
    let (pools, node) = (1u128 << 81, row(&usage, "node1", IpVersion::V6));
    assert_eq!(node.fits, Some(20 * 64), "as many blocks as a node may own");
    assert_eq!(
        usage.fits,
        [PodsFit {
            version: IpVersion::V6,
            pods: 20 * 64,
            on_request: 0
        }]
    );
    assert_eq!(usage.pools[0].free, pools / 2);
    let json = serde_json::to_value(&usage.pools[0]).unwrap();
    assert_eq!(json["free"], serde_json::json!((pools / 2).to_string()));
}

/// Returns blocks by the index of the owner, with addresses by the indices of the node and the
/// user.
fn any_blocks() -> impl Strategy<Value = Vec<(usize, Vec<(usize, usize)>)>> {
    let users = proptest::collection::vec((0usize..4, 0usize..3), 0..4);
    proptest::collection::vec((0usize..4, users), 0..12)
}

proptest! {
    #[test]
    fn sums_by_node_namespace_and_pool_are_equal(blocks in any_blocks()) {
        let mut cluster = Cluster::new(
            vec![pool("p", "10.0.0.0/27", 30), pool("q", "10.0.0.0/24", 30)],
            &["node0"],
        );
        for (index, (owner, users)) in blocks.iter().enumerate() {
            let owner = [
                host("node0"),
                host("node1"),
                None,
                Some(AffinityOwner::Virtual("load-balancer".into())),
            ][*owner]
                .clone();
            let users: Vec<_> = users
                .iter()
                .map(|(node, kind)| {
                    let pod = of(&[("pod", "p"), ("namespace", "web")]);
                    let mut user = [pod, of(&[("type", "LoadBalancer")]), of(&[])][*kind].clone();
                    user.extend((*node < 3).then(|| ("node".to_owned(), format!("node{node}"))));
                    user
                })
                .collect();
            cluster.block(
                &format!("10.0.{}.{}/30", index / 9, index * 4),
                owner,
                &users,
            );
        }
        let usage = cluster.usage();
        let all = usage.pools.iter().map(|pool| pool.used).sum::<u64>() + usage.outside_pools.sum();
        let by_node =
            usage.nodes.iter().map(|node| node.used).sum::<u64>() + usage.without_node.sum();
        let by_namespace: u64 = usage.namespaces.iter().map(|row| row.used.sum()).sum();
        prop_assert_eq!((by_node, by_namespace), (all, all));
    }
}

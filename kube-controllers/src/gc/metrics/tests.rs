use std::collections::BTreeMap;
use std::time::Duration;

use libcalico::ipam::gc::{GcSettings, PoolShape, Scope};
use libcalico::ipam::{AffinityOwner, Block, BlockRequest, HandleId, IpamConfig, Reservations};
use prometheus::{Registry, TextEncoder};
use time::macros::datetime;

use super::*;

fn text(index: &Index) -> String {
    rendered(&CounterSnapshot::from_index(index))
}

fn rendered(snapshot: &CounterSnapshot) -> String {
    let registry = Registry::new();
    registry.register(Box::new(snapshot.families())).unwrap();
    TextEncoder::new()
        .encode_to_string(&registry.gather())
        .unwrap()
}

fn samples(text: &str, name: &str) -> Vec<String> {
    let of = |line: &str| {
        line.strip_prefix(name)
            .filter(|rest| rest.starts_with('{'))
            .map(str::to_owned)
    };
    text.lines().filter_map(of).collect()
}

/// Returns a block with addresses of pods `<node>-<n>` on these nodes.
fn block(cidr: &str, owner: Option<&str>, on: &[&str]) -> Block {
    let host = AffinityOwner::Host(owner.unwrap_or("nobody").into());
    let mut block = Block::new(
        cidr.parse().unwrap(),
        &host,
        datetime!(2026-11-21 21:00 UTC),
    )
    .unwrap();
    for (n, node) in on.iter().enumerate() {
        let id = HandleId::new(format!("net.{cidr}-{n}"));
        let pod = format!("{node}-{n}");
        let attributes = BTreeMap::from(
            [("node", *node), ("pod", &pod), ("namespace", "ns")]
                .map(|(key, value)| (key.to_owned(), value.to_owned())),
        );
        let request = BlockRequest {
            handle: Some(&id),
            attributes: &attributes,
            requester: &host,
            check_affinity: false,
        };
        block.assign(1, &request, &Reservations::default()).unwrap();
    }
    if owner.is_none() {
        block.clear_affinity();
    }
    block
}

fn pool() -> PoolShape {
    let cidr = "192.168.0.0/24".parse().unwrap();
    PoolShape {
        cidr,
        block_prefix: 26,
        uid: String::new(),
        in_service: true,
    }
}

/// Returns a cluster with two nodes and a pool. `node-a` has a block, and borrows from the block of
/// `node-b`.
fn cluster() -> Index {
    let mut index = Index::new(GcSettings {
        leak_grace: Some(Duration::from_secs(60)),
        ..GcSettings::default()
    });
    for node in ["node-a", "node-b"] {
        index.put_kubernetes_node(node, false);
        index.put_calico_node(node, Some(node));
    }
    index.put_pool("test-ippool-1", pool());
    index
        .put_block(&block("192.168.0.0/26", Some("node-a"), &["node-a"; 3]))
        .unwrap();
    index
        .put_block(&block("192.168.0.64/26", Some("node-b"), &["node-a"]))
        .unwrap();
    index
}

#[test]
fn empty_cluster_has_zero_gauges_for_each_node() {
    let mut index = Index::new(GcSettings::default());
    for node in ["node-a", "node-b"] {
        index.put_kubernetes_node(node, false);
        index.put_calico_node(node, Some(node));
    }
    assert_eq!(text(&index), "", "without pools there is nothing to tell");
    index.put_pool("test-ippool-1", pool());
    let text = text(&index);
    for name in [
        "ipam_allocations_in_use",
        "ipam_allocations_borrowed",
        "ipam_allocations_gc_candidates",
    ] {
        let zeros = ["node-a", "node-b"]
            .map(|node| format!("{{ippool=\"test-ippool-1\",node=\"{node}\"}} 0"));
        assert_eq!(samples(&text, name), zeros, "{text}");
    }
    assert_eq!(
        samples(&text, "ipam_ippool_size"),
        ["{ippool=\"test-ippool-1\"} 256"]
    );
    assert_eq!(
        samples(&text, "ipam_ippool_reserved"),
        ["{ippool=\"test-ippool-1\"} 0"]
    );
    for absent in [
        "ipam_blocks",
        "ipam_allocations_per_node",
        "ipam_allocations_gc_reclamations",
        "borrowed_per_node",
    ] {
        assert!(!text.contains(absent), "{text}");
    }
}

#[test]
fn gauges_count_used_borrowed_and_leaked_addresses() {
    let mut index = cluster();
    let now = text(&index);
    let of_pool = |node: &str, n: u32| format!("{{ippool=\"test-ippool-1\",node=\"{node}\"}} {n}");
    assert_eq!(
        samples(&now, "ipam_allocations_in_use"),
        [of_pool("node-a", 4), of_pool("node-b", 0)]
    );
    assert_eq!(
        samples(&now, "ipam_allocations_borrowed"),
        [of_pool("node-a", 1), of_pool("node-b", 0)]
    );
    assert_eq!(
        samples(&now, "ipam_blocks"),
        [of_pool("node-a", 1), of_pool("node-b", 1)]
    );
    assert_eq!(
        samples(&now, "ipam_allocations_per_node"),
        ["{node=\"node-a\"} 4"]
    );
    assert_eq!(
        samples(&now, "ipam_allocations_borrowed_per_node"),
        ["{node=\"node-a\"} 1"]
    );
    assert_eq!(
        samples(&now, "ipam_blocks_per_node"),
        ["{node=\"node-a\"} 1", "{node=\"node-b\"} 1"]
    );
    index.examine(Duration::ZERO, Scope::Everything);
    assert_eq!(
        samples(&text(&index), "ipam_allocations_gc_candidates"),
        [of_pool("node-a", 4), of_pool("node-b", 0)]
    );
    index.examine(Duration::from_secs(60), Scope::Changed);
    for suspect in index.suspects(Duration::from_secs(60), 10) {
        index.released(&suspect);
    }
    let after = text(&index);
    assert_eq!(
        samples(&after, "ipam_allocations_gc_reclamations"),
        [of_pool("node-a", 4)]
    );
    assert_eq!(
        samples(&after, "ipam_allocations_in_use"),
        [of_pool("node-a", 0), of_pool("node-b", 0)]
    );
    assert!(!after.contains("borrowed_per_node"), "{after}");
}

#[test]
fn room_of_pools_is_shown_once_it_is_counted() {
    let mut index = cluster();
    assert!(!text(&index).contains("kube_controllers_ippool_"));
    index.put_pool(
        "unused",
        PoolShape {
            cidr: "192.168.1.0/24".parse().unwrap(),
            ..pool()
        },
    );
    index.put_pool(
        "off",
        PoolShape {
            cidr: "192.168.2.0/24".parse().unwrap(),
            in_service: false,
            ..pool()
        },
    );
    index.count_rooms(&IpamConfig {
        max_blocks_per_host: 1,
        ..IpamConfig::absent()
    });
    let shown = text(&index);
    let of = |pool: &str, n: u32| format!("{{ippool=\"{pool}\"}} {n}");
    let free = samples(&shown, "kube_controllers_ippool_free_addresses");
    assert_eq!(free, [of("test-ippool-1", 252), of("unused", 256)]);
    let fullest = samples(&shown, "kube_controllers_ippool_fullest_node_addresses");
    assert_eq!(
        fullest,
        [of("test-ippool-1", 61)],
        "no node has a block of the other pool"
    );
    let sparse = samples(&shown, "kube_controllers_ippool_sparse_blocks");
    assert_eq!(sparse, [of("test-ippool-1", 2), of("unused", 0)]);
}

#[test]
fn scrape_renders_a_consistent_copy_of_the_index() {
    let mut index = cluster();
    let (before, snapshot) = (text(&index), CounterSnapshot::from_index(&index));
    index.remove_pool("test-ippool-1");
    index.remove_calico_node("node-b");
    assert_ne!(text(&index), before);
    assert_eq!(rendered(&snapshot), before);
}

#[test]
fn gauges_label_blocks_without_a_pool_or_node() {
    let mut index = cluster();
    index
        .put_block(&block("10.9.0.0/26", None, &["node-b", ""]))
        .unwrap();
    let now = text(&index);
    assert_eq!(
        samples(&now, "ipam_blocks_per_node")[0],
        "{node=\"no_affinity\"} 1"
    );
    let nowhere = |node: &str| format!("{{ippool=\"no_ippool\",node=\"{node}\"}} 1");
    assert_eq!(
        samples(&now, "ipam_allocations_in_use")[..2],
        [nowhere("node-b"), nowhere("unknown_node")]
    );
    assert_eq!(samples(&now, "ipam_blocks")[0], nowhere("no_affinity"));
    assert_eq!(
        samples(&now, "ipam_allocations_borrowed")[0],
        nowhere("node-b"),
        "never of an unknown node"
    );
    assert!(
        !now.contains("no_ippool\",node=\"node-a"),
        "no zeros where there is no pool: {now}"
    );
    // The deletion of the pool removes its counters and its size, and its blocks count as without a
    // pool.
    index.remove_pool("test-ippool-1");
    let after = text(&index);
    assert!(!after.contains("test-ippool-1"), "{after}");
    assert!(
        after.contains("ipam_allocations_in_use{ippool=\"no_ippool\",node=\"node-a\"} 4\n"),
        "{after}"
    );
}

#[test]
fn gc_metric_names_types_and_labels_match_upstreams() {
    let mut index = cluster();
    index.examine(Duration::ZERO, Scope::Everything);
    index.examine(Duration::from_secs(60), Scope::Changed);
    let suspects = index.suspects(Duration::from_secs(60), 10);
    index.released(&suspects[0]);
    let text = text(&index);
    let recorded = include_str!("../../../../tests/golden/controllers/metrics.tsv");
    let recorded: Vec<Vec<&str>> = recorded
        .lines()
        .filter(|line| line.starts_with("ipam_"))
        .map(|line| line.split('\t').collect())
        .collect();
    assert!(recorded.len() >= 9, "{recorded:?}");
    for line in recorded {
        let [name, kind, labels] = line[..] else {
            panic!("{line:?}")
        };
        assert!(
            text.contains(&format!("# TYPE {name} {kind}\n")),
            "{name} is no {kind}: {text}"
        );
        let sample = &samples(&text, name)[0];
        let shown: Vec<&str> = sample
            .split(['{', ','])
            .filter_map(|part| Some(part.split_once('=')?.0))
            .collect();
        assert_eq!(shown.join(","), labels, "{name}");
    }
}

#[test]
fn no_ipam_metric_name_occurs_in_the_help_of_another_metric() {
    let all = IpamFamilies::new().collect();
    for one in &all {
        assert!(
            all.iter().all(|other| !other.help().contains(one.name())),
            "{}",
            one.name()
        );
    }
}

//! Garbage collection of empty blocks, and beside unreadable objects.

use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::controllers_gc::collected_cluster::{
    CollectedCluster, GRACE, LONG_GRACE, SOON, on, to_pod, within,
};

/// Covers upstream's cases "empty block released after grace", "empty block kept within grace" and
/// "should NOT clean up all blocks assigned to a node". Unlike upstream, a dual-stack node keeps a
/// block of each family (KC-455).
#[on(etcd, kubernetes_v1)]
fn empty_blocks_are_released_after_grace_except_the_last_of_each_family(
    cluster: &CollectedCluster<'_>,
) {
    cluster.pool("pool", "10.0.0.0/16", 26);
    cluster.pool("pool6", "fd00::/64", 122);
    cluster.node("node-a");
    cluster.node("node-b");
    let address = cluster.block("10.0.0.0/26", Some("node-a"), &[to_pod("node-a", "pod")]);
    cluster.pod("pod", "node-a", &address);
    cluster.block("10.0.0.64/26", Some("node-a"), &[]);
    cluster.block("fd00::/122", Some("node-a"), &[]);
    for block in ["10.0.1.0/26", "10.0.1.64/26", "10.0.1.128/26"] {
        cluster.block(block, Some("node-b"), &[]);
    }
    let collector = cluster.collect_after(LONG_GRACE);
    collector.await_first_pass();
    collector.pass_after(LONG_GRACE / 2);
    collector.pass_after(LONG_GRACE / 4);
    assert_eq!(cluster.blocks().len(), 6);
    collector.advance_until(LONG_GRACE / 2, "three blocks", || {
        cluster.blocks().len() == 3 && cluster.affinities().len() == 3
    });
    collector.pass_after(LONG_GRACE * 2);
    collector.pass_after(LONG_GRACE * 2);
    let left = cluster.blocks();
    assert!(
        left.contains_key("10.0.0.0/26") && left.contains_key("fd00::/122"),
        "{left:?}"
    );
    assert_eq!(
        left.values()
            .filter(|owner| owner.as_deref() == Some("host:node-b"))
            .count(),
        1,
        "{left:?}"
    );
    assert_eq!(cluster.held().len(), 1);
}

/// The pool was created again with smaller blocks. Of the blocks of another size, those with
/// addresses and those in a disabled pool stay. Overlapping blocks with addresses, the inner one of
/// upstream's plugin, stay unchanged. Shows SEC-59.
#[on(etcd, kubernetes_v1)]
fn empty_blocks_of_a_former_size_go_with_their_affinity(cluster: &CollectedCluster<'_>) {
    cluster.pool("pool", "10.0.0.0/16", 28);
    cluster.disabled_pool("disabled", "10.1.0.0/16", 28);
    for node in ["node-a", "node-b", "node-c"] {
        cluster.node(node);
    }
    let overlapping = [
        ("10.0.0.0/26", "node-a", "pod"),
        ("10.0.0.16/28", "node-c", "of-upstream"),
    ];
    for (block, node, pod) in overlapping {
        let address = cluster.block(block, Some(node), &[to_pod(node, pod)]);
        cluster.pod(pod, node, &address);
    }
    let before = overlapping.map(|(block, ..)| cluster.stored_block(block));
    cluster.block("10.0.0.64/26", Some("node-a"), &[]);
    cluster.block("10.0.0.128/28", Some("node-a"), &[]);
    cluster.block("10.0.1.0/26", Some("node-b"), &[]);
    cluster.block("10.1.0.0/26", Some("node-b"), &[]);
    let collector = cluster.collect_after(LONG_GRACE);
    collector.await_first_pass();
    collector.pass_after(LONG_GRACE / 2);
    collector.pass_after(LONG_GRACE / 4);
    assert_eq!(cluster.blocks().len(), 6);
    collector.advance_until(LONG_GRACE / 2, "four blocks", || {
        cluster.blocks().len() == 4 && cluster.affinities().len() == 4
    });
    collector.pass_after(LONG_GRACE * 2);
    collector.pass_after(LONG_GRACE * 2);
    let left: Vec<String> = cluster.blocks().into_keys().collect();
    assert_eq!(
        left,
        [
            "10.0.0.0/26",
            "10.0.0.128/28",
            "10.0.0.16/28",
            "10.1.0.0/26"
        ]
    );
    assert_eq!(
        overlapping.map(|(block, ..)| cluster.stored_block(block)),
        before
    );
}

/// Without a grace period, empty blocks of an existing node stay (KC-438).
#[on(etcd, kubernetes_v1)]
fn empty_blocks_stay_without_a_grace_period(cluster: &CollectedCluster<'_>) {
    cluster.pool("pool", "10.0.0.0/16", 26);
    cluster.node("node-a");
    cluster.block(
        "10.0.0.0/26",
        Some("node-a"),
        &[to_pod("node-a", "missing")],
    );
    cluster.block("10.0.0.64/26", Some("node-a"), &[]);
    let collector = cluster.collect_after(Duration::ZERO);
    collector.await_metric("ipam_allocations_gc_candidates{ippool=\"pool\",node=\"node-a\"} 1");
    collector.pass_after(LONG_GRACE);
    collector.pass_after(LONG_GRACE);
    assert_eq!((cluster.held().len(), cluster.blocks().len()), (1, 2));
    collector.set(|settings| settings.leak_grace_period = Some(GRACE));
    within(SOON, "the leak and the block", || {
        cluster.held().is_empty() && cluster.blocks().len() == 1
    });
}

#[on(etcd)]
fn gc_releases_leaks_beside_unreadable_objects_and_a_constant_writer(
    cluster: &CollectedCluster<'_>,
) {
    cluster.pool("pool", "10.0.0.0/16", 26);
    cluster.node("node-a");
    cluster.block(
        "10.0.0.0/26",
        Some("node-a"),
        &[to_pod("node-a", "missing")],
    );
    cluster.block("10.0.0.64/26", Some("node-a"), &[to_pod("node-a", "other")]);
    for key in [
        "assignment/ipv4/block/10.0.1.0-26",
        "handle/bad",
        "host/node-a/ipv4/block/10.0.1.0-26",
    ] {
        cluster
            .servers
            .etcd
            .put(&format!("/calico/ipam/v2/{key}"), b"{")
            .unwrap();
    }
    let collector = cluster.collect_after(GRACE);
    let key = "/calico/ipam/v2/assignment/ipv4/block/10.0.0.64-26";
    let end = Instant::now() + GRACE + Duration::from_secs(2);
    while Instant::now() < end {
        // The same value with a new revision.
        let bytes = cluster.servers.etcd.dump_raw().unwrap().remove(key);
        cluster.servers.etcd.put(key, &bytes.unwrap()).unwrap();
        sleep(Duration::from_millis(20));
    }
    let stored = || cluster.servers.etcd.dump_raw().unwrap();
    within(SOON, "both leaks", || {
        let free = |block: &str| {
            let bytes = stored().remove(&format!("/calico/ipam/v2/assignment/ipv4/block/{block}"));
            let block: Option<Value> = bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok());
            block.is_none_or(|block| {
                block["allocations"]
                    .as_array()
                    .unwrap()
                    .iter()
                    .all(Value::is_null)
            })
        };
        free("10.0.0.0-26") && free("10.0.0.64-26")
    });
    // The number of addresses of the invalid handle is unknown.
    let handles = || {
        stored()
            .into_keys()
            .filter(|key| key.contains("/handle/"))
            .collect::<Vec<_>>()
    };
    within(SOON, "their handles", || {
        handles() == ["/calico/ipam/v2/handle/bad"]
    });
    drop(collector);
}

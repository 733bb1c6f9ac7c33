//! Garbage collection of empty blocks, and beside unreadable objects.

use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::lab::{GRACE, LONG_GRACE, Lab, SOON, to_pod, with_a_long_grace_period, within};

/// Covers upstream's cases "empty block released after grace", "empty block kept within grace" and
/// "should NOT clean up all blocks assigned to a node". Unlike upstream, a dual-stack node keeps a
/// block of each family (KC-455).
#[on(etcd, kubernetes_v1)]
fn empty_blocks_are_released_after_grace_except_the_last_of_each_family(lab: &Lab<'_>) {
    lab.pool("pool", "10.0.0.0/16", 26);
    lab.pool("pool6", "fd00::/64", 122);
    lab.node("node-a");
    lab.node("node-b");
    let address = lab.block("10.0.0.0/26", Some("node-a"), &[to_pod("node-a", "pod")]);
    lab.pod("pod", "node-a", &address);
    lab.block("10.0.0.64/26", Some("node-a"), &[]);
    lab.block("fd00::/122", Some("node-a"), &[]);
    for block in ["10.0.1.0/26", "10.0.1.64/26", "10.0.1.128/26"] {
        lab.block(block, Some("node-b"), &[]);
    }
    let collecting = lab.collect(with_a_long_grace_period(lab));
    collecting.has_looked();
    collecting.pass_after(LONG_GRACE / 2);
    collecting.pass_after(LONG_GRACE / 4);
    assert_eq!(lab.blocks().len(), 6);
    collecting.as_time_goes_by(LONG_GRACE / 2, "three blocks", || {
        lab.blocks().len() == 3 && lab.affinities().len() == 3
    });
    collecting.pass_after(LONG_GRACE * 2);
    collecting.pass_after(LONG_GRACE * 2);
    let left = lab.blocks();
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
    assert_eq!(lab.held().len(), 1);
}

/// The pool was created again with smaller blocks. Of the blocks of another size, those with
/// addresses and those in a disabled pool stay. Overlapping blocks with addresses, the inner one of
/// upstream's plugin, stay unchanged.
#[on(etcd, kubernetes_v1)]
fn empty_blocks_of_a_former_size_go_with_their_affinity(lab: &Lab<'_>) {
    lab.pool("pool", "10.0.0.0/16", 28);
    lab.disabled_pool("disabled", "10.1.0.0/16", 28);
    for node in ["node-a", "node-b", "node-c"] {
        lab.node(node);
    }
    let overlapping = [
        ("10.0.0.0/26", "node-a", "pod"),
        ("10.0.0.16/28", "node-c", "of-upstream"),
    ];
    for (block, node, pod) in overlapping {
        let address = lab.block(block, Some(node), &[to_pod(node, pod)]);
        lab.pod(pod, node, &address);
    }
    let before = overlapping.map(|(block, ..)| lab.stored_block(block));
    lab.block("10.0.0.64/26", Some("node-a"), &[]);
    lab.block("10.0.0.128/28", Some("node-a"), &[]);
    lab.block("10.0.1.0/26", Some("node-b"), &[]);
    lab.block("10.1.0.0/26", Some("node-b"), &[]);
    let collecting = lab.collect(with_a_long_grace_period(lab));
    collecting.has_looked();
    collecting.pass_after(LONG_GRACE / 2);
    collecting.pass_after(LONG_GRACE / 4);
    assert_eq!(lab.blocks().len(), 6);
    collecting.as_time_goes_by(LONG_GRACE / 2, "four blocks", || {
        lab.blocks().len() == 4 && lab.affinities().len() == 4
    });
    collecting.pass_after(LONG_GRACE * 2);
    collecting.pass_after(LONG_GRACE * 2);
    let left: Vec<String> = lab.blocks().into_keys().collect();
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
        overlapping.map(|(block, ..)| lab.stored_block(block)),
        before
    );
}

/// Without a grace period, empty blocks of an existing node stay (KC-438).
#[on(etcd, kubernetes_v1)]
fn empty_blocks_stay_without_a_grace_period(lab: &Lab<'_>) {
    lab.pool("pool", "10.0.0.0/16", 26);
    lab.node("node-a");
    lab.block(
        "10.0.0.0/26",
        Some("node-a"),
        &[to_pod("node-a", "missing")],
    );
    lab.block("10.0.0.64/26", Some("node-a"), &[]);
    let mut settings = lab.settings();
    settings.leak_grace_period = Some(Duration::ZERO);
    let collecting = lab.collect(settings.clone());
    collecting.shows("ipam_allocations_gc_candidates{ippool=\"pool\",node=\"node-a\"} 1");
    collecting.pass_after(LONG_GRACE);
    collecting.pass_after(LONG_GRACE);
    assert_eq!((lab.held().len(), lab.blocks().len()), (1, 2));
    settings.leak_grace_period = Some(GRACE);
    collecting.settings.send_replace(settings.into());
    within(SOON, "the leak and the block", || {
        lab.held().is_empty() && lab.blocks().len() == 1
    });
}

#[on(etcd)]
fn gc_releases_leaks_beside_unreadable_objects_and_a_constant_writer(lab: &Lab<'_>) {
    lab.pool("pool", "10.0.0.0/16", 26);
    lab.node("node-a");
    lab.block(
        "10.0.0.0/26",
        Some("node-a"),
        &[to_pod("node-a", "missing")],
    );
    lab.block("10.0.0.64/26", Some("node-a"), &[to_pod("node-a", "other")]);
    for key in [
        "assignment/ipv4/block/10.0.1.0-26",
        "handle/bad",
        "host/node-a/ipv4/block/10.0.1.0-26",
    ] {
        lab.servers
            .etcd
            .put(&format!("/calico/ipam/v2/{key}"), b"{")
            .unwrap();
    }
    let collecting = lab.collect(lab.settings());
    let key = "/calico/ipam/v2/assignment/ipv4/block/10.0.0.64-26";
    let end = Instant::now() + GRACE + Duration::from_secs(2);
    while Instant::now() < end {
        // The same value with a new revision.
        let bytes = lab.servers.etcd.dump_raw().unwrap().remove(key);
        lab.servers.etcd.put(key, &bytes.unwrap()).unwrap();
        sleep(Duration::from_millis(20));
    }
    let stored = || lab.servers.etcd.dump_raw().unwrap();
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
    drop(collecting);
}

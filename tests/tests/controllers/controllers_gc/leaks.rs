//! Garbage collection of leaked addresses.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::thread::sleep;

use libcalico::ipam::HandleId;

use crate::controllers_gc::collected_cluster::{
    CollectedCluster, GRACE, Given, LONG_GRACE, NAMESPACE, SOON, on, owned, to_pod, to_tunnel,
    within,
};

/// Covers upstream's cases "tunnel not collected", "non-pod allocation kept", "address without pod
/// collected", "valid by podIP", "valid by podIPs", "pod without IP yet kept", "mismatch collected"
/// and "kept within grace".
#[on(etcd, kubernetes_v1)]
fn leaked_addresses_are_released_after_the_grace_period_only(cluster: &CollectedCluster<'_>) {
    cluster.pool("pool", "10.0.0.0/16", 26);
    cluster.node("node-a");
    let other = Given {
        handle: "somebody".into(),
        attributes: [owned(("node", "node-a"))].into(),
    };
    let given = [
        to_tunnel("node-a"),
        other,
        to_pod("node-a", "missing"),
        to_pod("node-a", "running"),
        to_pod("node-a", "second"),
        to_pod("node-a", "silent"),
        to_pod("node-a", "changed"),
        to_pod("node-a", "finished"),
        to_pod("node-a", "elsewhere"),
    ];
    let [
        _,
        _,
        missing,
        running,
        second,
        _,
        changed,
        finished,
        elsewhere,
    ] = cluster.block("10.0.0.0/26", Some("node-a"), &given)[..]
    else {
        panic!("nine addresses");
    };
    let unrelated: IpAddr = "10.0.9.9".parse().unwrap();
    cluster.node("node-b");
    cluster.pod("running", "node-a", &[running]);
    cluster.pod("second", "node-a", &["fd00::9".parse().unwrap(), second]);
    cluster.pod("silent", "node-a", &[]);
    cluster.pod("changed", "node-a", &[unrelated]);
    cluster.pod("finished", "node-a", &[finished]);
    let done = serde_json::json!({ "status": { "phase": "Succeeded" } });
    cluster.servers.merge(
        &format!("/api/v1/namespaces/{NAMESPACE}/pods/finished/status"),
        &done,
    );
    cluster.pod("elsewhere", "node-b", &[unrelated]);
    let collector = cluster.collect_after(LONG_GRACE);
    collector.await_first_pass();
    collector.pass_after(LONG_GRACE / 2);
    collector.pass_after(LONG_GRACE / 4);
    let before = cluster.held();
    assert_eq!(before.len(), 9, "{before:?}");
    collector.pass_after(LONG_GRACE / 2);
    let leaked = BTreeSet::from([missing, changed, finished, elsewhere]);
    within(SOON, "four leaks", || cluster.held().len() == 5);
    collector.pass_after(LONG_GRACE * 2);
    collector.pass_after(LONG_GRACE * 2);
    let held = cluster.held();
    assert_eq!(
        (
            held.len(),
            leaked.iter().find(|address| held.contains_key(address))
        ),
        (5, None),
        "{held:?}"
    );
    let handles: BTreeSet<String> = cluster.handles().into_keys().collect();
    assert_eq!(handles, held.into_values().collect());
    assert_eq!(cluster.blocks().len(), 1, "a node keeps its last block");
    collector.await_metric("ipam_allocations_gc_reclamations{ippool=\"pool\",node=\"node-a\"} 4");
}

#[on(etcd, kubernetes_v1)]
fn deletion_of_a_pod_starts_the_grace_period_without_a_full_pass(cluster: &CollectedCluster<'_>) {
    cluster.pool("pool", "10.0.0.0/16", 26);
    cluster.node("node-a");
    let address = cluster.block("10.0.0.0/26", Some("node-a"), &[to_pod("node-a", "pod")]);
    cluster.pod("pod", "node-a", &address);
    let collector = cluster.collect_after(LONG_GRACE);
    collector.await_first_pass();
    // The grace period begins with the deletion, not with the first look at the address.
    collector.pass_after(LONG_GRACE * 2);
    collector.await_metric("ipam_allocations_gc_candidates{ippool=\"pool\",node=\"node-a\"} 0");
    let looked = collector.full_passes();
    cluster.delete_pod("pod");
    collector.await_metric("ipam_allocations_gc_candidates{ippool=\"pool\",node=\"node-a\"} 1");
    collector.pass_after(LONG_GRACE / 2);
    collector.pass_after(LONG_GRACE / 4);
    assert_eq!(cluster.held().len(), 1);
    collector.pass_after(LONG_GRACE / 2);
    within(SOON, "the address is free", || cluster.held().is_empty());
    assert_eq!(collector.full_passes(), looked);
}

#[on(etcd, kubernetes_v1)]
fn addresses_with_a_shared_handle_are_released_together(cluster: &CollectedCluster<'_>) {
    cluster.pool("pool", "10.0.0.0/16", 26);
    cluster.node("node-a");
    let (mut one, mut other) = (to_pod("node-a", "gone"), to_pod("node-a", "there"));
    (one.handle, other.handle) = ("shared".into(), "shared".into());
    let addresses = cluster.block("10.0.0.0/26", Some("node-a"), &[one, other]);
    cluster.pod("there", "node-a", &addresses[1..]);
    let collector = cluster.collect_after(LONG_GRACE);
    collector.await_metric("ipam_allocations_gc_candidates{ippool=\"pool\",node=\"node-a\"} 1");
    collector.pass_after(LONG_GRACE * 2);
    collector.pass_after(LONG_GRACE * 2);
    assert_eq!(cluster.held().len(), 2);
    cluster.delete_pod("there");
    collector.advance_until(LONG_GRACE, "both", || {
        cluster.held().is_empty() && cluster.handles().is_empty()
    });
}

/// The API server may report the pod after the block.
#[on(etcd, kubernetes_v1)]
fn pod_that_appears_within_the_grace_period_keeps_its_address(cluster: &CollectedCluster<'_>) {
    cluster.pool("pool", "10.0.0.0/16", 26);
    cluster.node("node-a");
    cluster.block("10.0.0.0/26", Some("node-a"), &[to_pod("node-a", "first")]);
    let collector = cluster.collect_after(LONG_GRACE);
    collector.await_metric("ipam_allocations_gc_candidates{ippool=\"pool\",node=\"node-a\"} 1");
    cluster.pod("first", "node-a", &["10.0.0.0".parse().unwrap()]);
    collector.await_metric("ipam_allocations_gc_candidates{ippool=\"pool\",node=\"node-a\"} 0");
    collector.pass_after(LONG_GRACE * 2);
    collector.pass_after(LONG_GRACE * 2);
    assert_eq!(cluster.held().len(), 1);
}

#[on(etcd, kubernetes_v1)]
fn orphan_handles_are_deleted_and_wrong_counts_repaired(cluster: &CollectedCluster<'_>) {
    cluster.pool("pool", "10.0.0.0/16", 26);
    cluster.node("node-a");
    let block = "10.0.0.0/26".parse().unwrap();
    let address = cluster.block("10.0.0.0/26", Some("node-a"), &[to_pod("node-a", "pod")]);
    cluster.pod("pod", "node-a", &address);
    cluster.count(&HandleId::new("k8s-pod-network.pod"), block);
    cluster.count(&HandleId::new("orphan"), block);
    cluster.count(
        &HandleId::new("orphan-of-no-block"),
        "10.9.9.0/26".parse().unwrap(),
    );
    let _collector = cluster.collect_after(GRACE);
    let expected = [("k8s-pod-network.pod".to_owned(), 1)].into();
    within(SOON, "one handle that counts one address", || {
        cluster.handles() == expected
    });
    assert_eq!(cluster.held().len(), 1);
}

#[on(etcd, kubernetes_v1)]
fn gc_does_not_write_until_the_datastore_is_ready(cluster: &CollectedCluster<'_>) {
    cluster.pool("pool", "10.0.0.0/16", 26);
    cluster.node("node-a");
    cluster.block(
        "10.0.0.0/26",
        Some("node-a"),
        &[to_pod("node-a", "missing")],
    );
    cluster.set_ready(false);
    let collector = cluster.collect_after(LONG_GRACE);
    collector.await_first_pass();
    collector.pass_after(LONG_GRACE * 2);
    collector.pass_after(LONG_GRACE * 2);
    assert_eq!((cluster.held().len(), cluster.handles().len()), (1, 1));
    cluster.set_ready(true);
    collector.advance_until(LONG_GRACE, "the leak", || {
        cluster.held().is_empty() && cluster.handles().is_empty()
    });
}

/// A pod that reports another address still runs, and its endpoint may be newer than its status.
#[on(etcd)]
fn address_in_an_endpoint_is_released_only_after_the_endpoint_is_deleted(
    cluster: &CollectedCluster<'_>,
) {
    cluster.pool("pool", "10.0.0.0/16", 26);
    cluster.node("node-a");
    let given = ["gone", "changed", "gone-too", "next"].map(|pod| to_pod("node-a", pod));
    let [gone, changed, unlisted, passed] =
        cluster.block("10.0.0.0/26", Some("node-a"), &given)[..]
    else {
        panic!("four")
    };
    cluster.endpoint("node-a", "gone", "gone", gone);
    cluster.endpoint(
        "node-a",
        "gone-too",
        "gone-too",
        "10.0.9.9".parse().unwrap(),
    );
    cluster.endpoint("node-a", "changed", "changed", changed);
    cluster.endpoint("node-a", "next", "later-sandbox", passed);
    cluster.pod("changed", "node-a", &["10.0.9.8".parse().unwrap()]);
    let _collector = cluster.collect_after(GRACE);
    within(SOON, "two leaks", || {
        let (held, endpoints) = (cluster.held(), cluster.endpoints());
        assert!(
            held.contains_key(&gone) || !endpoints.contains(&"node--a-k8s-gone-eth0".into()),
            "the address is free and its endpoint lists it: {held:?} {endpoints:?}"
        );
        held.len() == 2
    });
    sleep(GRACE);
    let held = cluster.held();
    assert!(
        held.contains_key(&changed) && held.contains_key(&passed) && !held.contains_key(&unlisted),
        "{held:?}"
    );
    let endpoints = [
        "node--a-k8s-changed-eth0",
        "node--a-k8s-gone--too-eth0",
        "node--a-k8s-next-eth0",
    ];
    assert_eq!(cluster.endpoints(), endpoints);
}

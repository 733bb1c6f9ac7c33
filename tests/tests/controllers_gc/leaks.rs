//! Garbage collection of leaked addresses.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::thread::sleep;

use libcalico::ipam::HandleId;

use crate::lab::{
    GRACE, Given, LONG_GRACE, Lab, NAMESPACE, SOON, owned, to_pod, to_tunnel,
    with_a_long_grace_period, within,
};

/// Covers upstream's cases "tunnel not collected", "non-pod allocation kept", "address without pod
/// collected", "valid by podIP", "valid by podIPs", "pod without IP yet kept", "mismatch collected"
/// and "kept within grace".
#[on(etcd, kubernetes_v1)]
fn leaked_addresses_are_released_after_the_grace_period_only(lab: &Lab<'_>) {
    lab.pool("pool", "10.0.0.0/16", 26);
    lab.node("node-a");
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
    ] = lab.block("10.0.0.0/26", Some("node-a"), &given)[..]
    else {
        panic!("nine addresses");
    };
    let unrelated: IpAddr = "10.0.9.9".parse().unwrap();
    lab.node("node-b");
    lab.pod("running", "node-a", &[running]);
    lab.pod("second", "node-a", &["fd00::9".parse().unwrap(), second]);
    lab.pod("silent", "node-a", &[]);
    lab.pod("changed", "node-a", &[unrelated]);
    lab.pod("finished", "node-a", &[finished]);
    let done = serde_json::json!({ "status": { "phase": "Succeeded" } });
    lab.admin()
        .patch(
            &format!("/api/v1/namespaces/{NAMESPACE}/pods/finished/status"),
            &done,
        )
        .unwrap()
        .success()
        .unwrap();
    lab.pod("elsewhere", "node-b", &[unrelated]);
    let collecting = lab.collect(with_a_long_grace_period(lab));
    collecting.has_looked();
    collecting.pass_after(LONG_GRACE / 2);
    collecting.pass_after(LONG_GRACE / 4);
    let before = lab.held();
    assert_eq!(before.len(), 9, "{before:?}");
    collecting.pass_after(LONG_GRACE / 2);
    let leaked = BTreeSet::from([missing, changed, finished, elsewhere]);
    within(SOON, "four leaks", || lab.held().len() == 5);
    collecting.pass_after(LONG_GRACE * 2);
    collecting.pass_after(LONG_GRACE * 2);
    let held = lab.held();
    assert_eq!(
        (
            held.len(),
            leaked.iter().find(|address| held.contains_key(address))
        ),
        (5, None),
        "{held:?}"
    );
    let handles: BTreeSet<String> = lab.handles().into_keys().collect();
    assert_eq!(handles, held.into_values().collect());
    assert_eq!(lab.blocks().len(), 1, "a node keeps its last block");
    collecting.shows("ipam_allocations_gc_reclamations{ippool=\"pool\",node=\"node-a\"} 4");
}

#[on(etcd, kubernetes_v1)]
fn deletion_of_a_pod_starts_the_grace_period_without_a_full_pass(lab: &Lab<'_>) {
    lab.pool("pool", "10.0.0.0/16", 26);
    lab.node("node-a");
    let address = lab.block("10.0.0.0/26", Some("node-a"), &[to_pod("node-a", "pod")]);
    lab.pod("pod", "node-a", &address);
    let collecting = lab.collect(with_a_long_grace_period(lab));
    collecting.has_looked();
    // The grace period begins with the deletion, not with the first look at the address.
    collecting.pass_after(LONG_GRACE * 2);
    collecting.shows("ipam_allocations_gc_candidates{ippool=\"pool\",node=\"node-a\"} 0");
    let looked = collecting.full_passes();
    lab.delete_pod("pod");
    collecting.shows("ipam_allocations_gc_candidates{ippool=\"pool\",node=\"node-a\"} 1");
    collecting.pass_after(LONG_GRACE / 2);
    collecting.pass_after(LONG_GRACE / 4);
    assert_eq!(lab.held().len(), 1);
    collecting.pass_after(LONG_GRACE / 2);
    within(SOON, "the address is free", || lab.held().is_empty());
    assert_eq!(collecting.full_passes(), looked);
}

#[on(etcd, kubernetes_v1)]
fn addresses_with_a_shared_handle_are_released_together(lab: &Lab<'_>) {
    lab.pool("pool", "10.0.0.0/16", 26);
    lab.node("node-a");
    let (mut one, mut other) = (to_pod("node-a", "gone"), to_pod("node-a", "there"));
    (one.handle, other.handle) = ("shared".into(), "shared".into());
    let addresses = lab.block("10.0.0.0/26", Some("node-a"), &[one, other]);
    lab.pod("there", "node-a", &addresses[1..]);
    let collecting = lab.collect(with_a_long_grace_period(lab));
    collecting.shows("ipam_allocations_gc_candidates{ippool=\"pool\",node=\"node-a\"} 1");
    collecting.pass_after(LONG_GRACE * 2);
    collecting.pass_after(LONG_GRACE * 2);
    assert_eq!(lab.held().len(), 2);
    lab.delete_pod("there");
    collecting.as_time_goes_by(LONG_GRACE, "both", || {
        lab.held().is_empty() && lab.handles().is_empty()
    });
}

/// The API server may report the pod after the block.
#[on(etcd, kubernetes_v1)]
fn pod_that_appears_within_the_grace_period_keeps_its_address(lab: &Lab<'_>) {
    lab.pool("pool", "10.0.0.0/16", 26);
    lab.node("node-a");
    lab.block("10.0.0.0/26", Some("node-a"), &[to_pod("node-a", "first")]);
    let collecting = lab.collect(with_a_long_grace_period(lab));
    collecting.shows("ipam_allocations_gc_candidates{ippool=\"pool\",node=\"node-a\"} 1");
    lab.pod("first", "node-a", &["10.0.0.0".parse().unwrap()]);
    collecting.shows("ipam_allocations_gc_candidates{ippool=\"pool\",node=\"node-a\"} 0");
    collecting.pass_after(LONG_GRACE * 2);
    collecting.pass_after(LONG_GRACE * 2);
    assert_eq!(lab.held().len(), 1);
}

#[on(etcd, kubernetes_v1)]
fn orphan_handles_are_deleted_and_wrong_counts_repaired(lab: &Lab<'_>) {
    lab.pool("pool", "10.0.0.0/16", 26);
    lab.node("node-a");
    let block = "10.0.0.0/26".parse().unwrap();
    let address = lab.block("10.0.0.0/26", Some("node-a"), &[to_pod("node-a", "pod")]);
    lab.pod("pod", "node-a", &address);
    lab.count(&HandleId::new("k8s-pod-network.pod"), block);
    lab.count(&HandleId::new("orphan"), block);
    lab.count(
        &HandleId::new("orphan-of-no-block"),
        "10.9.9.0/26".parse().unwrap(),
    );
    let _collecting = lab.collect(lab.settings());
    let expected = [("k8s-pod-network.pod".to_owned(), 1)].into();
    within(SOON, "one handle that counts one address", || {
        lab.handles() == expected
    });
    assert_eq!(lab.held().len(), 1);
}

#[on(etcd, kubernetes_v1)]
fn gc_does_not_write_until_the_datastore_is_ready(lab: &Lab<'_>) {
    lab.pool("pool", "10.0.0.0/16", 26);
    lab.node("node-a");
    lab.block(
        "10.0.0.0/26",
        Some("node-a"),
        &[to_pod("node-a", "missing")],
    );
    lab.set_ready(false);
    let collecting = lab.collect(with_a_long_grace_period(lab));
    collecting.has_looked();
    collecting.pass_after(LONG_GRACE * 2);
    collecting.pass_after(LONG_GRACE * 2);
    assert_eq!((lab.held().len(), lab.handles().len()), (1, 1));
    lab.set_ready(true);
    collecting.as_time_goes_by(LONG_GRACE, "the leak", || {
        lab.held().is_empty() && lab.handles().is_empty()
    });
}

/// A pod that reports another address still runs, and its endpoint may be newer than its status.
#[on(etcd)]
fn address_in_an_endpoint_is_released_only_after_the_endpoint_is_deleted(lab: &Lab<'_>) {
    lab.pool("pool", "10.0.0.0/16", 26);
    lab.node("node-a");
    let given = ["gone", "changed", "gone-too", "next"].map(|pod| to_pod("node-a", pod));
    let [gone, changed, unlisted, passed] = lab.block("10.0.0.0/26", Some("node-a"), &given)[..]
    else {
        panic!("four")
    };
    lab.endpoint("node-a", "gone", "gone", gone);
    lab.endpoint(
        "node-a",
        "gone-too",
        "gone-too",
        "10.0.9.9".parse().unwrap(),
    );
    lab.endpoint("node-a", "changed", "changed", changed);
    lab.endpoint("node-a", "next", "later-sandbox", passed);
    lab.pod("changed", "node-a", &["10.0.9.8".parse().unwrap()]);
    let _collecting = lab.collect(lab.settings());
    within(SOON, "two leaks", || {
        let (held, endpoints) = (lab.held(), lab.endpoints());
        assert!(
            held.contains_key(&gone) || !endpoints.contains(&"node--a-k8s-gone-eth0".into()),
            "the address is free and its endpoint lists it: {held:?} {endpoints:?}"
        );
        held.len() == 2
    });
    sleep(GRACE);
    let held = lab.held();
    assert!(
        held.contains_key(&changed) && held.contains_key(&passed) && !held.contains_key(&unlisted),
        "{held:?}"
    );
    let endpoints = [
        "node--a-k8s-changed-eth0",
        "node--a-k8s-gone--too-eth0",
        "node--a-k8s-next-eth0",
    ];
    assert_eq!(lab.endpoints(), endpoints);
}

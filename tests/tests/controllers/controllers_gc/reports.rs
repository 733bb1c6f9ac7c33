//! Metrics, Events and reports of garbage collection.

use std::thread::sleep;
use std::time::Duration;

use kube_controllers::leader::LeadershipTerm;
use kube_controllers::settings::GcMode;

use crate::controllers_gc::collected_cluster::{
    COLLECTOR, CollectedCluster, GRACE, LONG_GRACE, NAMESPACE, SOON, on, to_pod, within,
};

/// Covers upstream's case "should export metrics for IPAM state".
#[on(etcd, kubernetes_v1)]
fn gc_metrics_equal_those_of_upstream(cluster: &CollectedCluster<'_>) {
    for node in ["node-a", "node-b"] {
        cluster.node(node);
    }
    cluster.pool("test-ippool-1", "192.168.0.0/24", 26);
    // The addresses exist before their pods, and the index shows a leak only until its release.
    let collector = cluster.collect_after(LONG_GRACE);
    for name in [
        "ipam_allocations_in_use",
        "ipam_allocations_borrowed",
        "ipam_allocations_gc_candidates",
    ] {
        for node in ["node-a", "node-b"] {
            collector.await_metric(&format!(
                "{name}{{ippool=\"test-ippool-1\",node=\"{node}\"}} 0"
            ));
        }
    }
    collector.await_metric("ipam_ippool_size{ippool=\"test-ippool-1\"} 256");
    let on = |pod: &str| to_pod("node-a", pod);
    let own = cluster.block(
        "192.168.0.0/26",
        Some("node-a"),
        &[on("a1"), on("a2"), on("a3")],
    );
    let borrowed = cluster.block("192.168.0.64/26", Some("node-b"), &[on("a4")]);
    for (pod, address) in [
        ("a1", own[0]),
        ("a2", own[1]),
        ("a3", own[2]),
        ("a4", borrowed[0]),
    ] {
        cluster.pod(pod, "node-a", &[address]);
    }
    cluster.block("192.168.0.128/26", None, &[]);
    for line in [
        "ipam_allocations_in_use{ippool=\"test-ippool-1\",node=\"node-a\"} 4",
        "ipam_allocations_borrowed{ippool=\"test-ippool-1\",node=\"node-a\"} 1",
        "ipam_blocks{ippool=\"test-ippool-1\",node=\"no_affinity\"} 1",
        "ipam_allocations_per_node{node=\"node-a\"} 4",
        "ipam_allocations_borrowed_per_node{node=\"node-a\"} 1",
        "ipam_blocks_per_node{node=\"node-b\"} 1",
        "ipam_allocations_gc_candidates{ippool=\"test-ippool-1\",node=\"node-a\"} 0",
    ] {
        collector.await_metric(line);
    }
    cluster.delete_pod("a4");
    collector
        .await_metric("ipam_allocations_gc_candidates{ippool=\"test-ippool-1\",node=\"node-a\"} 1");
    collector.pass_after(LONG_GRACE * 2);
    collector.await_metric(
        "ipam_allocations_gc_reclamations{ippool=\"test-ippool-1\",node=\"node-a\"} 1",
    );
    assert!(!collector.metrics().contains("borrowed_per_node"));
}

#[on(etcd, kubernetes_v1)]
fn gc_writes_only_while_leader(cluster: &CollectedCluster<'_>) {
    cluster.pool("pool", "10.0.0.0/16", 26);
    cluster.node("node-a");
    cluster.block(
        "10.0.0.0/26",
        Some("node-a"),
        &[to_pod("node-a", "missing")],
    );
    cluster.block("10.0.0.64/26", Some("node-a"), &[]);
    cluster.block("10.0.0.128/26", Some("gone"), &[]);
    let collector = cluster.collect_after(LONG_GRACE);
    collector.set_term(LeadershipTerm::No);
    collector.await_first_pass();
    collector.pass_after(LONG_GRACE * 2);
    collector.pass_after(LONG_GRACE * 2);
    // The replica was the leader for a moment before, in which it may have acted, but the leak was
    // not confirmed then.
    assert_eq!(cluster.held().len(), 1);
    assert!(cluster.blocks().contains_key("10.0.0.64/26"));
    collector.set_term(LeadershipTerm::Always);
    collector.advance_until(LONG_GRACE, "the leak", || cluster.held().is_empty());
    collector.advance_until(LONG_GRACE, "the blocks", || {
        cluster.blocks().len() == 1 && cluster.affinities().len() == 1
    });
}

/// Shows SEC-25.
#[on(kubernetes_v1)]
fn gc_in_report_mode_lists_leaks_and_releases_none(cluster: &CollectedCluster<'_>) {
    cluster.pool("pool", "10.0.0.0/16", 26);
    cluster.node("node-a");
    cluster.block(
        "10.0.0.0/26",
        Some("node-a"),
        &[to_pod("node-a", "missing")],
    );
    cluster.block("10.0.0.64/26", Some("node-a"), &[]);
    cluster.block("10.0.0.128/26", Some("gone"), &[to_pod("gone", "other")]);
    cluster.count(
        &libcalico::ipam::HandleId::new("orphan"),
        "10.0.0.0/26".parse().unwrap(),
    );
    let audit = cluster.servers.api.audit().unwrap();
    let collector = cluster.collect(|settings| settings.gc_mode = GcMode::Report);
    collector.await_metric("kube_controllers_gc_reported_total 2");
    collector.await_metric("kube_controllers_gc_wrong_handles 1");
    sleep(GRACE);
    assert_eq!(
        (
            cluster.held().len(),
            cluster.blocks().len(),
            cluster.handles().len()
        ),
        (2, 3, 3)
    );
    collector.await_metric("kube_controllers_gc_reported_total 2");
    let requests = audit.of(COLLECTOR).unwrap();
    let written: Vec<String> = requests
        .iter()
        .filter(|request| !matches!(request.verb.as_str(), "get" | "list" | "watch"))
        .map(|request| request.to_string())
        .collect();
    assert!(
        written
            .iter()
            .all(|line| line.starts_with("create events default/")),
        "{written:?}"
    );
    assert_eq!(written.len(), 2, "one for each node: {written:?}");
    let events = cluster
        .servers
        .admin()
        .events_of_controllers("default")
        .unwrap();
    let messages: Vec<&str> = events
        .iter()
        .filter_map(|event| event["message"].as_str())
        .collect();
    let leak = "1 leaked address(es): 10.0.0.0 (its pod is gone)";
    assert!(
        messages.iter().any(|text| text.contains(leak)),
        "{messages:?}"
    );
    // A tenant of the namespace `default` can read these Events.
    assert!(
        messages.iter().all(|text| !text.contains("suite/")),
        "{messages:?}"
    );
    let log = collector.log();
    let leaks: Vec<&str> = log
        .lines()
        .filter(|line| line.contains(": an address is leaked "))
        .collect();
    let is_named = |pod: &str| {
        leaks
            .iter()
            .any(|line| line.contains(&format!(" pod={NAMESPACE}/{pod} ")))
    };
    assert!(is_named("missing") && is_named("other"), "{leaks:?}");
}

/// Shows SEC-22.
#[on(kubernetes_v1)]
fn event_on_the_pod_of_a_tenant_names_no_pod_of_another_namespace(cluster: &CollectedCluster<'_>) {
    cluster.pool("pool", "10.0.0.0/16", 26);
    cluster.node("node-a");
    let mut other = to_pod("node-a", "web");
    other.attributes.insert("namespace".into(), "bank".into());
    let addresses = cluster.block("10.0.0.0/26", Some("node-a"), &[other]);
    cluster.pod("late", "node-a", &addresses);
    let collector = cluster.collect_after(LONG_GRACE);
    let messages = || {
        let events = cluster
            .servers
            .admin()
            .events_of_controllers(NAMESPACE)
            .unwrap();
        let conflicts = events
            .iter()
            .filter(|event| event["reason"] == "AddressNotAllocated");
        conflicts
            .filter_map(|event| event["message"].as_str().map(str::to_owned))
            .collect::<Vec<String>>()
    };
    collector.advance_until(Duration::from_secs(60), "an Event", || {
        !messages().is_empty()
    });
    let messages = messages();
    let begin = "this pod uses 10.0.0.0, which IPAM has allocated to another namespace, so ";
    assert!(
        messages.len() == 1 && messages[0].starts_with(begin),
        "{messages:?}"
    );
    assert!(
        !messages[0].contains("bank") && !messages[0].contains("web"),
        "{messages:?}"
    );
    within(SOON, "a log line", || {
        collector.log().contains("allocated to pod bank/web")
    });
}

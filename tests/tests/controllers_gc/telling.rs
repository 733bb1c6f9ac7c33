//! Metrics, Events and reports of garbage collection.

use std::thread::sleep;
use std::time::Duration;

use kube_controllers::leader::LeadershipTerm;
use kube_controllers::settings::GcMode;

use crate::lab::{
    COLLECTOR, GRACE, LONG_GRACE, Lab, NAMESPACE, SOON, to_pod, with_a_long_grace_period, within,
};

/// Covers upstream's case "should export metrics for IPAM state".
#[on(etcd, kubernetes_v1)]
fn gc_metrics_equal_those_of_upstream(lab: &Lab<'_>) {
    for node in ["node-a", "node-b"] {
        lab.node(node);
    }
    lab.pool("test-ippool-1", "192.168.0.0/24", 26);
    // The addresses exist before their pods, and the index shows a leak only until its release.
    let collecting = lab.collect(with_a_long_grace_period(lab));
    for name in [
        "ipam_allocations_in_use",
        "ipam_allocations_borrowed",
        "ipam_allocations_gc_candidates",
    ] {
        for node in ["node-a", "node-b"] {
            collecting.shows(&format!(
                "{name}{{ippool=\"test-ippool-1\",node=\"{node}\"}} 0"
            ));
        }
    }
    collecting.shows("ipam_ippool_size{ippool=\"test-ippool-1\"} 256");
    let on = |pod: &str| to_pod("node-a", pod);
    let own = lab.block(
        "192.168.0.0/26",
        Some("node-a"),
        &[on("a1"), on("a2"), on("a3")],
    );
    let borrowed = lab.block("192.168.0.64/26", Some("node-b"), &[on("a4")]);
    for (pod, address) in [
        ("a1", own[0]),
        ("a2", own[1]),
        ("a3", own[2]),
        ("a4", borrowed[0]),
    ] {
        lab.pod(pod, "node-a", &[address]);
    }
    lab.block("192.168.0.128/26", None, &[]);
    for line in [
        "ipam_allocations_in_use{ippool=\"test-ippool-1\",node=\"node-a\"} 4",
        "ipam_allocations_borrowed{ippool=\"test-ippool-1\",node=\"node-a\"} 1",
        "ipam_blocks{ippool=\"test-ippool-1\",node=\"no_affinity\"} 1",
        "ipam_allocations_per_node{node=\"node-a\"} 4",
        "ipam_allocations_borrowed_per_node{node=\"node-a\"} 1",
        "ipam_blocks_per_node{node=\"node-b\"} 1",
        "ipam_allocations_gc_candidates{ippool=\"test-ippool-1\",node=\"node-a\"} 0",
    ] {
        collecting.shows(line);
    }
    lab.delete_pod("a4");
    collecting.shows("ipam_allocations_gc_candidates{ippool=\"test-ippool-1\",node=\"node-a\"} 1");
    collecting.pass_after(LONG_GRACE * 2);
    collecting
        .shows("ipam_allocations_gc_reclamations{ippool=\"test-ippool-1\",node=\"node-a\"} 1");
    assert!(!collecting.metrics().contains("borrowed_per_node"));
}

#[on(etcd, kubernetes_v1)]
fn gc_writes_only_while_leader(lab: &Lab<'_>) {
    lab.pool("pool", "10.0.0.0/16", 26);
    lab.node("node-a");
    lab.block(
        "10.0.0.0/26",
        Some("node-a"),
        &[to_pod("node-a", "missing")],
    );
    lab.block("10.0.0.64/26", Some("node-a"), &[]);
    lab.block("10.0.0.128/26", Some("gone"), &[]);
    let collecting = lab.collect(with_a_long_grace_period(lab));
    collecting.term.send_replace(LeadershipTerm::No);
    collecting.has_looked();
    collecting.pass_after(LONG_GRACE * 2);
    collecting.pass_after(LONG_GRACE * 2);
    // The replica was the leader for a moment before, in which it may have acted, but the leak was
    // not confirmed then.
    assert_eq!(lab.held().len(), 1);
    assert!(lab.blocks().contains_key("10.0.0.64/26"));
    collecting.term.send_replace(LeadershipTerm::Always);
    collecting.as_time_goes_by(LONG_GRACE, "the leak", || lab.held().is_empty());
    collecting.as_time_goes_by(LONG_GRACE, "the blocks", || {
        lab.blocks().len() == 1 && lab.affinities().len() == 1
    });
}

#[on(kubernetes_v1)]
fn gc_in_report_mode_lists_leaks_and_releases_none(lab: &Lab<'_>) {
    lab.pool("pool", "10.0.0.0/16", 26);
    lab.node("node-a");
    lab.block(
        "10.0.0.0/26",
        Some("node-a"),
        &[to_pod("node-a", "missing")],
    );
    lab.block("10.0.0.64/26", Some("node-a"), &[]);
    lab.block("10.0.0.128/26", Some("gone"), &[to_pod("gone", "other")]);
    lab.count(
        &libcalico::ipam::HandleId::new("orphan"),
        "10.0.0.0/26".parse().unwrap(),
    );
    let audit = lab.servers.api.audit().unwrap();
    let mut settings = lab.settings();
    settings.gc_mode = GcMode::Report;
    let collecting = lab.collect(settings);
    collecting.shows("kube_controllers_gc_reported_total 2");
    collecting.shows("kube_controllers_gc_wrong_handles 1");
    sleep(GRACE);
    assert_eq!(
        (lab.held().len(), lab.blocks().len(), lab.handles().len()),
        (2, 3, 3)
    );
    collecting.shows("kube_controllers_gc_reported_total 2");
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
    let events = lab.admin().events_of_controllers("default").unwrap();
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
    let log = collecting.log();
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

#[on(kubernetes_v1)]
fn event_on_the_pod_of_a_tenant_names_no_pod_of_another_namespace(lab: &Lab<'_>) {
    lab.pool("pool", "10.0.0.0/16", 26);
    lab.node("node-a");
    let mut other = to_pod("node-a", "web");
    other.attributes.insert("namespace".into(), "bank".into());
    let addresses = lab.block("10.0.0.0/26", Some("node-a"), &[other]);
    lab.pod("late", "node-a", &addresses);
    let collecting = lab.collect(with_a_long_grace_period(lab));
    let messages = || {
        let events = lab.admin().events_of_controllers(NAMESPACE).unwrap();
        let conflicts = events
            .iter()
            .filter(|event| event["reason"] == "AddressNotAllocated");
        conflicts
            .filter_map(|event| event["message"].as_str().map(str::to_owned))
            .collect::<Vec<String>>()
    };
    collecting.as_time_goes_by(Duration::from_secs(60), "an Event", || {
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
        collecting.log().contains("allocated to pod bank/web")
    });
}

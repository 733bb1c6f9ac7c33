//! The metrics of replicas: those of work on a standby, and those of requests beside the audit log.

use std::collections::BTreeMap;

use integration_tests::controllers::{Controllers, METRICS_PORT, PATIENCE, await_that, metrics};
use integration_tests::kubernetes::Request;

use crate::controllers_leader::replicas::{LEADS, Replicas, on};

/// The replicas share a host, so each needs a port of its own.
const STANDBY_PORT: u16 = 9098;
/// Metrics that are 0 on a replica that has never led.
const OF_WORK: [&str; 8] = [
    "workqueue_depth",
    "workqueue_adds_total",
    "workqueue_queue_duration_seconds_count",
    "workqueue_unfinished_work_seconds",
    "workqueue_longest_running_processor_seconds",
    "controller_runtime_reconcile_total",
    "controller_runtime_reconcile_errors_total",
    "controller_runtime_reconcile_time_seconds_count",
];
const ADDED: &str = "workqueue_adds_total{name=\"host-endpoints\"}";
const COLLECTED: &str = "controller_runtime_reconcile_total{controller=\"gc\",result=\"success\"}";
const REQUESTS: &str = "rest_client_requests_total{";
const DURATIONS: &str = "rest_client_request_duration_seconds_count{";
/// The audit policy of the tests leaves these requests out.
const UNLOGGED: &str = "selfsubjectaccessreviews";

fn start_standby(replicas: &Replicas<'_>) -> Controllers {
    let setup = replicas
        .setup("two", "system:masters")
        .env("PROMETHEUS_METRICS_PORT", STANDBY_PORT.to_string());
    setup.start(replicas.cluster.host, "two").unwrap()
}

/// Returns the series of a metric in a page.
fn series<'p>(page: &'p str, metric: &str) -> Vec<&'p str> {
    let of_metric = |line: &&str| {
        line.strip_prefix(metric)
            .is_some_and(|rest| rest.starts_with('{'))
    };
    page.lines().filter(of_metric).collect()
}

/// Returns the value of one series, or 0 if it is missing.
fn value(page: &str, series: &str) -> f64 {
    let value = page
        .lines()
        .find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    value.map_or(0.0, |value| value.parse().unwrap())
}

#[track_caller]
fn await_page(port: u16, expected: &str, is_so: impl Fn(&str) -> bool) -> String {
    let mut page = String::new();
    let seen = await_that(PATIENCE, || {
        page = metrics(port).unwrap_or_default();
        Ok(is_so(&page))
    });
    assert!(seen.is_ok(), "{expected}:\n{page}");
    page
}

/// Returns true if the replica has listed the nodes, so that its queues have their keys.
fn has_listed(page: &str) -> bool {
    let feeds = series(page, "kube_controllers_feed_synced").into_iter();
    let of_nodes: Vec<_> = feeds.filter(|feed| feed.contains("kind=\"Node")).collect();
    !of_nodes.is_empty() && of_nodes.iter().all(|feed| feed.ends_with(" 1"))
}

#[on(kubernetes_v1)]
fn standby_publishes_an_empty_queue(replicas: &Replicas<'_>) {
    let mut leader = replicas.start("one", "system:masters");
    leader.await_log(LEADS, 1).unwrap();
    let endpoints = [replicas.node(), replicas.node(), replicas.node()];
    endpoints
        .iter()
        .for_each(|endpoint| replicas.await_endpoint(endpoint));
    let standby = start_standby(replicas);
    let page = await_page(STANDBY_PORT, "the standby has listed the nodes", has_listed);
    for metric in OF_WORK {
        let series = series(&page, metric);
        assert!(
            !series.is_empty() && series.iter().all(|series| series.ends_with(" 0")),
            "{metric}: {series:#?}"
        );
    }
    assert!(
        page.contains(REQUESTS),
        "a standby sends requests, and they count:\n{page}"
    );
    let nodes = endpoints.len() as f64;
    await_page(METRICS_PORT, "the leader has added the nodes", |page| {
        value(page, ADDED) >= nodes
    });
    await_page(METRICS_PORT, "the leader has collected", |page| {
        value(page, COLLECTED) > 0.0
    });

    leader.terminate().unwrap();
    standby.await_log(LEADS, 1).unwrap();
    await_page(STANDBY_PORT, "the keys that waited count", |page| {
        value(page, ADDED) >= nodes
    });
    await_page(STANDBY_PORT, "the new leader has collected", |page| {
        value(page, COLLECTED) > 0.0
    });
}

/// Returns the values of the series that begin with `metric`, by the values of some labels.
fn counted(page: &str, metric: &str, by: &[&str]) -> BTreeMap<String, u64> {
    let mut counts = BTreeMap::new();
    for (labels, count) in page
        .lines()
        .filter_map(|line| line.strip_prefix(metric)?.split_once("} "))
    {
        let labels: BTreeMap<_, _> = labels
            .split(',')
            .filter_map(|label| label.split_once('='))
            .collect();
        let value = |name: &str| labels[name].trim_matches('"');
        if value("kind") != UNLOGGED {
            let values: Vec<&str> = by.iter().map(|name| value(name)).collect();
            counts.insert(values.join(" "), count.parse().unwrap());
        }
    }
    counts
}

/// Returns the sums of counts by verb, kind and code over all codes.
fn of_all_codes(counts: &BTreeMap<String, u64>) -> BTreeMap<String, u64> {
    let mut sums = BTreeMap::new();
    for (labels, count) in counts {
        let (verb_and_kind, _) = labels.rsplit_once(' ').unwrap();
        *sums.entry(verb_and_kind.to_owned()).or_insert(0) += *count;
    }
    sums
}

/// Returns the counts of the audit log by verb, kind and code.
fn logged(requests: &[Request]) -> BTreeMap<String, u64> {
    let mut counts = BTreeMap::new();
    for Request {
        verb,
        resource,
        code,
        ..
    } in requests
    {
        let verb = if verb == "deletecollection" {
            "delete"
        } else {
            verb.as_str()
        };
        // The log has the path of a request that concerns no kind.
        let kind = if resource.starts_with('/') {
            "other"
        } else {
            resource.as_str()
        };
        let code = code.map_or_else(|| "<error>".to_owned(), |code| code.to_string());
        *counts.entry(format!("{verb} {kind} {code}")).or_insert(0) += 1;
    }
    counts
}

/// The metrics name each kind by itself, so the closed list of kinds has all that kube-controllers
/// uses.
#[on(kubernetes_v1)]
fn requests_of_the_api_server_are_counted_as_its_audit_does(replicas: &Replicas<'_>) {
    let replica = replicas.start("one", "system:masters");
    replica.await_log(LEADS, 1).unwrap();
    for endpoint in [replicas.node(), replicas.node()] {
        replicas.await_endpoint(&endpoint);
    }
    await_page(METRICS_PORT, "the replica has listed the nodes", has_listed);
    // The replica renews its Lease meanwhile. The counts are compared between two renewals.
    let mut last = [BTreeMap::new(), BTreeMap::new(), BTreeMap::new()];
    let same = await_that(PATIENCE, || {
        let before = logged(&replicas.audit.of("one")?);
        let page = metrics(METRICS_PORT)?;
        let shown = counted(&page, REQUESTS, &["verb", "kind", "code"]);
        let timed = counted(&page, DURATIONS, &["verb", "kind"]);
        let is_quiet = logged(&replicas.audit.of("one")?) == before;
        last = [before, shown, timed];
        Ok(is_quiet && last[0] == last[1] && of_all_codes(&last[0]) == last[2])
    });
    let [logged, shown, timed] = last;
    assert!(
        same.is_ok(),
        "the log has {logged:#?}\nthe metrics have {shown:#?}\nand times of {timed:#?}"
    );
    for expected in [
        "watch nodes 200",
        "create hostendpoints 201",
        "update leases 200",
        "get other 200",
    ] {
        assert!(
            shown.contains_key(expected),
            "{expected} is missing: {shown:#?}"
        );
    }
}

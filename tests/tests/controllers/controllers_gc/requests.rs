//! The number of requests of a garbage collection.

use std::collections::BTreeMap;
use std::time::Instant;

use integration_tests::kubernetes::Request;

use crate::controllers_gc::collected_cluster::{
    COLLECTOR, CollectedCluster, GRACE, LONG_GRACE, SOON, on, to_pod, within,
};

/// Number of blocks, and number of leaked addresses in each.
const BLOCKS: usize = 40;
const EACH: usize = 25;

fn filled(cluster: &CollectedCluster<'_>) {
    cluster.pool("pool", "10.0.0.0/16", 26);
    for block in 0..BLOCKS {
        let node = format!("node-{block}");
        cluster.node(&node);
        let given: Vec<_> = (0..EACH)
            .map(|n| to_pod(&node, &format!("pod-{block}-{n}")))
            .collect();
        cluster.block(
            &format!("10.0.{}.{}/26", block / 4, block % 4 * 64),
            Some(&node),
            &given,
        );
    }
}

fn counts(requests: &[Request]) -> BTreeMap<(String, String), usize> {
    let mut counts = BTreeMap::new();
    for request in requests {
        *counts
            .entry((request.verb.clone(), request.resource.clone()))
            .or_default() += 1;
    }
    counts
}

#[on(kubernetes_v1)]
fn release_of_a_thousand_leaks_costs_one_write_per_block_and_handle(
    cluster: &CollectedCluster<'_>,
) {
    filled(cluster);
    let audit = cluster.servers.api.audit().unwrap();
    let collector = cluster.collect_after(GRACE);
    collector.await_first_pass();
    let began = Instant::now();
    within(SOON * 3, "all leaks", || {
        collector.metrics().contains(&format!(
            "kube_controllers_gc_reclaimed_total {}\n",
            BLOCKS * EACH
        ))
    });
    let took = began.elapsed();
    within(SOON, "an event for each node", || {
        cluster
            .servers
            .admin()
            .events_of_controllers("default")
            .unwrap()
            .len()
            == BLOCKS
    });
    assert!(cluster.handles().is_empty());
    assert!(cluster.held().is_empty());
    let requests = audit.of(COLLECTOR).unwrap();
    let counts = counts(&requests);
    let of = |verb: &str, resource: &str| {
        counts
            .get(&(verb.to_owned(), resource.to_owned()))
            .copied()
            .unwrap_or(0)
    };
    eprintln!(
        "{} leaks over {BLOCKS} blocks took {took:?} after the first look: {counts:?}",
        BLOCKS * EACH
    );
    timeline(&requests);
    assert_eq!(of("update", "ipamblocks"), BLOCKS, "{counts:?}");
    assert_eq!(of("delete", "ipamhandles"), BLOCKS * EACH, "{counts:?}");
    assert_eq!(
        (of("update", "ipamhandles"), of("create", "ipamhandles")),
        (0, 0)
    );
    // The pods of each node are read with one list.
    assert_eq!(of("get", "pods"), 0, "{counts:?}");
    assert!(
        (BLOCKS..=BLOCKS + 3).contains(&of("list", "pods")),
        "{counts:?}"
    );
    assert_eq!(of("get", "ipamblocks"), BLOCKS, "{counts:?}");
    assert_eq!(of("get", "ipamhandles"), BLOCKS * EACH, "{counts:?}");
    assert_eq!(of("create", "events"), BLOCKS, "one for each node");
}

fn timeline(requests: &[Request]) {
    let begin = requests[0].received;
    let mut spans = BTreeMap::new();
    for request in requests {
        let took = request.answered - request.received;
        let span = spans.entry((&request.verb, &request.resource));
        let span = span.or_insert((request.received, request.answered, time::Duration::ZERO, 0));
        *span = (
            span.0,
            span.1.max(request.answered),
            span.2 + took,
            span.3 + 1,
        );
    }
    for ((verb, resource), (first, last, sum, n)) in spans {
        eprintln!(
            "{n} × {verb} {resource}: {} to {}, {} each",
            first - begin,
            last - begin,
            sum / n
        );
    }
}

#[on(etcd)]
fn release_of_a_thousand_leaks_in_etcd_completes(cluster: &CollectedCluster<'_>) {
    filled(cluster);
    let collector = cluster.collect_after(GRACE);
    within(SOON * 3, "all leaks", || {
        cluster.held().is_empty() && cluster.handles().is_empty()
    });
    collector.await_metric(&format!(
        "kube_controllers_gc_reclaimed_total {}",
        BLOCKS * EACH
    ));
}

#[on(kubernetes_v3)]
fn gc_without_leaks_writes_nothing(cluster: &CollectedCluster<'_>) {
    cluster.pool("pool", "10.0.0.0/16", 26);
    cluster.node("node-a");
    let address = cluster.block("10.0.0.0/26", Some("node-a"), &[to_pod("node-a", "pod")]);
    cluster.pod("pod", "node-a", &address);
    let audit = cluster.servers.api.audit().unwrap();
    let collector = cluster.collect_after(LONG_GRACE);
    collector.await_first_pass();
    collector.pass_after(LONG_GRACE * 2);
    collector.pass_after(LONG_GRACE * 2);
    let written: Vec<_> = audit
        .of(COLLECTOR)
        .unwrap()
        .into_iter()
        .filter(is_write)
        .collect();
    assert!(written.is_empty(), "{written:?}");
}

fn is_write(request: &Request) -> bool {
    !matches!(request.verb.as_str(), "get" | "list" | "watch")
}

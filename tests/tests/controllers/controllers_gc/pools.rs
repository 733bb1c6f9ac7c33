//! Pools whose addresses are nearly gone: metrics and Events.

use std::time::Duration;

use serde_json::Value;

use crate::controllers_gc::collected_cluster::{
    CollectedCluster, GarbageCollector, LONG_GRACE, NAMESPACE, SOON, on, to_tunnel, within,
};

/// The interval between two counts, and a bit more.
const COUNT: Duration = Duration::from_secs(11);

/// Returns the range of a block.
fn range(block: u8) -> String {
    format!("10.0.0.{}/30", block * 4)
}

/// Creates full blocks of four addresses. The pool has 16 such blocks.
fn fill(cluster: &CollectedCluster<'_>, blocks: std::ops::Range<u8>) {
    for block in blocks {
        let given: Vec<_> = (0..4).map(|_| to_tunnel("node-a")).collect();
        cluster.block(&range(block), Some("node-a"), &given);
    }
}

/// Creates a pool, 75 % of whose addresses are in use.
fn three_quarters(cluster: &CollectedCluster<'_>) {
    cluster.pool("scarce", "10.0.0.0/26", 30);
    cluster.node("node-a");
    fill(cluster, 0..12);
}

fn line(free: u8) -> String {
    format!("kube_controllers_ippool_free_addresses{{ippool=\"scarce\"}} {free}")
}

/// Waits until the metrics show this number of free addresses, and advances the clock as often as
/// necessary.
fn await_free(collector: &GarbageCollector, free: u8) {
    collector.advance_until(COUNT, &line(free), || {
        collector.metrics().contains(&format!("{}\n", line(free)))
    });
}

/// Waits for the same, and advances the clock once.
fn count_free(collector: &GarbageCollector, free: u8) {
    collector.pass_after(COUNT);
    collector.await_metric(&line(free));
}

/// Returns the reasons and texts of the Events about pools.
fn posted(cluster: &CollectedCluster<'_>) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut posted: Vec<_> = events_about_pools(cluster)
        .iter()
        .map(|event| (text(&event["reason"]), text(&event["message"])))
        .collect();
    posted.sort();
    posted
}

fn events_about_pools(cluster: &CollectedCluster<'_>) -> Vec<Value> {
    let mut events = cluster
        .servers
        .admin()
        .events_of_controllers("default")
        .unwrap();
    events.retain(|event| event["involvedObject"]["kind"] == "IPPool");
    events
}

/// Shows SEC-27.
#[on(etcd, kubernetes_v1)]
fn pool_tells_80_and_95_percent_once(cluster: &CollectedCluster<'_>) {
    three_quarters(cluster);
    let collector = cluster.collect_after(LONG_GRACE);
    await_free(&collector, 16);
    assert!(posted(cluster).is_empty());
    fill(cluster, 12..13);
    collector.advance_until(COUNT, "an Event at 80 %", || posted(cluster).len() == 1);
    let message = "81 % of the 64 usable addresses of IP pool scarce are in use; 12 are free; \
                   create another pool, or see `calico-ipam usage`";
    assert_eq!(
        posted(cluster),
        [("IPPoolUsage80".to_owned(), message.to_owned())]
    );
    if cluster.servers.group.is_some() {
        // `kubectl describe` looks for Events with the uid of the object.
        let pool = cluster.servers.calico("ippools", "scarce");
        assert_eq!(
            events_about_pools(cluster)[0]["involvedObject"]["uid"],
            pool["metadata"]["uid"]
        );
    }
    fill(cluster, 13..14);
    await_free(&collector, 8);
    assert_eq!(posted(cluster).len(), 1, "one Event for each crossing");
    fill(cluster, 14..16);
    collector.advance_until(COUNT, "an Event at 95 %", || posted(cluster).len() == 2);
    collector.pass_after(COUNT);
    collector.pass_after(COUNT);
    let posted = posted(cluster);
    assert_eq!(
        (posted.len(), &*posted[1].0),
        (2, "IPPoolUsage95"),
        "{posted:?}"
    );
    // A tenant of the namespace `default` can read these Events.
    assert!(
        posted
            .iter()
            .all(|(_, text)| !text.contains("node-a") && !text.contains(NAMESPACE)),
        "{posted:?}"
    );
    assert!(
        collector
            .log()
            .contains("the addresses of an IP pool are nearly all in use")
    );
}

/// Pods of a tenant move the use of the pool between 62 % and 81 %. Shows SEC-26.
#[on(etcd, kubernetes_v1)]
fn tenant_that_moves_the_use_of_a_pool_causes_one_event_in_ten_minutes(
    cluster: &CollectedCluster<'_>,
) {
    three_quarters(cluster);
    let collector = cluster.collect_after(LONG_GRACE);
    collector.await_first_pass();
    for _ in 0..3 {
        fill(cluster, 12..13);
        count_free(&collector, 12);
        for block in 10..13 {
            cluster.delete_block(&range(block), "node-a");
        }
        count_free(&collector, 24);
        fill(cluster, 10..12);
        count_free(&collector, 16);
    }
    fill(cluster, 12..13);
    count_free(&collector, 12);
    collector.pass_after(Duration::from_secs(600));
    fill(cluster, 13..14);
    within(SOON, "an Event after ten minutes", || {
        posted(cluster).len() > 1
    });
    let reasons: Vec<String> = posted(cluster)
        .into_iter()
        .map(|(reason, _)| reason)
        .collect();
    assert_eq!(reasons, ["IPPoolUsage80", "IPPoolUsage80"]);
}

//! Pools whose addresses are nearly gone: metrics and Events.

use std::time::Duration;

use serde_json::Value;

use crate::lab::{
    COLLECTOR, Collecting, Lab, NAMESPACE, SOON, to_tunnel, with_a_long_grace_period, within,
};

/// The interval between two counts, and a bit more.
const COUNT: Duration = Duration::from_secs(11);

/// Returns the range of a block.
fn range(block: u8) -> String {
    format!("10.0.0.{}/30", block * 4)
}

/// Creates full blocks of four addresses. The pool has 16 such blocks.
fn fill(lab: &Lab<'_>, blocks: std::ops::Range<u8>) {
    for block in blocks {
        let given: Vec<_> = (0..4).map(|_| to_tunnel("node-a")).collect();
        lab.block(&range(block), Some("node-a"), &given);
    }
}

/// Creates a pool, 75 % of whose addresses are in use.
fn three_quarters(lab: &Lab<'_>) {
    lab.pool("scarce", "10.0.0.0/26", 30);
    lab.node("node-a");
    fill(lab, 0..12);
}

fn line(free: u8) -> String {
    format!("kube_controllers_ippool_free_addresses{{ippool=\"scarce\"}} {free}")
}

/// Waits until the metrics show this number of free addresses, and advances the clock as often as
/// necessary.
fn shows_free(collecting: &Collecting, free: u8) {
    collecting.as_time_goes_by(COUNT, &line(free), || {
        collecting.metrics().contains(&format!("{}\n", line(free)))
    });
}

/// Waits for the same, and advances the clock once.
fn counts_free(collecting: &Collecting, free: u8) {
    collecting.pass_after(COUNT);
    collecting.shows(&line(free));
}

/// Returns the reasons and texts of the Events about pools.
fn told(lab: &Lab<'_>) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut told: Vec<_> = events_about_pools(lab)
        .iter()
        .map(|event| (text(&event["reason"]), text(&event["message"])))
        .collect();
    told.sort();
    told
}

fn events_about_pools(lab: &Lab<'_>) -> Vec<Value> {
    let mut events = lab.admin().events_of_controllers("default").unwrap();
    events.retain(|event| event["involvedObject"]["kind"] == "IPPool");
    events
}

#[on(etcd, kubernetes_v1)]
fn pool_tells_80_and_95_percent_once(lab: &Lab<'_>) {
    three_quarters(lab);
    let collecting = lab.collect(with_a_long_grace_period(lab));
    shows_free(&collecting, 16);
    assert!(told(lab).is_empty());
    fill(lab, 12..13);
    collecting.as_time_goes_by(COUNT, "an Event at 80 %", || told(lab).len() == 1);
    let message = "81 % of the 64 usable addresses of IP pool scarce are in use; 12 are free; \
                   create another pool, or see `calico-ipam usage`";
    assert_eq!(
        told(lab),
        [("IPPoolUsage80".to_owned(), message.to_owned())]
    );
    if let Some(group) = lab.group {
        // `kubectl describe` looks for Events with the uid of the object.
        let path = format!("/apis/{}/ippools/scarce", group.api_version());
        let pool = lab.admin().get(&path).unwrap().success().unwrap();
        assert_eq!(
            events_about_pools(lab)[0]["involvedObject"]["uid"],
            pool["metadata"]["uid"]
        );
    }
    fill(lab, 13..14);
    shows_free(&collecting, 8);
    assert_eq!(told(lab).len(), 1, "the crossing is told once");
    fill(lab, 14..16);
    collecting.as_time_goes_by(COUNT, "an Event at 95 %", || told(lab).len() == 2);
    collecting.pass_after(COUNT);
    collecting.pass_after(COUNT);
    let told = told(lab);
    assert_eq!((told.len(), &*told[1].0), (2, "IPPoolUsage95"), "{told:?}");
    // A tenant of the namespace `default` can read these Events.
    assert!(
        told.iter()
            .all(|(_, text)| !text.contains("node-a") && !text.contains(NAMESPACE)),
        "{told:?}"
    );
    assert!(
        collecting
            .log()
            .contains("the addresses of an IP pool are nearly all in use")
    );
}

#[on(etcd, kubernetes_v1)]
fn restart_above_a_threshold_posts_no_second_event(lab: &Lab<'_>) {
    three_quarters(lab);
    let collecting = lab.collect(with_a_long_grace_period(lab));
    shows_free(&collecting, 16);
    fill(lab, 12..13);
    collecting.as_time_goes_by(COUNT, "an Event", || told(lab).len() == 1);
    drop(collecting);
    let collecting = lab.collect(with_a_long_grace_period(lab));
    shows_free(&collecting, 12);
    collecting.has_looked();
    collecting.pass_after(COUNT);
    assert_eq!(told(lab).len(), 1);
}

/// Pods of a tenant move the use of the pool between 62 % and 81 %.
#[on(etcd, kubernetes_v1)]
fn tenant_that_moves_the_use_of_a_pool_causes_one_event_in_ten_minutes(lab: &Lab<'_>) {
    three_quarters(lab);
    let collecting = lab.collect(with_a_long_grace_period(lab));
    collecting.has_looked();
    for _ in 0..3 {
        fill(lab, 12..13);
        counts_free(&collecting, 12);
        for block in 10..13 {
            lab.delete_block(&range(block), "node-a");
        }
        counts_free(&collecting, 24);
        fill(lab, 10..12);
        counts_free(&collecting, 16);
    }
    fill(lab, 12..13);
    counts_free(&collecting, 12);
    collecting.pass_after(Duration::from_secs(600));
    fill(lab, 13..14);
    within(SOON, "an Event after ten minutes", || told(lab).len() > 1);
    let reasons: Vec<String> = told(lab).into_iter().map(|(reason, _)| reason).collect();
    assert_eq!(reasons, ["IPPoolUsage80", "IPPoolUsage80"]);
}

#[on(kubernetes_v1)]
fn settings_of_ipam_are_read_each_five_minutes_at_most(lab: &Lab<'_>) {
    three_quarters(lab);
    let audit = lab.servers.api.audit().unwrap();
    let collecting = lab.collect(with_a_long_grace_period(lab));
    let reads = || {
        let requests = audit.of(COLLECTOR).unwrap();
        requests
            .iter()
            .filter(|request| request.verb == "get" && request.resource == "ipamconfigs")
            .count()
    };
    collecting.has_looked();
    assert_eq!(reads(), 1);
    for (block, wait, expected) in [
        (12, COUNT, 1),
        (13, COUNT, 1),
        (14, Duration::from_secs(300), 2),
    ] {
        collecting.pass_after(wait);
        fill(lab, block..block + 1);
        counts_free(&collecting, 60 - block * 4);
        assert_eq!(reads(), expected);
    }
}

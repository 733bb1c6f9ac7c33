//! The cooldown of released addresses, and clock changes.

use integration_tests::cluster::{Cluster, Pod, on};
use integration_tests::content::Content;
use serde_json::{Value, json};
use time::format_description::well_known::Rfc3339;
use time::{Duration, OffsetDateTime};

const BLOCK: &str = "/calico/ipam/v2/assignment/ipv4/block/10.66.0.0-30";

/// Fills a pool of four addresses whose cooldown is a minute.
fn full_pool(cluster: &Cluster<'_>) -> (Vec<Pod>, Value) {
    cluster.load(
        &Content::ready()
            .node("node1")
            .pool("tiny", "10.66.0.0/30", 30),
    );
    set_cooldown(cluster, 60);
    let conf = cluster.conf("node1", json!({}));
    let pods: Vec<Pod> = (1..=4).map(|number| cluster.pod(number)).collect();
    for pod in &pods {
        cluster.add(pod, &conf);
    }
    (pods, conf)
}

fn set_cooldown(cluster: &Cluster<'_>, seconds: u32) {
    let config = json!({
        "strict_affinity": false, "auto_allocate_blocks": true, "ipCooldownSeconds": seconds,
    });
    cluster
        .store
        .put("/calico/ipam/v2/config", &config)
        .unwrap();
}

/// Sets the release time of the block's first released address to `ago` before now.
fn released(cluster: &Cluster<'_>, ago: Duration) {
    let mut block = cluster.store.dump().unwrap()[BLOCK].clone();
    let cooling = block["attributes"]
        .as_array_mut()
        .unwrap()
        .iter_mut()
        .find(|a| a["releasedAt"].is_string());
    let at = (OffsetDateTime::now_utc() - ago)
        .replace_nanosecond(0)
        .unwrap();
    cooling.expect("an address in its cooldown")["releasedAt"] =
        json!(at.format(&Rfc3339).unwrap());
    cluster.store.put(BLOCK, &block).unwrap();
}

fn assert_refused(cluster: &Cluster<'_>, pod: &Pod, conf: &Value) {
    let error = cluster.verb("ADD", pod, conf).run().error();
    let said = format!("{} {}", error.msg, error.details);
    assert!(said.contains("10.66.0.0/30"), "{error:?}");
    assert_eq!(cluster.accounts().problems, Vec::<String>::new());
}

#[on(etcd, local)]
fn released_address_is_not_assigned_during_the_cooldown(cluster: &Cluster<'_>) {
    let (pods, conf) = full_pool(cluster);
    cluster.delete(&pods[1], &conf);
    let accounts = cluster.accounts();
    assert_eq!(
        (
            accounts.held.len(),
            accounts.cooling,
            accounts.counted.len()
        ),
        (3, 1, 3)
    );
    cluster.assert_in_order();

    let newcomer = cluster.pod(5);
    assert_refused(cluster, &newcomer, &conf);
    let before = cluster.store.dump().unwrap();
    cluster.delete(&pods[1], &conf);
    assert_eq!(cluster.store.dump().unwrap(), before);

    // Far from the end of the cooldown, because the next ADD may be slow.
    released(cluster, Duration::seconds(30));
    assert_refused(cluster, &newcomer, &conf);
    released(cluster, Duration::seconds(62));
    assert_eq!(
        cluster.add(&newcomer, &conf)["ips"][0]["address"],
        "10.66.0.1/32"
    );
    assert_eq!(cluster.accounts().cooling, 0);

    for pod in pods.iter().chain([&newcomer]) {
        cluster.delete(pod, &conf);
    }
    cluster.assert_nothing_left();
}

#[on(etcd, local)]
fn cooldown_continues_after_the_clock_is_set_back_and_ends_if_set_forward(cluster: &Cluster<'_>) {
    let (pods, conf) = full_pool(cluster);
    let newcomer = cluster.pod(5);
    cluster.delete(&pods[2], &conf);
    // The clock was set back: the release is in the future.
    released(cluster, Duration::hours(-2));
    assert_refused(cluster, &newcomer, &conf);
    cluster.delete(&pods[0], &conf);
    assert_eq!(cluster.accounts().held.len(), 2);
    cluster.assert_in_order();
    // The clock was set forward.
    let far = |cluster: &Cluster<'_>| {
        let mut block = cluster.store.dump().unwrap()[BLOCK].clone();
        for attribute in block["attributes"].as_array_mut().unwrap() {
            if attribute["releasedAt"].is_string() {
                attribute["releasedAt"] = json!("2001-01-01T00:00:00Z");
            }
        }
        cluster.store.put(BLOCK, &block).unwrap();
    };
    far(cluster);
    cluster.add(&newcomer, &conf);
    let accounts = cluster.accounts();
    assert_eq!((accounts.held.len(), accounts.cooling), (3, 0));
    cluster.assert_in_order();
}

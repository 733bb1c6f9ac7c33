//! The addresses of endpoints on etcd and the embedded datastore.

use integration_tests::cluster::{Cluster, on};
use integration_tests::content::Content;
use serde_json::json;

use crate::adopt::{address, adopt, delete_blocks, results, text};

#[on(etcd, local)]
fn containers_of_a_deleted_block_are_adopted(cluster: &Cluster<'_>) {
    cluster.load(
        &Content::ready()
            .node("node1")
            .pool("pool4", "10.65.0.0/16", 26),
    );
    let conf = cluster.conf("node1", json!({}));
    let containers = [1, 2, 3].map(|number| cluster.pod(number));
    let mut addresses = containers
        .each_ref()
        .map(|container| address(&cluster.add(container, &conf)));
    addresses.sort_by_key(|address| address.parse::<std::net::Ipv4Addr>().unwrap());
    let before = cluster.accounts();
    delete_blocks(cluster);
    let all = |result: &str| {
        addresses
            .iter()
            .map(|address| (address.clone(), result.to_owned()))
            .collect::<Vec<_>>()
    };
    assert_eq!(results(cluster, &[]), all("adopted"));
    assert_eq!(cluster.accounts().held, before.held);
    cluster.assert_in_order();
    assert_eq!(results(cluster, &[]), all("held"));
    for container in &containers {
        cluster.delete(container, &conf);
    }
    cluster.assert_nothing_left();
}

/// A restored endpoint of a container that does not exist any more.
#[on(etcd, local)]
fn endpoint_of_a_stopped_container_adopts_no_address(cluster: &Cluster<'_>) {
    cluster.load(
        &Content::ready()
            .node("node1")
            .pool("pool4", "10.65.0.0/16", 26),
    );
    let conf = cluster.conf("node1", json!({}));
    let container = cluster.pod(1);
    cluster.add(&container, &conf);
    let endpoints = cluster.store.dump().unwrap();
    let (key, endpoint) = endpoints
        .iter()
        .find(|(key, _)| key.contains("/workloadendpoints/"))
        .unwrap();
    cluster.delete(&container, &conf);
    cluster.store.put(key, endpoint).unwrap();
    let (report, outcome) = adopt(cluster, &[]);
    assert_eq!(outcome.exit, Some(1), "{outcome:?}");
    let reason = text(&report["addresses"][0]["reason"]);
    assert!(
        reason.starts_with("the container is unknown: interface ")
            && reason.contains("does not exist"),
        "{reason}"
    );
    assert!(cluster.accounts().held.is_empty());
}

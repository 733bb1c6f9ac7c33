//! Hints: for a minute, IPAM chooses a busy address for ADDs on the node only if no other address
//! is free.

use std::fs;

use integration_tests::cluster::{Cluster, on};
use integration_tests::content::Content;
use serde_json::{Value, json};

use crate::busy_addresses::{NOTES, add, next, other_program, prepared, route};

/// Returns the configuration and the four addresses of a pool, in a block of the node.
fn small(cluster: &Cluster<'_>) -> (Value, Vec<String>) {
    cluster.load(
        &Content::ready()
            .node("node1")
            .pool("pool4", "10.65.0.0/30", 30),
    );
    let conf = cluster.conf("node1", json!({ "log_level": "info" }));
    let first = cluster.pod(50);
    cluster.add(&first, &conf);
    cluster.delete(&first, &conf);
    other_program();
    (conf, next(cluster, "-4"))
}

#[on(etcd, local)]
fn next_adds_skip_a_busy_address_for_a_minute(cluster: &Cluster<'_>) {
    let (conf, free) = small(cluster);
    route("add", &free[0]);
    let pods: Vec<_> = (1..=6).map(|number| cluster.pod(number)).collect();
    assert_eq!(add(cluster, &pods[0], &conf), (vec![free[1].clone()], 1));
    assert_eq!(add(cluster, &pods[1], &conf), (vec![free[2].clone()], 0));
    assert_eq!(add(cluster, &pods[2], &conf), (vec![free[3].clone()], 0));
    cluster.delete(&pods[0], &conf);
    assert_eq!(next(cluster, "-4"), [&*free[0], &*free[1]]);
    assert_eq!(add(cluster, &pods[3], &conf), (vec![free[1].clone()], 0));
    cluster.delete(&pods[3], &conf);

    // The hint expires after a minute.
    assert_eq!(next(cluster, "-4"), [&*free[0], &*free[1]]);
    let mut notes: Value = serde_json::from_slice(&fs::read(NOTES).unwrap()).unwrap();
    assert_eq!(
        (notes.as_array().unwrap().len(), &notes[0]["address"]),
        (1, &json!(free[0]))
    );
    notes[0]["until"] = json!(notes[0]["until"].as_i64().unwrap() - 60);
    fs::write(NOTES, notes.to_string()).unwrap();
    assert_eq!(add(cluster, &pods[4], &conf), (vec![free[1].clone()], 1));
    cluster.delete(&pods[4], &conf);

    route("delete", &free[0]);
    crate::busy_addresses::delete_notes();
    assert_eq!(add(cluster, &pods[5], &conf), (vec![free[0].clone()], 0));
}

#[on(etcd, local)]
fn only_free_address_is_tried_in_spite_of_a_busy_hint(cluster: &Cluster<'_>) {
    let (conf, free) = small(cluster);
    route("add", &free[0]);
    let pods: Vec<_> = (1..=4).map(|number| cluster.pod(number)).collect();
    for pod in &pods[..3] {
        add(cluster, pod, &conf);
    }
    let error = cluster.verb("ADD", &pods[3], &conf).run().error();
    assert!(error.msg.contains(&free[0]), "{error:?}");
    route("delete", &free[0]);
    assert_eq!(add(cluster, &pods[3], &conf), (vec![free[0].clone()], 0));
}

#[on(etcd, local)]
fn invalid_busy_address_hints_are_ignored(cluster: &Cluster<'_>) {
    let (resident, conf) = prepared(cluster);
    for (number, text) in ["", "{", "[{}]", "[[\"10.65.0.1\"]]"]
        .into_iter()
        .enumerate()
    {
        let free = next(cluster, "-4");
        fs::create_dir_all("/var/run/calico/cni").unwrap();
        fs::write(NOTES, text).unwrap();
        let pod = cluster.pod(number + 1);
        route("add", &free[0]);
        let (given, tried) = add(cluster, &pod, &conf);
        assert_eq!((&given[0], tried), (&free[1], 1), "{text}");
        cluster.delete(&pod, &conf);
    }
    cluster.assert_only(&[&resident]);
}

//! The datastore is restored to a state before some pods of the node were started, and these pods
//! still run.

use std::collections::BTreeSet;

use integration_tests::cluster::{Cluster, Pod, on};
use integration_tests::command::{ip, ip_json};
use integration_tests::content::Content;
use integration_tests::kernel;
use serde_json::Value;

use crate::busy_addresses::{add, addresses, conf, prepared, restore};

/// Adds pods and restores the datastore to its state before. Returns the addresses of the pods.
fn add_and_restore(cluster: &Cluster<'_>, pods: &[Pod], conf: &Value) -> BTreeSet<String> {
    let backup = cluster.store.dump().unwrap();
    let living = pods
        .iter()
        .flat_map(|pod| addresses(&cluster.add(pod, conf)))
        .collect();
    restore(cluster, &backup);
    living
}

/// Replaces the plugin's IPv4 routes to pods by routes as Felix creates them.
fn replace_routes_as_felix() {
    for route in ip_json("route show").unwrap().as_array().unwrap() {
        let [destination, device] =
            ["dst", "dev"].map(|key| route[key].as_str().unwrap_or_default());
        if device.starts_with("cali") {
            ip(&format!(
                "route add {destination} dev {device} proto 80 scope link metric 1024"
            ))
            .unwrap();
            ip(&format!("route del {destination} dev {device} metric 0")).unwrap();
        }
    }
}

/// Shows SEC-78.
#[on(etcd, local)]
fn add_after_a_restore_assigns_no_address_of_a_running_pod(cluster: &Cluster<'_>) {
    let (resident, conf) = prepared(cluster);
    let old: Vec<Pod> = (1..=2).map(|number| cluster.pod(number)).collect();
    let living = add_and_restore(cluster, &old, &conf);
    replace_routes_as_felix();
    let before = kernel::pods(cluster.host).unwrap();
    let new: Vec<Pod> = (3..=6).map(|number| cluster.pod(number)).collect();
    let given: BTreeSet<String> = new
        .iter()
        .flat_map(|pod| add(cluster, pod, &conf).0)
        .collect();
    assert_eq!(given.len(), 8);
    assert!(given.is_disjoint(&living), "{given:?} {living:?}");
    let after = kernel::pods(cluster.host).unwrap();
    for pod in old.iter().chain([&resident]) {
        assert_eq!(after[&pod.name], before[&pod.name]);
    }
    let routes = kernel::host().unwrap()["routes"].to_string();
    assert!(
        living
            .iter()
            .all(|address| routes.contains(&format!("\"{address}\""))),
        "{routes}"
    );
}

/// The number of busy addresses exceeds the attempts of one ADD.
#[on(etcd, local)]
fn repeated_add_after_a_restore_with_many_pods_assigns_a_free_address(cluster: &Cluster<'_>) {
    let (_, conf) = prepared(cluster);
    let old: Vec<Pod> = (1..=5).map(|number| cluster.pod(number)).collect();
    let living = add_and_restore(cluster, &old, &conf);
    let new = cluster.pod(6);
    let outcomes: Vec<_> = (0..4)
        .map(|_| cluster.verb("ADD", &new, &conf).run())
        .collect();
    let given = outcomes
        .iter()
        .find(|outcome| outcome.exit == Some(0))
        .expect("one of four ADDs succeeds");
    assert_eq!(outcomes[0].exit, Some(1));
    assert!(
        addresses(&given.success())
            .iter()
            .all(|address| !living.contains(address))
    );
}

#[on(kubernetes_v3)]
fn add_after_a_restore_of_custom_resources_assigns_no_address_in_use(cluster: &Cluster<'_>) {
    cluster.load(&Content::dual_stack());
    let conf = conf(cluster);
    cluster.add(&cluster.pod(100), &conf);
    let old: Vec<Pod> = (1..=2).map(|number| cluster.pod(number)).collect();
    let living = add_and_restore(cluster, &old, &conf);
    for number in 3..=6 {
        let (given, _) = add(cluster, &cluster.pod(number), &conf);
        assert!(
            given.iter().all(|address| !living.contains(address)),
            "{given:?} {living:?}"
        );
    }
}

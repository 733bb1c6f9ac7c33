//! Busy addresses that an ADD does not replace.

use std::fs;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use integration_tests::cluster::{Cluster, on};
use integration_tests::content::Content;
use integration_tests::plugin::{CniError, is_host_local_installed};
use serde_json::{Value, json};

use crate::busy_addresses::{
    NOTES, OTHER, add, addresses, devices, next, other_program, prepared, route,
};

#[track_caller]
fn assert_names(error: &CniError, words: &[&str]) {
    let said = format!("{} {}", error.msg, error.details);
    for word in words {
        assert!(said.contains(word), "{word} is not in {error:?}");
    }
}

/// Shows SEC-50.
#[on(etcd, local)]
fn add_with_three_busy_addresses_fails_and_names_all(cluster: &Cluster<'_>) {
    let (resident, conf) = prepared(cluster);
    let (free, pod) = (next(cluster, "-4"), cluster.pod(1));
    free[..3].iter().for_each(|address| route("add", address));
    let error = cluster.verb("ADD", &pod, &conf).run().error();
    assert_names(&error, &[&free[0], &free[1], &free[2], OTHER]);
    cluster.assert_only(&[&resident]);
    free[..3]
        .iter()
        .for_each(|address| assert_eq!(devices(address), [OTHER]));
    let (given, tried) = add(cluster, &pod, &conf);
    assert_eq!((&given[0], tried), (&free[3], 0));
}

fn with_pool(cluster: &Cluster<'_>, cidr: &str, size: u8) -> Value {
    cluster.load(&Content::ready().node("node1").pool("pool4", cidr, size));
    other_program();
    cluster.conf("node1", json!({ "log_level": "info" }))
}

#[on(etcd, local)]
fn add_on_a_pool_of_one_busy_address_fails_and_names_the_address(cluster: &Cluster<'_>) {
    let (conf, pod) = (with_pool(cluster, "10.65.0.7/32", 32), cluster.pod(1));
    route("add", "10.65.0.7");
    // The second ADD has a hint about the address, the first one has not.
    for _ in 0..2 {
        let error = cluster.verb("ADD", &pod, &conf).run().error();
        assert_names(
            &error,
            &[
                "10.65.0.7",
                OTHER,
                "10.65.0.7/32",
                "addresses were released",
            ],
        );
        cluster.assert_only(&[]);
    }
    route("delete", "10.65.0.7");
    assert_eq!(add(cluster, &pod, &conf).0, ["10.65.0.7"]);
}

#[on(etcd, local)]
fn add_on_a_pool_of_two_busy_addresses_fails_and_names_both(cluster: &Cluster<'_>) {
    let (conf, pod) = (with_pool(cluster, "10.65.0.6/31", 31), cluster.pod(1));
    route("add", "10.65.0.6");
    route("add", "10.65.0.7");
    for _ in 0..2 {
        let error = cluster.verb("ADD", &pod, &conf).run().error();
        assert_names(&error, &["10.65.0.6", "10.65.0.7", OTHER]);
        cluster.assert_only(&[]);
    }
}

#[on(etcd, local)]
fn busy_requested_address_is_an_error_and_is_not_replaced(cluster: &Cluster<'_>) {
    let (resident, conf) = prepared(cluster);
    let (free, pod) = (next(cluster, "-4"), cluster.pod(1));
    route("add", &free[0]);
    let asked = cluster
        .verb("ADD", &pod, &conf)
        .env("CNI_ARGS", format!("IP={}", free[0]));
    assert_names(&asked.run().error(), &[&free[0], OTHER]);
    assert!(!Path::new(NOTES).exists());
    cluster.assert_only(&[&resident]);
    // A hint does not prevent a request for this address.
    route("delete", &free[0]);
    let until = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_secs()
        + 50;
    fs::create_dir_all(Path::new(NOTES).parent().unwrap()).unwrap();
    fs::write(
        NOTES,
        json!([{ "address": free[0], "route": "", "until": until }]).to_string(),
    )
    .unwrap();
    assert_eq!(addresses(&asked.run().success()), [&*free[0]]);
}

#[on(etcd, local)]
fn busy_address_of_a_foreign_ipam_is_an_error_and_is_not_replaced(cluster: &Cluster<'_>) {
    if !is_host_local_installed() {
        return;
    }
    cluster.load(&Content::ready().node("node1"));
    other_program();
    let data = cluster.host.dir("host-local");
    let ipam = json!({
        "type": "host-local", "dataDir": data, "ranges": [[{ "subnet": "10.88.0.0/24" }]],
    });
    let (conf, pod) = (
        cluster.conf("node1", json!({ "ipam": ipam })),
        cluster.pod(1),
    );
    route("add", "10.88.0.2");
    let error = cluster.verb("ADD", &pod, &conf).run().error();
    assert_names(&error, &["10.88.0.2", OTHER]);
    let leases = fs::read_dir(data.join("k8s-pod-network"))
        .unwrap()
        .flatten();
    let leases: Vec<_> = leases
        .filter(|file| file.file_name().to_string_lossy().starts_with("10."))
        .collect();
    assert!(leases.is_empty(), "{leases:?}");
    assert!(!Path::new(NOTES).exists());
    cluster.assert_nothing_left();
}

//! A deferred DEL belongs to a datastore by the identity of the datastore, or, without a recorded
//! identity, by the endpoint as the configuration spells it.

use std::fs;
use std::path::Path;
use std::process::Command;

use integration_tests::cluster::{Cluster, Pod, handle};
use integration_tests::etcd::ENDPOINT;
use integration_tests::journal::{JOURNAL, journal_entries};
use serde_json::{Value, json};

use super::{await_entries, await_replayed, conf, later_call, on, pod_with_deferred_del};

const CLUSTER: &str = "/calico/resources/v3/projectcalico.org/clusterinformations/default";

/// Returns a configuration with the same etcd, by host name instead of address.
fn with_host_name(conf: &Value) -> Value {
    let mut conf = conf.clone();
    conf["etcd_endpoints"] = json!(ENDPOINT.replace("127.0.0.1", "localhost"));
    conf
}

/// Makes the node store the identity of its datastore, which GC does.
fn record_identity(cluster: &Cluster<'_>) {
    let mut conf = conf(cluster);
    conf["cni.dev/valid-attachments"] = json!([]);
    cluster.verb("GC", &cluster.pod(90), &conf).run().success();
}

fn set_guid(cluster: &Cluster<'_>, guid: &str) {
    let mut information = cluster.store.dump().unwrap()[CLUSTER].clone();
    information["spec"]["clusterGUID"] = json!(guid);
    cluster.store.put(CLUSTER, &information).unwrap();
}

fn is_held(cluster: &Cluster<'_>, pod: &Pod) -> bool {
    cluster
        .accounts()
        .held
        .values()
        .any(|holder| *holder == handle(pod))
}

fn calico_ipam(cluster: &Cluster<'_>, arguments: &[&str]) -> String {
    let outcome = cluster
        .store
        .calico_ipam(&cluster.plugins, arguments)
        .unwrap();
    assert_eq!(outcome.exit, Some(0), "{}", outcome.stderr);
    outcome.stdout
}

#[on(etcd)]
fn deferred_del_is_replayed_with_a_different_spelling_of_the_datastore(cluster: &mut Cluster<'_>) {
    set_guid(cluster, "0123456789abcdef");
    record_identity(cluster);
    let pod = pod_with_deferred_del(cluster, 1);
    let conf = with_host_name(&conf(cluster));
    cluster.await_replayed(&pod, &conf);
    assert!(!is_held(cluster, &pod));
    assert_eq!(
        calico_ipam(cluster, &["check"]).lines().last(),
        Some("nothing is wrong")
    );
}

#[on(etcd)]
fn deferred_del_of_another_datastore_stays_listed_until_adopted(cluster: &mut Cluster<'_>) {
    set_guid(cluster, "0123456789abcdef");
    record_identity(cluster);
    let pod = pod_with_deferred_del(cluster, 1);
    // The datastore was recreated at the same endpoint.
    set_guid(cluster, "fedcba9876543210");
    await_entries(cluster, &pod, &conf(cluster), 1);
    later_call(cluster, "DEL", &pod);
    assert_eq!(journal_entries().len(), 1);
    let listed: Value =
        serde_json::from_str(&calico_ipam(cluster, &["journal", "-o", "json"])).unwrap();
    let [pending_del] = &listed.as_array().unwrap()[..] else {
        panic!("{listed}")
    };
    assert_eq!(pending_del["identity"], json!("etcd 0123456789abcdef"));
    assert_eq!(pending_del["container"], json!(pod.container_id));
    assert!(
        pending_del["ageSeconds"].is_u64()
            && pending_del["reason"]
                .as_str()
                .unwrap()
                .contains("ClusterInformation"),
        "{pending_del}"
    );
    calico_ipam(cluster, &["journal", "adopt", &pod.container_id]);
    await_replayed(cluster, &pod);
}

/// Entries of earlier releases have no identity.
#[on(etcd)]
fn deferred_del_without_identity_is_replayed_by_its_spelling(cluster: &mut Cluster<'_>) {
    set_guid(cluster, "0123456789abcdef");
    let pod = pod_with_deferred_del(cluster, 1);
    let [entry] = &journal_entries()[..] else {
        panic!("{:?}", journal_entries())
    };
    let mut pending_del: Value = serde_json::from_slice(&fs::read(entry).unwrap()).unwrap();
    for key in [
        "identity",
        "noted",
        "allocated_before",
        "reason",
        "addresses",
    ] {
        pending_del.as_object_mut().unwrap().remove(key);
    }
    fs::write(entry, pending_del.to_string()).unwrap();
    await_entries(cluster, &pod, &with_host_name(&conf(cluster)), 1);
    await_replayed(cluster, &pod);
    assert!(!is_held(cluster, &pod));
}

fn pods_with_deferred_dels(cluster: &mut Cluster<'_>, numbers: std::ops::Range<usize>) -> Vec<Pod> {
    let conf = conf(cluster);
    let pods: Vec<Pod> = numbers.map(|number| cluster.pod(number)).collect();
    let results: Vec<Value> = pods.iter().map(|pod| cluster.add(pod, &conf)).collect();
    cluster.etcd().stop();
    for (pod, result) in pods.iter().zip(results) {
        let mut conf = conf.clone();
        conf["prevResult"] = result;
        cluster.delete(pod, &conf);
    }
    cluster.etcd().restart().unwrap();
    assert_eq!(journal_entries().len(), pods.len());
    pods
}

#[on(etcd)]
fn add_replays_two_deferred_dels_and_those_of_a_requested_address(cluster: &mut Cluster<'_>) {
    let conf = conf(cluster);
    let pods = pods_with_deferred_dels(cluster, 1..6);
    let newcomer = cluster.pod(20);
    cluster.add(&newcomer, &conf);
    assert_eq!(journal_entries().len(), 3);
    let held = cluster.accounts().held;
    let address_of = |pod: &Pod| {
        held.iter()
            .find(|(_, holder)| **holder == handle(pod))
            .map(|(address, _)| address.to_string())
    };
    let (deferred, address) = pods
        .iter()
        .rev()
        .find_map(|pod| Some((pod, address_of(pod)?)))
        .unwrap();
    let asking = cluster.pod(21);
    let args = format!("IP={address}");
    let outcome = cluster
        .verb("ADD", &asking, &conf)
        .env("CNI_ARGS", &args)
        .run();
    assert!(outcome.success().to_string().contains(&address));
    assert!(!is_held(cluster, deferred));
}

#[on(etcd)]
fn failing_deferred_del_fails_only_the_add_of_its_container(cluster: &mut Cluster<'_>) {
    let conf = conf(cluster);
    let [pod] = &pods_with_deferred_dels(cluster, 1..2)[..] else {
        panic!("one pod")
    };
    let path = format!("/calico/ipam/v2/handle/{}", handle(pod));
    let sound = cluster.store.dump().unwrap()[&path].clone();
    cluster
        .store
        .put(&path, &json!({ "block": "damaged" }))
        .unwrap();
    let other = cluster.pod(2);
    cluster.add(&other, &conf);
    assert_eq!(journal_entries().len(), 1);
    let before = cluster.state();
    cluster.verb("ADD", pod, &conf).run().error();
    cluster.assert_unchanged(&before);
    cluster.store.put(&path, &sound).unwrap();
    cluster.add(pod, &conf);
    assert!(journal_entries().is_empty());
    [pod, &other]
        .into_iter()
        .for_each(|pod| cluster.delete(pod, &conf));
    cluster.assert_nothing_left();
}

/// With an unreadable block, the state of the address is unknown.
#[on(etcd)]
fn deferred_del_in_a_damaged_block_fails_only_adds_of_its_owner_or_address(
    cluster: &mut Cluster<'_>,
) {
    let mut conf = conf(cluster);
    conf["log_level"] = json!("info");
    let [pod] = &pods_with_deferred_dels(cluster, 1..2)[..] else {
        panic!("one pod")
    };
    let held = cluster.accounts().held;
    let address = held
        .keys()
        .map(ToString::to_string)
        .find(|address| address.starts_with("10.65."))
        .unwrap();
    let content = cluster.store.dump().unwrap();
    let (block, sound) = content
        .iter()
        .find(|(key, _)| key.contains("/ipv4/block/"))
        .unwrap();
    cluster.store.put(block, &json!("damaged")).unwrap();
    let other = cluster.pod(2);
    let added = cluster.verb("ADD", &other, &conf).run();
    added.success();
    let lines: Vec<_> = added
        .stderr
        .lines()
        .filter(|line| line.contains("the journal entry stays"))
        .collect();
    assert!(
        lines.len() == 1 && lines[0].contains(&pod.container_id),
        "{}",
        added.stderr
    );
    let asking = cluster.pod(3);
    let before = cluster.state();
    cluster.verb("ADD", pod, &conf).run().error();
    cluster
        .verb("ADD", &asking, &conf)
        .env("CNI_ARGS", format!("IP={address}"))
        .run()
        .error();
    cluster.assert_unchanged(&before);
    assert_eq!(journal_entries().len(), 1);
    cluster.store.put(block, sound).unwrap();
    let asked = cluster
        .verb("ADD", &asking, &conf)
        .env("CNI_ARGS", format!("IP={address}"))
        .run();
    assert!(asked.success().to_string().contains(&address));
    assert!(journal_entries().is_empty());
    [&other, &asking]
        .into_iter()
        .for_each(|pod| cluster.delete(pod, &conf));
    cluster.assert_nothing_left();
}

/// A copy of an embedded datastore is the same datastore, wherever its file is.
#[on(local)]
fn deferred_del_of_a_moved_embedded_datastore_is_replayed(cluster: &mut Cluster<'_>) {
    let conf = conf(cluster);
    let mut collecting = conf.clone();
    collecting["cni.dev/valid-attachments"] = json!([]);
    cluster
        .verb("GC", &cluster.pod(9), &collecting)
        .run()
        .success();
    let pod = cluster.pod(1);
    cluster.add(&pod, &conf);
    let path = conf["datastore_path"].as_str().unwrap();
    let (directory, aside) = (Path::new(path).parent().unwrap(), format!("{path}.aside"));
    let moved = |from: &str, to: &str| {
        for suffix in ["", "-wal", "-shm"] {
            let _ = fs::rename(format!("{from}{suffix}"), format!("{to}{suffix}"));
        }
    };
    moved(path, &aside);
    // A directory in place of the file cannot be opened.
    fs::create_dir(path).unwrap();
    let outcome = cluster.verb("DEL", &pod, &conf).run();
    fs::remove_dir(path).unwrap();
    outcome.success();
    assert_eq!(
        journal_entries().len(),
        1,
        "{}",
        Command::new("ls")
            .arg(directory)
            .output()
            .map(|out| String::from_utf8_lossy(&out.stdout).into_owned())
            .unwrap()
    );
    let mut elsewhere = conf.clone();
    elsewhere["datastore_path"] = json!(aside);
    cluster.await_replayed(&pod, &elsewhere);
    assert!(Path::new(JOURNAL).exists());
    moved(&aside, path);
    cluster.assert_nothing_left();
}

/// Without a ClusterInformation, `calico-ipam init` gives the datastore a new identity.
#[on(etcd)]
fn deferred_del_without_cluster_information_is_replayed_after_init(cluster: &mut Cluster<'_>) {
    set_guid(cluster, "0123456789abcdef");
    record_identity(cluster);
    let conf = conf(cluster);
    let pod = cluster.pod(1);
    cluster.add(&pod, &conf);
    cluster.store.delete(CLUSTER).unwrap();
    cluster.delete(&pod, &conf);
    assert_eq!(journal_entries().len(), 1);
    calico_ipam(cluster, &["init"]);
    await_replayed(cluster, &pod);
    cluster.assert_nothing_left();
}

#[on(etcd)]
fn add_with_its_own_deferred_del_of_an_unknown_datastore_names_the_remedy(
    cluster: &mut Cluster<'_>,
) {
    set_guid(cluster, "0123456789abcdef");
    record_identity(cluster);
    let conf = conf(cluster);
    let pod = pod_with_deferred_del(cluster, 1);
    set_guid(cluster, "");
    let before = cluster.state();
    let error = cluster.verb("ADD", &pod, &conf).run().error();
    assert_eq!(error.code, 11, "{error:?}");
    assert!(
        error
            .details
            .contains(&format!("calico-ipam journal adopt {}", pod.container_id)),
        "{error:?}"
    );
    cluster.assert_unchanged(&before);
    let other = cluster.pod(2);
    cluster.add(&other, &conf);
    set_guid(cluster, "0123456789abcdef");
    cluster.add(&pod, &conf);
    assert!(journal_entries().is_empty());
    [&pod, &other]
        .into_iter()
        .for_each(|pod| cluster.delete(pod, &conf));
    cluster.assert_nothing_left();
}

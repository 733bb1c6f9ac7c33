//! DEL defers its cleanup if the datastore rejects requests, or if the name of the node is unknown.

use std::fs;

use integration_tests::cluster::{Cluster, ControlPlane, Pod, on};
use integration_tests::content::Content;
use integration_tests::journal::journal_entries;
use integration_tests::kernel;
use integration_tests::plugin::Outcome;
use integration_tests::proxy::{Fault, Point, Refusal};
use serde_json::{Value, json};

use super::kubernetes::faulty;
use super::{await_replayed, conf};

const CLUSTER: &str = "/calico/resources/v3/projectcalico.org/clusterinformations/default";
const NODENAME: &str = "/var/lib/calico/nodename";

/// Asserts that DEL succeeded and the pod has no network. Returns the only entry of the journal.
#[track_caller]
fn recorded_entry(outcome: &Outcome) -> Value {
    assert_eq!(outcome.success(), "");
    let host = kernel::host().unwrap();
    assert_eq!((&host["links"], &host["routes"]), (&json!({}), &json!([])));
    let [entry] = &journal_entries()[..] else {
        panic!("{:?}", journal_entries())
    };
    serde_json::from_slice(&fs::read(entry).unwrap()).unwrap()
}

fn with_warnings(mut conf: Value) -> Value {
    conf["log_level"] = json!("info");
    conf
}

fn add(cluster: &Cluster<'_>, conf: &Value) -> Pod {
    let pod = cluster.pod(1);
    cluster.add(&pod, conf);
    pod
}

#[on(etcd)]
fn del_without_cluster_information_removes_the_interface_and_is_deferred(cluster: &Cluster<'_>) {
    cluster.load(&Content::dual_stack());
    let conf = with_warnings(conf(cluster));
    let pod = add(cluster, &conf);
    let ready = cluster.store.dump().unwrap()[CLUSTER].clone();
    cluster.store.delete(CLUSTER).unwrap();
    let outcome = cluster.verb("DEL", &pod, &conf).run();
    recorded_entry(&outcome);
    assert!(
        outcome.stderr.contains("ClusterInformation(default)"),
        "{}",
        outcome.stderr
    );
    cluster.store.put(CLUSTER, &ready).unwrap();
    await_replayed(cluster, &pod);
    cluster.assert_nothing_left();
}

/// The host name may be the name of another node.
#[on(etcd)]
fn del_without_a_node_name_is_deferred_and_replayed_by_the_next_node(cluster: &Cluster<'_>) {
    cluster.load(&Content::dual_stack());
    let mut conf = with_warnings(conf(cluster));
    conf["nodename_file_optional"] = json!(false);
    conf["nodename"] = json!("");
    fs::create_dir_all("/var/lib/calico").unwrap();
    fs::write(NODENAME, "node1").unwrap();
    let pod = add(cluster, &conf);
    fs::remove_file(NODENAME).unwrap();
    let outcome = cluster.verb("DEL", &pod, &conf).run();
    assert_eq!(recorded_entry(&outcome)["node"], json!(""));
    assert!(outcome.stderr.contains(NODENAME), "{}", outcome.stderr);
    fs::write(NODENAME, "node1").unwrap();
    cluster.await_replayed(&pod, &conf);
    cluster.assert_nothing_left();
}

#[on(etcd)]
fn del_with_a_configured_node_name_needs_no_nodename_file(cluster: &Cluster<'_>) {
    cluster.load(&Content::dual_stack());
    let pod = add(cluster, &conf(cluster));
    let mut without_file = conf(cluster);
    without_file["nodename_file_optional"] = json!(false);
    cluster.delete(&pod, &without_file);
    assert!(journal_entries().is_empty());
    cluster.assert_nothing_left();
}

#[on(kubernetes_v1)]
fn del_refused_by_the_api_server_removes_the_interface_and_is_deferred(
    cluster: &Cluster<'_>,
    control_plane: &mut ControlPlane<'_>,
) {
    let faulty = &mut faulty(cluster, &control_plane.proxy);
    faulty.conf = with_warnings(faulty.conf.take());
    // After a single 401 the plugin reads the token again.
    let write = Point::First("PUT", "ipamblocks");
    for (code, point) in [
        (401, Point::EveryRequest),
        (403, Point::EveryRequest),
        (403, write),
    ] {
        let pod = faulty.pod();
        faulty.run("ADD", &pod);
        let refused = Fault::Refuse(Refusal {
            code,
            retry_after: None,
        });
        let outcome = faulty.faulted("DEL", &pod, point, refused);
        let pending_del = recorded_entry(&outcome);
        assert!(
            pending_del["reason"]
                .as_str()
                .unwrap()
                .contains("connection is unauthorized"),
            "{pending_del}"
        );
        assert!(
            outcome.stderr.contains("connection is unauthorized"),
            "{}",
            outcome.stderr
        );
        faulty.await_replayed(&pod);
        faulty.cluster.assert_nothing_left();
    }
}

#[on(kubernetes_v3)]
fn del_with_an_invalid_kubeconfig_removes_the_interface_and_is_deferred(
    cluster: &Cluster<'_>,
    control_plane: &mut ControlPlane<'_>,
) {
    let faulty = &mut faulty(cluster, &control_plane.proxy);
    faulty.conf = with_warnings(faulty.conf.take());
    let pod = faulty.pod();
    faulty.run("ADD", &pod);
    let file = faulty.conf["kubernetes"]["kubeconfig"]
        .as_str()
        .unwrap()
        .to_owned();
    let text = fs::read_to_string(&file).unwrap();
    for broken in ["", "apiVersion: v1\nkind: Config\n", "{ no yaml"] {
        fs::write(&file, broken).unwrap();
        let outcome = faulty.call("DEL", &pod).run();
        recorded_entry(&outcome);
        assert!(outcome.stderr.contains(&file), "{}", outcome.stderr);
    }
    fs::remove_file(&file).unwrap();
    recorded_entry(&faulty.call("DEL", &pod).run());
    fs::write(&file, text).unwrap();
    faulty.await_replayed(&pod);
    faulty.cluster.assert_nothing_left();
}

//! DELs while the API server lacks Calico's definitions, or with a configuration that names an
//! unknown API group.

use std::fs;

use integration_tests::cluster::{Cluster, ControlPlane, Faulty, on_one_group};
use integration_tests::content::Content;
use integration_tests::journal::journal_entries;
use integration_tests::kernel;
use integration_tests::kubernetes::ApiServer;
use integration_tests::{Place, on};
use serde_json::{Value, json};

/// Runs a test on an API server that serves one group, whose definitions the test may delete.
fn on(place: Place, test: impl FnOnce(&mut Faulty<'_>, &ApiServer) + Send) {
    let test = |cluster: &Cluster<'_>, control_plane: &mut ControlPlane<'_>| {
        cluster.load(&Content::dual_stack());
        let more = json!({ "cniVersion": "1.1.0", "log_level": "info" });
        let conf = cluster.conf("node1", more);
        let faulty = &mut Faulty::new(cluster, &control_plane.proxy, conf);
        test(faulty, &control_plane.servers.api);
    };
    on_one_group(place.api_group(), test);
}

/// Runs DEL without definitions, and expects the deferred DEL to be replayed after a restore.
fn replays_once_the_definitions_exist(faulty: &mut Faulty<'_>, api: &ApiServer) {
    let pod = faulty.pod();
    faulty.run("ADD", &pod);
    let objects = faulty.cluster.objects();
    let mut backup = objects.dump().unwrap();
    backup.retain(|key, _| !key.starts_with("pods/"));

    api.admin().undefine().unwrap();
    assert_eq!(faulty.call("DEL", &pod).run().success(), "");
    assert_eq!(kernel::host().unwrap()["links"], json!({}));
    let [entry] = &journal_entries()[..] else {
        panic!("{:?}", journal_entries())
    };
    let pending_del: Value = serde_json::from_slice(&fs::read(entry).unwrap()).unwrap();
    assert!(
        pending_del["reason"]
            .as_str()
            .unwrap()
            .contains("ClusterInformation(default)"),
        "{pending_del}"
    );
    faulty.call("STATUS", &pod).run().error();
    assert_eq!(journal_entries().len(), 1);

    api.define(objects.group().api_version()).unwrap();
    objects.load(&backup).unwrap();
    assert!(
        !faulty.cluster.accounts().held.is_empty(),
        "the address is still held"
    );
    faulty.await_replayed(&pod);
    faulty.cluster.assert_nothing_left();
}

#[on(kubernetes_v1)]
fn del_deferred_without_v1_definitions_is_replayed_once_they_exist(
    faulty: &mut Faulty<'_>,
    api: &ApiServer,
) {
    replays_once_the_definitions_exist(faulty, api);
}

#[on(kubernetes_v3)]
fn del_deferred_without_v3_definitions_is_replayed_once_they_exist(
    faulty: &mut Faulty<'_>,
    api: &ApiServer,
) {
    replays_once_the_definitions_exist(faulty, api);
}

/// ADD fails with an unknown group, because it could write into another group than the other nodes
/// do.
fn deletes_with_an_unknown_group(faulty: &mut Faulty<'_>) {
    let pod = faulty.pod();
    faulty.run("ADD", &pod);
    faulty.conf["calico_api_group"] = json!("projectcalico.org/v7");
    let refused = faulty.call("ADD", &pod).run().error();
    assert!(refused.msg.contains("calico_api_group"), "{refused:?}");
    faulty.proxy.arm(None);
    let deleted = faulty.call("DEL", &pod).run();
    assert_eq!(deleted.success(), "");
    let lines = deleted
        .stderr
        .lines()
        .filter(|line| line.contains("calico_api_group"))
        .count();
    assert_eq!(lines, 1, "{}", deleted.stderr);
    let questions = faulty
        .proxy
        .requests()
        .iter()
        .filter(|request| *request == "GET /apis")
        .count();
    assert_eq!((questions, journal_entries()), (1, Vec::new()));
    faulty.cluster.assert_nothing_left();
}

#[on(kubernetes_v1)]
fn del_with_an_unknown_group_discovers_v1_and_releases_everything(
    faulty: &mut Faulty<'_>,
    _: &ApiServer,
) {
    deletes_with_an_unknown_group(faulty);
}

#[on(kubernetes_v3)]
fn del_with_an_unknown_group_discovers_v3_and_releases_everything(
    faulty: &mut Faulty<'_>,
    _: &ApiServer,
) {
    deletes_with_an_unknown_group(faulty);
}

//! A real containerd as the container runtime. `make e2e` adopts a pod that containerd alone knows.

use integration_tests::cluster::{Cluster, ControlPlane, on};
use integration_tests::command::{ip, present};
use integration_tests::content::Content;
use integration_tests::runtime::start_containerd;
use integration_tests::server_process::ServerProcess;
use integration_tests::skip::skipped;
use libcalico::names::pod_interface;
use serde_json::json;

use crate::adopt::{address, adopt, delete_blocks, report_running, results, text};

/// containerd answers with an empty list, so an alias suffices, and a pod without one has no
/// container.
#[on(kubernetes_v1)]
fn adopt_without_alias_asks_the_runtime(
    cluster: &Cluster<'_>,
    control_plane: &mut ControlPlane<'_>,
) {
    if !present("containerd") {
        return skipped("there is no containerd: run tests/install-go-tools.sh containerd");
    }
    cluster.load(
        &Content::ready()
            .node("node1")
            .pool("pool4", "10.65.0.0/16", 26),
    );
    let conf = cluster.conf("node1", json!({}));
    let pods = [cluster.pod(1), cluster.pod(2)];
    for pod in &pods {
        let address = address(&cluster.add(pod, &conf));
        report_running(control_plane, pod, &address);
    }
    delete_blocks(cluster);
    let directory = cluster.host.dir("containerd");
    let mut containerd = ServerProcess::default();
    let socket = start_containerd(&mut containerd, &directory)
        .unwrap()
        .display()
        .to_string();

    let link = pod_interface("cali", "suite", pods[0].object.as_ref().unwrap());
    ip(&format!("link set dev {link} alias upstream")).unwrap();
    let (report, outcome) = adopt(cluster, &["--runtime-socket", &socket]);
    assert_eq!(outcome.exit, Some(1), "{outcome:?}");
    let rows = report["addresses"].as_array().unwrap();
    let conflict = rows.iter().find(|row| row["result"] == "conflict").unwrap();
    let reason = text(&conflict["reason"]);
    assert!(
        reason.ends_with("the runtime has no ready sandbox of the workload"),
        "{reason}"
    );
    assert_eq!(
        rows.iter().filter(|row| row["result"] == "adopted").count(),
        1,
        "{report}"
    );

    // The address of the other pod stays held, also without the runtime.
    drop(containerd);
    cluster.delete(&pods[0], &conf);
    cluster.remove_pod(&pods[0]);
    let held = results(cluster, &["--runtime-socket", &socket]);
    assert!(
        matches!(&held[..], [(_, result)] if result == "held"),
        "{held:?}"
    );
}

//! The documented replacement for `wget`, which our image lacks, in kube-controllers' pod.

use std::fs;

use integration_tests::command::ip;
use integration_tests::controllers::{ControllersCluster, PATIENCE, await_that};
use integration_tests::kubernetes::on_shared_kubernetes;
use integration_tests::manifests::{NAMESPACE, deploy};
use libcalico::kubernetes::ApiGroup;
use serde_json::json;

use super::can_render;

/// An address of the pod. The API server sends no requests to loopback addresses.
const POD_IP: &str = "10.9.0.9";

/// Returns the command of docs/beside-upstream.md for this pod.
fn documented(pod: &str) -> Vec<String> {
    let page = fs::read_to_string(deploy("../docs/beside-upstream.md")).unwrap();
    let row = page
        .lines()
        .find(|line| line.contains("wget -qO- http://localhost:9094/metrics"))
        .unwrap();
    let command = row.split('`').nth(3).unwrap().replace("POD", pod);
    command.split(' ').skip(1).map(str::to_owned).collect()
}

#[test]
fn documented_replacement_for_wget_reads_the_metrics() {
    if !can_render() {
        return;
    }
    on_shared_kubernetes(|host, servers| {
        let cluster = ControllersCluster::new(host, servers, Some(ApiGroup::CrdV1));
        // A link ends with the test.
        for command in [
            "link add near type veth peer name far",
            "link set far up",
            "link set near up",
            &format!("address add {POD_IP}/32 dev near"),
        ] {
            ip(command).unwrap();
        }
        let controllers = cluster.setup().start(host, "controllers").unwrap();
        servers
            .api
            .service_account(NAMESPACE, "calico-kube-controllers")
            .unwrap();
        cluster.apply(json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": { "name": "controllers-1", "namespace": NAMESPACE },
            "spec": { "nodeName": "n1", "serviceAccountName": "calico-kube-controllers",
                "containers": [{ "name": "c", "image": "i", "ports": [{ "containerPort": 9094 }] }] },
        }));
        let status = json!({
            "status": { "phase": "Running", "podIP": POD_IP, "podIPs": [{ "ip": POD_IP }] }
        });
        cluster.merge(
            &format!("/api/v1/namespaces/{NAMESPACE}/pods/controllers-1/status"),
            &status,
        );
        let command = documented("controllers-1");
        let args: Vec<&str> = command.iter().map(String::as_str).collect();
        let said = || servers.api.kubectl(&args);
        let served = await_that(PATIENCE, || {
            Ok(said().is_ok_and(|text| text.contains("kube_controllers_build_info")))
        });
        assert!(
            served.is_ok(),
            "{args:?}: {:?}\n{}",
            said(),
            controllers.log().unwrap()
        );
    });
}

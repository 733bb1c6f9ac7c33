//! The installer that continues as the agent, with Calico's objects in etcd.

use integration_tests::etcd;
use integration_tests::proxy::Proxy;
use serde_json::json;

use crate::installer_agent::pod::in_pod;

/// The agent does not check whether the Node exists.
#[test]
fn installer_retries_the_node_creation_until_etcd_responds() {
    in_pod(|_, kubernetes, mut pod| {
        let proxy = Proxy::start(etcd::ENDPOINT.trim_start_matches("http://")).unwrap();
        let conf = json!({
            "type": "calico", "datastore_type": "etcdv3", "etcd_endpoints": proxy.endpoint(),
        });
        for (name, value) in [
            ("CNI_NETWORK_CONFIG", conf.to_string().as_str()),
            ("CNI_TRY_SECONDS", "600"),
            ("KUBERNETES_NODE_NAME", "node1"),
        ] {
            pod.set(name, value);
        }
        proxy.go_away();
        let installer = pod.installer_that_stays().unwrap();
        installer.await_log("trying again: ").unwrap();
        proxy.arm(None);
        installer.await_log("created Node node1").unwrap();
        let made = kubernetes.etcd.dump().unwrap();
        assert!(made.contains_key("/calico/resources/v3/projectcalico.org/nodes/node1"));
        installer.await_page("/readiness", 200).unwrap();
    });
}

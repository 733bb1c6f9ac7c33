//! On an idle node, the agent replays deferred DELs.

use std::fs;

use integration_tests::content::Content;
use integration_tests::kubernetes::Objects;
use integration_tests::node_pod::NAMESPACE;
use integration_tests::plugin::Plugins;
use integration_tests::store::Store;
use libcalico::kubernetes::ApiGroup;
use serde_json::json;

use crate::scene::{CONF, PLUGINS, in_pod, install};

const CONTAINER: &str = "0123456789abcdef";

/// The agent's own account may not release addresses.
#[test]
fn agent_replays_deferred_dels_once_the_datastore_is_ready() {
    in_pod(|_, kubernetes, mut pod| {
        let (api, group) = (&kubernetes.api, ApiGroup::CrdV1);
        api.define(group.api_version()).unwrap();
        let store = Store::Kubernetes(Objects::new(api.admin(), group, pod.kubeconfig()));
        store.load(&Content::dual_stack().objects(group)).unwrap();
        api.admin().node("node1").unwrap();
        api.bind(&api.service_account(NAMESPACE, PLUGINS).unwrap(), "cluster-admin").unwrap();
        install(&mut pod);
        let conf = json!({
            "cniVersion": "1.0.0", "name": "k8s-pod-network", "type": "calico", "datastore_type": "kubernetes",
            "nodename": "node1", "ipam": { "type": "calico-ipam" }, "kubernetes": { "kubeconfig": pod.kubeconfig() },
        });
        let plugins = Plugins::locate().unwrap();
        let add = plugins.verb("calico-ipam", "ADD", CONTAINER, std::path::Path::new("/none"), &conf);
        add.run().unwrap().success();
        let handle = format!("k8s-pod-network.{CONTAINER}");
        let pending_del = json!({
            "network": "k8s-pod-network", "container_id": CONTAINER, "ifname": "eth0", "node": "node1",
            "datastore": "kubernetes /etc/cni/net.d/calico-kubeconfig",
            "endpoint": ["default", "node1-k8s-gone-eth0"], "handles": [handle],
        });
        let entry = pod.container.file("var/lib/calico/cni-journal/deferred.json", pending_del.to_string()).unwrap();
        assert!(pod.container.path(integration_tests::installation::NET).join(CONF).exists());

        let set_ready = |ready: bool| {
            let mut cluster = store.dump().unwrap()["clusterinformations/default"].clone();
            cluster["spec"]["datastoreReady"] = json!(ready);
            store.put("clusterinformations/default", &cluster).unwrap();
        };
        set_ready(false);
        let before = store.dump().unwrap();
        let mut agent = pod.agent().unwrap();
        agent.await_log("the datastore is not ready").unwrap();
        agent.terminate().unwrap();
        assert_eq!(store.dump().unwrap(), before);
        assert!(entry.exists());

        set_ready(true);
        let mut agent = pod.agent().unwrap();
        agent.await_log("replayed 1 deferred DELs; 0 remain").unwrap();
        agent.terminate().unwrap();
        assert!(!entry.exists());
        assert!(!store.dump().unwrap().keys().any(|key| key.contains(CONTAINER)));
        let learned = fs::read_dir(entry.parent().unwrap()).unwrap().flatten();
        let learned: Vec<_> = learned.map(|file| file.path()).filter(|path| path.extension().is_some()).collect();
        assert!(learned.len() == 1 && learned[0].extension().unwrap() == "datastore", "{learned:?}");
    });
}

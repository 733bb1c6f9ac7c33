//! Pods of a real API server, called as a kubelet calls.

use integration_tests::kubernetes::{ApiServer, on_kubernetes};
use integration_tests::namespaces::Host;
use integration_tests::plugin::{Call, Plugins};
use serde_json::{Value, json};

const ARGS: &str = "IgnoreUnknown=1;K8S_POD_NAMESPACE=golden;K8S_POD_NAME=web-1";

struct Cluster<'a> {
    host: &'a Host,
    api: &'a ApiServer,
    plugins: Plugins,
}

impl Cluster<'_> {
    fn conf(&self) -> Value {
        json!({
            "cniVersion": "1.0.0", "name": "k8s-pod-network", "type": "calico", "log_level": "error",
            "datastore_type": "kubernetes", "calico_api_group": "projectcalico.org/v3",
            "kubernetes": { "kubeconfig": self.api.admin_kubeconfig() },
            "nodename": "node1", "nodename_file_optional": true,
            "ipam": { "type": "calico-ipam" }, "policy": { "type": "k8s" },
        })
    }

    fn verb(&self, verb: &str, container: &str) -> Call {
        let netns = std::path::Path::new(integration_tests::namespaces::NETNS_DIR).join(container);
        self.plugins.verb("calico", verb, container, &netns, &self.conf()).env("CNI_ARGS", ARGS)
    }
}

fn prepare(api: &ApiServer) {
    api.namespace("golden").unwrap();
    let v3 = "projectcalico.org/v3";
    for object in [
        json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": "node1" } }),
        json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "web-1", "namespace": "golden" },
                "spec": { "nodeName": "node1", "containers": [{ "name": "c", "image": "none" }] } }),
        json!({ "apiVersion": v3, "kind": "ClusterInformation", "metadata": { "name": "default" },
                "spec": { "datastoreReady": true } }),
        json!({ "apiVersion": v3, "kind": "IPPool", "metadata": { "name": "pool4" },
                "spec": { "cidr": "10.65.0.0/16", "blockSize": 26 } }),
    ] {
        api.admin().apply_object(&object).unwrap();
    }
}

#[test]
fn a_pod_gets_its_network_and_gives_it_back() {
    on_kubernetes(|host, kubernetes| {
        kubernetes.api.define_anything("projectcalico.org/v3");
        prepare(&kubernetes.api);
        host.add_uplink().unwrap();
        host.add_pod("c1").unwrap();
        let cluster = Cluster { host, api: &kubernetes.api, plugins: Plugins::locate().unwrap() };
        let audit = kubernetes.api.audit().unwrap();
        let result = cluster.verb("ADD", "c1").run().unwrap().success();
        println!("{}\n{:#?}", result, audit.lines().unwrap());
        let pod = kubernetes.api.admin().get("/api/v1/namespaces/golden/pods/web-1").unwrap().success().unwrap();
        let annotations = &pod["metadata"]["annotations"];
        assert_eq!(annotations["cni.projectcalico.org/containerID"], "c1");
        assert_eq!(annotations["cni.projectcalico.org/podIP"], result["ips"][0]["address"]);
        cluster.verb("DEL", "c1").run().unwrap().success();
        println!("{:#?}", audit.lines().unwrap());
        let pod = kubernetes.api.admin().get("/api/v1/namespaces/golden/pods/web-1").unwrap().success().unwrap();
        assert_eq!(pod["metadata"]["annotations"]["cni.projectcalico.org/podIP"], "");
        let blocks = kubernetes.api.admin().get("/apis/projectcalico.org/v3/ipamhandles").unwrap().success().unwrap();
        assert_eq!(blocks["items"], json!([]));
        let _ = cluster.host;
    });
}

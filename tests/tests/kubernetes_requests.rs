//! How many requests a pod costs the API server, and how many of them wait for each other, from its audit log.

use std::path::Path;

use integration_tests::kubernetes::{ApiServer, Kubernetes, Request, on_kubernetes, rounds};
use integration_tests::namespaces::{Host, NETNS_DIR};
use integration_tests::plugin::{Call, Plugins};
use serde_json::{Value, json};

const GROUPS: [&str; 2] = ["crd.projectcalico.org/v1", "projectcalico.org/v3"];

/// A cluster of one node with one pool for each family.
struct Cluster<'a> {
    host: &'a Host,
    api: &'a ApiServer,
    group: &'static str,
    plugins: Plugins,
}

impl Cluster<'_> {
    fn call(&self, verb: &str, pod: &str, families: &[&str]) -> Call {
        let assign = |family| if families.contains(&family) { "true" } else { "false" };
        let conf = json!({
            "cniVersion": "1.0.0", "name": "k8s-pod-network", "type": "calico", "log_level": "error",
            "datastore_type": "kubernetes", "calico_api_group": self.group,
            "kubernetes": { "kubeconfig": self.api.admin_kubeconfig() },
            "nodename": "node1", "nodename_file_optional": true,
            "ipam": { "type": "calico-ipam", "assign_ipv4": assign("4"), "assign_ipv6": assign("6") },
            "policy": { "type": "k8s" },
        });
        let args = format!("IgnoreUnknown=1;K8S_POD_NAMESPACE=golden;K8S_POD_NAME={pod}");
        self.plugins.verb("calico", verb, pod, &Path::new(NETNS_DIR).join(pod), &conf).env("CNI_ARGS", args)
    }

    /// Creates a pod and a namespace for its sandbox.
    fn pod(&self, name: &str) {
        self.host.ensure_pod(name).unwrap();
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name, "namespace": "golden" },
            "spec": { "nodeName": "node1", "containers": [{ "name": "c", "image": "none" }] },
        });
        self.api.admin().create("/api/v1/namespaces/golden/pods", &pod).unwrap().success().unwrap();
    }

    /// The requests of one call, those of the program alone.
    fn requests(&self, verb: &str, pod: &str, families: &[&str]) -> Vec<Request> {
        let audit = self.api.audit().unwrap();
        let outcome = self.call(verb, pod, families).run().unwrap();
        assert_eq!(outcome.exit, Some(0), "{outcome:?}");
        audit.requests().unwrap()
    }
}

fn on_each_group(test: impl Fn(&Cluster<'_>) + Send + Sync) {
    on_kubernetes(|host, Kubernetes { api, .. }| {
        api.namespace("golden").unwrap();
        let node = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": "node1" } });
        api.admin().apply_object(&node).unwrap();
        host.add_uplink().unwrap();
        for group in GROUPS {
            api.define(group).unwrap();
            let of_kind = |kind: &str, name: &str, spec: Value| {
                let object = json!({ "apiVersion": group, "kind": kind, "metadata": { "name": name }, "spec": spec });
                api.admin().apply_object(&object).unwrap();
            };
            of_kind("ClusterInformation", "default", json!({ "datastoreReady": true }));
            of_kind("IPPool", "pool4", json!({ "cidr": "10.65.0.0/16", "blockSize": 26 }));
            of_kind("IPPool", "pool6", json!({ "cidr": "fd65::/64", "blockSize": 122 }));
            test(&Cluster { host, api, group, plugins: Plugins::locate().unwrap() });
            for pod in ["first", "web"] {
                api.admin().delete(&format!("/api/v1/namespaces/golden/pods/{pod}")).unwrap();
            }
        }
    });
}

/// One line each, for messages.
fn listed(requests: &[Request]) -> String {
    requests.iter().map(|request| format!("{request}\n")).collect()
}

fn assert_within(what: &str, requests: &[Request], most: usize, in_sequence: usize) {
    let told = format!("{what}: {} in {}\n{}", requests.len(), rounds(requests), listed(requests));
    assert!(requests.len() <= most, "{told}");
    // Nothing that grows with the cluster is listed: of affinities only the node's own.
    for request in requests.iter().filter(|request| request.verb == "list") {
        let small = ["ippools", "ipreservations"].contains(&request.resource.as_str());
        assert!(small || request.uri.contains("labelSelector="), "{told}");
    }
}

#[test]
fn a_warm_add_and_its_del() {
    on_each_group(|cluster| {
        for families in [&["4"][..], &["6"], &["4", "6"]] {
            let more = families.len() - 1;
            cluster.pod("first");
            cluster.call("ADD", "first", families).run().unwrap().success();
            cluster.pod("web");
            assert_within("ADD", &cluster.requests("ADD", "web", families), 12 + 2 * more, 4 + more);
            assert_within("DEL", &cluster.requests("DEL", "web", families), 8 + 2 * more, 4 + more);
            assert_within("the last DEL", &cluster.requests("DEL", "first", families), 10 + 2 * more, 5 + more);
            assert_within("a second DEL", &cluster.requests("DEL", "first", families), 5, 2);
            for pod in ["first", "web"] {
                cluster.api.admin().delete(&format!("/api/v1/namespaces/golden/pods/{pod}")).unwrap();
            }
        }
    });
}

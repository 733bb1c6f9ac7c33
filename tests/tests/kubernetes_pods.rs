//! Pods of a real API server with `components/node-restriction`, with calls as from a kubelet.

use std::path::{Path, PathBuf};

use integration_tests::kernel;
use integration_tests::kubernetes::{ApiServer, Kubernetes, on_kubernetes};
use integration_tests::namespaces::{Host, NETNS_DIR};
use integration_tests::plugin::{Call, Plugins};
use libcalico::kubernetes::ApiGroup;
use serde_json::{Value, json};

const POD: &str = "/api/v1/namespaces/golden/pods/web-1";
/// `cali` and the beginning of the SHA-1 of `golden.web-1`, as in upstream.
const HOST_LINK: &str = "calie4cf1310d2b";

struct Cluster<'a> {
    host: &'a Host,
    api: &'a ApiServer,
    group: &'static str,
    plugins: Plugins,
    /// The kubeconfig with the token of the node.
    kubeconfig: PathBuf,
}

impl Cluster<'_> {
    fn conf(&self) -> Value {
        json!({
            "cniVersion": "1.0.0", "name": "k8s-pod-network", "type": "calico",
            "log_level": "error",
            "datastore_type": "kubernetes", "calico_api_group": self.group,
            "kubernetes": { "kubeconfig": self.kubeconfig },
            "nodename": "node1", "nodename_file_optional": true,
            "ipam": { "type": "calico-ipam" }, "policy": { "type": "k8s" },
        })
    }

    /// Prepares a CNI call. The network namespace has the name of the sandbox.
    fn verb(&self, verb: &str, sandbox: &str) -> Call {
        let netns = Path::new(NETNS_DIR).join(sandbox);
        let args = "IgnoreUnknown=1;K8S_POD_NAMESPACE=golden;K8S_POD_NAME=web-1";
        self.plugins
            .verb("calico", verb, sandbox, &netns, &self.conf())
            .env("CNI_ARGS", args)
    }

    fn get(&self, path: &str) -> Value {
        self.api.admin().get(path).unwrap().success().unwrap()
    }

    fn annotation(&self, name: &str) -> Value {
        self.get(POD)["metadata"]["annotations"][format!("cni.projectcalico.org/{name}")].clone()
    }

    fn custom(&self, plural: &str) -> Vec<Value> {
        self.get(&format!("/apis/{}/{plural}", self.group))["items"]
            .as_array()
            .unwrap()
            .clone()
    }

    fn create_pod(&self, annotations: &Value) {
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": { "name": "web-1", "namespace": "golden", "annotations": annotations },
            "spec": { "nodeName": "node1", "containers": [{ "name": "c", "image": "none" }] },
        });
        self.api
            .admin()
            .create("/api/v1/namespaces/golden/pods", &pod)
            .unwrap()
            .success()
            .unwrap();
    }

    fn delete_pod(&self) {
        self.api.admin().delete(POD).unwrap().success().unwrap();
    }
}

/// Runs a test once for each API group. Expects that the server refuses no request of the plugins.
fn on_each_group(test: impl Fn(&Cluster<'_>) + Send + Sync) {
    on_kubernetes(|host, Kubernetes { api, .. }| {
        api.namespace("golden").unwrap();
        let (account, tokens) = api.restrict_nodes(&["node1"]).unwrap();
        let token = &tokens["node1"];
        let kubeconfig = api.kubeconfig("node1", token).unwrap();
        host.add_uplink().unwrap();
        for group in [ApiGroup::CrdV1, ApiGroup::V3] {
            api.define(group.api_version()).unwrap();
            api.await_node_restriction(group, token).unwrap();
            let group = group.api_version();
            for object in [
                json!({ "apiVersion": group, "kind": "ClusterInformation",
                        "metadata": { "name": "default" },
                        "spec": { "datastoreReady": true } }),
                json!({ "apiVersion": group, "kind": "IPPool", "metadata": { "name": "pool4" },
                        "spec": { "cidr": "10.65.0.0/16", "blockSize": 26 } }),
                json!({ "apiVersion": group, "kind": "IPPool", "metadata": { "name": "other" },
                        "spec": { "cidr": "10.66.0.0/16", "blockSize": 26, "nodeSelector": "!all()" } }),
            ] {
                api.admin().apply_object(&object).unwrap();
            }
            let (plugins, kubeconfig) = (Plugins::locate().unwrap(), kubeconfig.clone());
            let audit = api.audit().unwrap();
            test(&Cluster {
                host,
                api,
                group,
                plugins,
                kubeconfig,
            });
            audit.assert_nothing_refused(&account.user);
        }
    });
}

#[test]
fn add_connects_a_pod_and_repeated_del_releases_everything() {
    on_each_group(|cluster| {
        cluster.create_pod(&json!({}));
        cluster.host.ensure_pod("c1").unwrap();
        let result = cluster.verb("ADD", "c1").run().unwrap().success();
        let address = result["ips"][0]["address"].clone();
        assert_eq!(result["interfaces"][0]["name"], HOST_LINK);
        assert_eq!(
            (
                cluster.annotation("containerID"),
                cluster.annotation("podIP")
            ),
            (json!("c1"), address.clone())
        );
        assert_eq!(cluster.annotation("podIPs"), address);
        let link = kernel::pod(cluster.host, "c1").unwrap();
        assert_eq!(
            link["links"]["eth0"]["addrs"][0],
            format!("{} global", address.as_str().unwrap())
        );
        assert_eq!(
            (
                cluster.custom("ipamblocks").len(),
                cluster.custom("ipamhandles").len()
            ),
            (1, 1)
        );

        let mut check = cluster.conf();
        check["prevResult"] = result;
        cluster
            .verb("CHECK", "c1")
            .stdin(check.to_string())
            .run()
            .unwrap()
            .success();
        for _ in 0..2 {
            cluster.verb("DEL", "c1").run().unwrap().success();
            assert_eq!(
                (cluster.annotation("podIP"), cluster.annotation("podIPs")),
                (json!(""), json!(""))
            );
            assert!(cluster.custom("ipamhandles").is_empty());
        }
        cluster.delete_pod();
    });
}

#[test]
fn late_del_of_an_old_sandbox_keeps_the_new_sandboxs_address() {
    on_each_group(|cluster| {
        cluster.create_pod(&json!({}));
        for sandbox in ["c1", "c2"] {
            cluster.host.ensure_pod(sandbox).unwrap();
            cluster.verb("ADD", sandbox).run().unwrap().success();
        }
        let address = cluster.annotation("podIP");
        cluster.verb("DEL", "c1").run().unwrap().success();
        assert_eq!(
            (
                cluster.annotation("containerID"),
                cluster.annotation("podIP")
            ),
            (json!("c2"), address)
        );
        assert_eq!(cluster.custom("ipamhandles").len(), 1);
        // The pod may be deleted from the API server before its last DEL.
        cluster.delete_pod();
        cluster.verb("DEL", "c2").run().unwrap().success();
        assert!(cluster.custom("ipamhandles").is_empty());
    });
}

#[test]
fn gc_releases_unlisted_containers_of_pods_without_listing_pods() {
    on_each_group(|cluster| {
        cluster.create_pod(&json!({}));
        cluster.host.ensure_pod("c1").unwrap();
        cluster.verb("ADD", "c1").run().unwrap().success();
        let address = cluster.annotation("podIP");
        let gc = |valid: Value| {
            let mut conf = cluster.conf();
            conf["cniVersion"] = json!("1.1.0");
            conf["cni.dev/valid-attachments"] = valid;
            let audit = cluster.api.audit().unwrap();
            let call = cluster
                .plugins
                .call("calico")
                .env("CNI_COMMAND", "GC")
                .stdin(conf.to_string());
            call.run().unwrap().success();
            let lines = audit.lines().unwrap();
            assert!(
                !lines.iter().any(|line| line.starts_with("list pods")),
                "{lines:?}"
            );
        };
        gc(json!([{ "containerID": "c1", "ifname": "eth0" }]));
        assert_eq!(
            (
                cluster.annotation("podIP"),
                cluster.custom("ipamhandles").len()
            ),
            (address.clone(), 1)
        );
        // A runtime may list another interface of the container.
        gc(json!([{ "containerID": "c1", "ifname": "net1" }]));
        assert_eq!(
            (
                cluster.annotation("podIP"),
                cluster.custom("ipamhandles").len()
            ),
            (address, 1)
        );
        assert_ne!(kernel::pod(cluster.host, "c1").unwrap()["links"], json!({}));
        gc(json!([]));
        assert_eq!(
            (cluster.annotation("podIP"), cluster.annotation("podIPs")),
            (json!(""), json!(""))
        );
        assert!(cluster.custom("ipamhandles").is_empty());
        assert_eq!(kernel::pod(cluster.host, "c1").unwrap()["links"], json!({}));
        cluster.delete_pod();
    });
}

/// A tenant may name the container of another pod in annotations.
#[test]
fn gc_keeps_a_container_that_only_an_annotation_names() {
    on_each_group(|cluster| {
        cluster.create_pod(&json!({}));
        for sandbox in ["c1", "x1"] {
            cluster.host.ensure_pod(sandbox).unwrap();
        }
        cluster.verb("ADD", "c1").run().unwrap().success();
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": { "name": "web-2", "namespace": "golden" },
            "spec": { "nodeName": "node1", "containers": [{ "name": "c", "image": "none" }] },
        });
        cluster
            .api
            .admin()
            .create("/api/v1/namespaces/golden/pods", &pod)
            .unwrap()
            .success()
            .unwrap();
        let mut other = cluster.conf();
        other["name"] = json!("other-network");
        let netns = Path::new(NETNS_DIR).join("x1");
        let args = "K8S_POD_NAMESPACE=golden;K8S_POD_NAME=web-2";
        let call = |verb: &str| {
            let call = cluster
                .plugins
                .verb("calico", verb, "x1", &netns, &other)
                .env("CNI_ARGS", args);
            call.run().unwrap().success();
        };
        call("ADD");
        let before = kernel::pod(cluster.host, "x1").unwrap();
        let change =
            json!({ "metadata": { "annotations": { "cni.projectcalico.org/containerID": "x1" } } });
        cluster
            .api
            .admin()
            .patch(POD, &change)
            .unwrap()
            .success()
            .unwrap();
        let mut conf = cluster.conf();
        conf["cniVersion"] = json!("1.1.0");
        conf["cni.dev/valid-attachments"] = json!([]);
        conf["feature_control"] = json!({ "gc_running_containers": true });
        let gc = cluster
            .plugins
            .call("calico")
            .env("CNI_COMMAND", "GC")
            .stdin(conf.to_string());
        gc.run().unwrap().success();
        assert_eq!(kernel::pod(cluster.host, "x1").unwrap(), before);
        assert_eq!(kernel::pod(cluster.host, "c1").unwrap()["links"], json!({}));
        assert_eq!(cluster.custom("ipamhandles").len(), 1, "the handle of x1");
        call("DEL");
        cluster.delete_pod();
        cluster
            .api
            .admin()
            .delete("/api/v1/namespaces/golden/pods/web-2")
            .unwrap()
            .success()
            .unwrap();
    });
}

/// The runtime runs this DEL after a failed ADD of the second interface.
#[test]
fn del_of_a_second_interface_of_a_deleted_pod_changes_nothing() {
    on_each_group(|cluster| {
        cluster.create_pod(&json!({}));
        cluster.host.ensure_pod("c1").unwrap();
        cluster.verb("ADD", "c1").run().unwrap().success();
        cluster.delete_pod();
        let before = kernel::pod(cluster.host, "c1").unwrap();
        cluster
            .verb("DEL", "c1")
            .env("CNI_IFNAME", "net1")
            .run()
            .unwrap()
            .success();
        assert_eq!(
            (
                kernel::pod(cluster.host, "c1").unwrap(),
                cluster.custom("ipamhandles").len()
            ),
            (before, 1)
        );
        cluster.verb("DEL", "c1").run().unwrap().success();
        assert!(cluster.custom("ipamhandles").is_empty());
        assert_eq!(kernel::pod(cluster.host, "c1").unwrap()["links"], json!({}));
    });
}

/// The runtime may also call ADD of eth0 last, and DEL without the namespace.
#[test]
fn second_add_of_a_pod_returns_the_first_result_and_its_del_changes_nothing() {
    on_each_group(|cluster| {
        for [first, second] in [["eth0", "net1"], ["net1", "eth0"]] {
            cluster.create_pod(&json!({}));
            cluster.host.ensure_pod("c1").unwrap();
            let verb =
                |verb: &str, ifname: &str| cluster.verb(verb, "c1").env("CNI_IFNAME", ifname);
            let result = verb("ADD", first).run().unwrap().success();
            assert_eq!(result["interfaces"][1]["name"], first);
            let state = || {
                let stored = [
                    cluster.custom("ipamblocks"),
                    cluster.custom("ipamhandles"),
                    vec![cluster.get(POD)],
                ];
                (kernel::pod(cluster.host, "c1").unwrap(), stored)
            };
            let before = state();
            assert_eq!(
                verb("ADD", second).run().unwrap().success(),
                result,
                "{second} after {first}"
            );
            let mut with_first = cluster.conf();
            with_first["prevResult"] = result;
            verb("CHECK", second)
                .stdin(with_first.to_string())
                .run()
                .unwrap()
                .success();
            for conf in [&cluster.conf(), &with_first] {
                for netns in [None, Some(""), Some("/var/run/netns/gone")] {
                    let del = verb("DEL", second).stdin(conf.to_string());
                    let del = netns
                        .into_iter()
                        .fold(del, |del, netns| del.env("CNI_NETNS", netns));
                    del.run().unwrap().success();
                }
            }
            let mut gc = cluster.conf();
            gc["cniVersion"] = json!("1.1.0");
            gc["cni.dev/valid-attachments"] = json!([{ "containerID": "c1", "ifname": second }]);
            let call = cluster
                .plugins
                .call("calico")
                .env("CNI_COMMAND", "GC")
                .stdin(gc.to_string());
            call.run().unwrap().success();
            assert_eq!(state(), before, "{second} after {first}");
            verb("DEL", first).run().unwrap().success();
            assert!(cluster.custom("ipamhandles").is_empty());
            assert_eq!(kernel::pod(cluster.host, "c1").unwrap()["links"], json!({}));
            cluster.delete_pod();
        }
    });
}

#[test]
fn add_of_a_missing_pod_names_the_pod_and_allocates_nothing() {
    on_each_group(|cluster| {
        cluster.host.ensure_pod("c1").unwrap();
        let gone = cluster.verb("ADD", "c1").run().unwrap().error();
        assert_eq!(gone.msg, "pods \"web-1\" not found");
        assert!(
            cluster.custom("ipamhandles").is_empty() && cluster.custom("ipamblocks").is_empty()
        );
    });
}

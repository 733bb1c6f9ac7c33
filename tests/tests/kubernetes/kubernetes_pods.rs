//! Pods of a real API server with `components/node-restriction`, with calls as from a kubelet.

use std::path::Path;

use integration_tests::cluster::{Cluster, ControlPlane, NAMESPACE, pod_path, restricted};
use integration_tests::content::Content;
use integration_tests::kernel;
use integration_tests::kubernetes::{ApiServer, Client};
use integration_tests::namespaces::NETNS_DIR;
use integration_tests::plugin::Call;
use integration_tests::{Place, on};
use serde_json::{Value, json};

const POD: &str = "web-1";
/// `cali` and the beginning of the SHA-1 of `suite.web-1`, as in upstream.
const HOST_LINK: &str = "cali50c9618edd0";

/// The pod [`POD`] of `node1`.
struct WebPod<'a> {
    cluster: &'a Cluster<'a>,
    api: &'a ApiServer,
}

/// Expects that the server refuses no request of the plugins.
fn on(place: Place, test: fn(&WebPod<'_>)) {
    let unrefused = |cluster: &Cluster<'_>, control_plane: &mut ControlPlane<'_>| {
        cluster.load(&Content::ready().pool("pool4", "10.65.0.0/16", 26));
        let objects = cluster.objects();
        let other = json!({
            "apiVersion": objects.group().api_version(), "kind": "IPPool",
            "metadata": { "name": "other" },
            "spec": { "cidr": "10.66.0.0/16", "blockSize": 26, "nodeSelector": "!all()" },
        });
        objects.client().apply_object(&other).unwrap();
        let api = &control_plane.servers.api;
        let audit = api.audit().unwrap();
        test(&WebPod { cluster, api });
        audit.assert_nothing_refused(&control_plane.account.user);
    };
    restricted(place, unrefused);
}

impl WebPod<'_> {
    fn conf(&self) -> Value {
        self.cluster.conf("node1", json!({}))
    }

    /// Prepares a CNI call. The network namespace has the name of the sandbox.
    fn verb(&self, verb: &str, sandbox: &str) -> Call {
        let netns = Path::new(NETNS_DIR).join(sandbox);
        let args = format!("IgnoreUnknown=1;K8S_POD_NAMESPACE={NAMESPACE};K8S_POD_NAME={POD}");
        self.cluster
            .plugins
            .verb("calico", verb, sandbox, &netns, &self.conf())
            .env("CNI_ARGS", args)
    }

    fn client(&self) -> &Client {
        self.cluster.objects().client()
    }

    fn get(&self, path: &str) -> Value {
        self.client().get(path).unwrap().success()
    }

    fn annotation(&self, name: &str) -> Value {
        let pod = self.get(&pod_path(POD));
        pod["metadata"]["annotations"][format!("cni.projectcalico.org/{name}")].clone()
    }

    fn custom(&self, plural: &str) -> Vec<Value> {
        let group = self.cluster.objects().group().api_version();
        self.get(&format!("/apis/{group}/{plural}"))["items"]
            .as_array()
            .unwrap()
            .clone()
    }

    fn create(&self) {
        self.create_pod(POD);
    }

    fn create_pod(&self, name: &str) {
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": { "name": name, "namespace": NAMESPACE },
            "spec": { "nodeName": "node1", "containers": [{ "name": "c", "image": "none" }] },
        });
        let pods = format!("/api/v1/namespaces/{NAMESPACE}/pods");
        self.client().create(&pods, &pod).unwrap().success();
    }

    fn delete(&self) {
        self.delete_pod(POD);
    }

    fn delete_pod(&self, name: &str) {
        self.client().delete(&pod_path(name)).unwrap().success();
    }
}

#[on(kubernetes_v1, kubernetes_v3)]
fn add_connects_a_pod_and_repeated_del_releases_everything(web: &WebPod<'_>) {
    web.create();
    web.cluster.host.ensure_pod("c1").unwrap();
    let result = web.verb("ADD", "c1").run().success();
    let address = result["ips"][0]["address"].clone();
    assert_eq!(result["interfaces"][0]["name"], HOST_LINK);
    assert_eq!(
        (web.annotation("containerID"), web.annotation("podIP")),
        (json!("c1"), address.clone())
    );
    assert_eq!(web.annotation("podIPs"), address);
    let link = kernel::pod(web.cluster.host, "c1").unwrap();
    assert_eq!(
        link["links"]["eth0"]["addrs"][0],
        format!("{} global", address.as_str().unwrap())
    );
    assert_eq!(
        (
            web.custom("ipamblocks").len(),
            web.custom("ipamhandles").len()
        ),
        (1, 1)
    );

    let mut check = web.conf();
    check["prevResult"] = result;
    web.verb("CHECK", "c1")
        .stdin(check.to_string())
        .run()
        .success();
    for _ in 0..2 {
        web.verb("DEL", "c1").run().success();
        assert_eq!(
            (web.annotation("podIP"), web.annotation("podIPs")),
            (json!(""), json!(""))
        );
        assert!(web.custom("ipamhandles").is_empty());
    }
    web.delete();
}

#[on(kubernetes_v1, kubernetes_v3)]
fn late_del_of_an_old_sandbox_keeps_the_new_sandboxs_address(web: &WebPod<'_>) {
    web.create();
    for sandbox in ["c1", "c2"] {
        web.cluster.host.ensure_pod(sandbox).unwrap();
        web.verb("ADD", sandbox).run().success();
    }
    let address = web.annotation("podIP");
    web.verb("DEL", "c1").run().success();
    assert_eq!(
        (web.annotation("containerID"), web.annotation("podIP")),
        (json!("c2"), address)
    );
    assert_eq!(web.custom("ipamhandles").len(), 1);
    // The pod may be deleted from the API server before its last DEL.
    web.delete();
    web.verb("DEL", "c2").run().success();
    assert!(web.custom("ipamhandles").is_empty());
}

#[on(kubernetes_v1, kubernetes_v3)]
fn gc_releases_unlisted_containers_of_pods_without_listing_pods(web: &WebPod<'_>) {
    web.create();
    web.cluster.host.ensure_pod("c1").unwrap();
    web.verb("ADD", "c1").run().success();
    let address = web.annotation("podIP");
    let gc = |valid: Value| {
        let mut conf = web.conf();
        conf["cniVersion"] = json!("1.1.0");
        conf["cni.dev/valid-attachments"] = valid;
        let audit = web.api.audit().unwrap();
        let call = web
            .cluster
            .plugins
            .call("calico")
            .env("CNI_COMMAND", "GC")
            .stdin(conf.to_string());
        call.run().success();
        let lines = audit.lines().unwrap();
        assert!(
            !lines.iter().any(|line| line.starts_with("list pods")),
            "{lines:?}"
        );
    };
    gc(json!([{ "containerID": "c1", "ifname": "eth0" }]));
    assert_eq!(
        (web.annotation("podIP"), web.custom("ipamhandles").len()),
        (address.clone(), 1)
    );
    // A runtime may list another interface of the container.
    gc(json!([{ "containerID": "c1", "ifname": "net1" }]));
    assert_eq!(
        (web.annotation("podIP"), web.custom("ipamhandles").len()),
        (address, 1)
    );
    assert_ne!(
        kernel::pod(web.cluster.host, "c1").unwrap()["links"],
        json!({})
    );
    gc(json!([]));
    assert_eq!(
        (web.annotation("podIP"), web.annotation("podIPs")),
        (json!(""), json!(""))
    );
    assert!(web.custom("ipamhandles").is_empty());
    assert_eq!(
        kernel::pod(web.cluster.host, "c1").unwrap()["links"],
        json!({})
    );
    web.delete();
}

/// A tenant may name the container of another pod in annotations.
#[on(kubernetes_v1)]
fn gc_keeps_a_container_that_only_an_annotation_names(web: &WebPod<'_>) {
    web.create();
    for sandbox in ["c1", "x1"] {
        web.cluster.host.ensure_pod(sandbox).unwrap();
    }
    web.verb("ADD", "c1").run().success();
    web.create_pod("web-2");
    let mut other = web.conf();
    other["name"] = json!("other-network");
    let netns = Path::new(NETNS_DIR).join("x1");
    let args = format!("K8S_POD_NAMESPACE={NAMESPACE};K8S_POD_NAME=web-2");
    let call = |verb: &str| {
        let call = web
            .cluster
            .plugins
            .verb("calico", verb, "x1", &netns, &other)
            .env("CNI_ARGS", &args);
        call.run().success();
    };
    call("ADD");
    let before = kernel::pod(web.cluster.host, "x1").unwrap();
    let change =
        json!({ "metadata": { "annotations": { "cni.projectcalico.org/containerID": "x1" } } });
    web.client()
        .patch(&pod_path(POD), &change)
        .unwrap()
        .success();
    let mut conf = web.conf();
    conf["cniVersion"] = json!("1.1.0");
    conf["cni.dev/valid-attachments"] = json!([]);
    conf["feature_control"] = json!({ "gc_running_containers": true });
    let gc = web
        .cluster
        .plugins
        .call("calico")
        .env("CNI_COMMAND", "GC")
        .stdin(conf.to_string());
    gc.run().success();
    assert_eq!(kernel::pod(web.cluster.host, "x1").unwrap(), before);
    assert_eq!(
        kernel::pod(web.cluster.host, "c1").unwrap()["links"],
        json!({})
    );
    assert_eq!(web.custom("ipamhandles").len(), 1, "the handle of x1");
    call("DEL");
    web.delete();
    web.delete_pod("web-2");
}

/// The runtime runs this DEL after a failed ADD of the second interface.
#[on(kubernetes_v1)]
fn del_of_a_second_interface_of_a_deleted_pod_changes_nothing(web: &WebPod<'_>) {
    web.create();
    web.cluster.host.ensure_pod("c1").unwrap();
    web.verb("ADD", "c1").run().success();
    web.delete();
    let before = kernel::pod(web.cluster.host, "c1").unwrap();
    web.verb("DEL", "c1")
        .env("CNI_IFNAME", "net1")
        .run()
        .success();
    assert_eq!(
        (
            kernel::pod(web.cluster.host, "c1").unwrap(),
            web.custom("ipamhandles").len()
        ),
        (before, 1)
    );
    web.verb("DEL", "c1").run().success();
    assert!(web.custom("ipamhandles").is_empty());
    assert_eq!(
        kernel::pod(web.cluster.host, "c1").unwrap()["links"],
        json!({})
    );
}

/// The runtime may also call ADD of eth0 last, and DEL without the namespace. Shows SEC-48.
#[on(kubernetes_v1)]
fn second_add_of_a_pod_returns_the_first_result_and_its_del_changes_nothing(web: &WebPod<'_>) {
    for [first, second] in [["eth0", "net1"], ["net1", "eth0"]] {
        web.create();
        web.cluster.host.ensure_pod("c1").unwrap();
        let verb = |verb: &str, ifname: &str| web.verb(verb, "c1").env("CNI_IFNAME", ifname);
        let result = verb("ADD", first).run().success();
        assert_eq!(result["interfaces"][1]["name"], first);
        let state = || {
            let stored = [
                web.custom("ipamblocks"),
                web.custom("ipamhandles"),
                vec![web.get(&pod_path(POD))],
            ];
            (kernel::pod(web.cluster.host, "c1").unwrap(), stored)
        };
        let before = state();
        assert_eq!(
            verb("ADD", second).run().success(),
            result,
            "{second} after {first}"
        );
        let mut with_first = web.conf();
        with_first["prevResult"] = result;
        verb("CHECK", second)
            .stdin(with_first.to_string())
            .run()
            .success();
        for conf in [&web.conf(), &with_first] {
            for netns in [None, Some(""), Some("/var/run/netns/gone")] {
                let del = verb("DEL", second).stdin(conf.to_string());
                let del = netns
                    .into_iter()
                    .fold(del, |del, netns| del.env("CNI_NETNS", netns));
                del.run().success();
            }
        }
        let mut gc = web.conf();
        gc["cniVersion"] = json!("1.1.0");
        gc["cni.dev/valid-attachments"] = json!([{ "containerID": "c1", "ifname": second }]);
        let call = web
            .cluster
            .plugins
            .call("calico")
            .env("CNI_COMMAND", "GC")
            .stdin(gc.to_string());
        call.run().success();
        assert_eq!(state(), before, "{second} after {first}");
        verb("DEL", first).run().success();
        assert!(web.custom("ipamhandles").is_empty());
        assert_eq!(
            kernel::pod(web.cluster.host, "c1").unwrap()["links"],
            json!({})
        );
        web.delete();
    }
}

#[on(kubernetes_v1)]
fn add_of_a_missing_pod_names_the_pod_and_allocates_nothing(web: &WebPod<'_>) {
    web.cluster.host.ensure_pod("c1").unwrap();
    let gone = web.verb("ADD", "c1").run().error();
    assert_eq!(gone.msg, "pods \"web-1\" not found");
    assert!(web.custom("ipamhandles").is_empty() && web.custom("ipamblocks").is_empty());
}

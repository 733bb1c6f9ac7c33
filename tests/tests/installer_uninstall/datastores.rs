//! Addresses that are given back to a cluster's datastore, and those that stay.

use std::fs;
use std::path::Path;

use integration_tests::content::{Content, NETWORK};
use integration_tests::etcd::{self, Etcd};
use integration_tests::installation::{Container, NET};
use integration_tests::kubernetes::{ApiServer, ENDPOINT, Kubernetes, Objects, on_kubernetes};
use integration_tests::namespaces::{Host, isolated};
use integration_tests::node_pod::{NodePod, may_make_tokens};
use integration_tests::plugin::Plugins;
use integration_tests::skip::skipped;
use libcalico::kubernetes::ApiGroup;
use serde_json::{Value, json};

use super::uninstall;

const NODE: &str = "node1";
const GROUP: &str = "crd.projectcalico.org/v1";
const RELEASE: [&str; 2] = ["--yes", "--release-addresses"];

/// Takes an address for a container of a network, without an interface: as one holds it whose pod is gone. Returns
/// the address.
fn hold(host: &Host, datastore: &Value, network: &str, container: &str, args: &str) -> String {
    let mut conf = json!({
        "cniVersion": "1.0.0", "name": network, "type": "calico", "log_level": "error", "nodename": NODE,
        "nodename_file_optional": true, "ipam": { "type": "calico-ipam" },
    });
    conf.as_object_mut().unwrap().extend(datastore.as_object().unwrap().clone());
    let netns = host.ensure_pod("pod").unwrap();
    let call = Plugins::locate().unwrap().verb("calico-ipam", "ADD", container, &netns, &conf);
    let result = call.env("CNI_ARGS", args).run().unwrap().success();
    result["ips"][0]["address"].as_str().unwrap().split('/').next().unwrap().to_owned()
}

/// Of three containers one is of this network and no virtual machine's. `rows` are what the blocks say: how many addresses
/// are held, and whose the block is.
#[track_caller]
fn only_what_is_this_networks_is_given_back(
    host: &Host,
    container: &Container,
    datastore: &Value,
    blocks: impl Fn() -> Vec<Value>,
) {
    for (network, id) in [(NETWORK, "abc"), (NETWORK, "machine.1"), ("another", "abc")] {
        hold(host, datastore, network, id, "");
    }
    let held = |block: &Value| block["allocations"].as_array().unwrap().iter().filter(|slot| !slot.is_null()).count();
    assert_eq!(blocks().iter().map(held).collect::<Vec<_>>(), [3]);
    assert_eq!(blocks()[0]["affinity"], format!("host:{NODE}"));

    let dry = uninstall(container, &RELEASE[1..]).run().unwrap();
    assert_eq!(dry.exit, Some(0), "{}{}", dry.stdout, dry.stderr);
    assert_eq!(blocks().iter().map(held).collect::<Vec<_>>(), [3]);
    let outcome = uninstall(container, &RELEASE).run().unwrap();
    assert_eq!(outcome.exit, Some(0), "{}{}", outcome.stdout, outcome.stderr);
    let said = &outcome.stdout;
    assert!(said.contains(&format!("released the addresses of 1 containers and 1 blocks of node {NODE}")), "{said}");
    for said in [said, &dry.stdout] {
        let (_, left) = said.split_once("left on this node:\n").unwrap();
        for handle in [format!("{NETWORK}.machine.1"), "another.abc".into()] {
            let words = format!(", held as {handle}: it is of no container of this network; ");
            assert!(left.contains(&words), "{words} is not in {said}");
        }
        assert!(!left.contains(&format!("held as {NETWORK}.abc")), "{said}");
    }
    assert_eq!(blocks().iter().map(held).collect::<Vec<_>>(), [2]);
    assert_eq!(blocks()[0]["affinity"], Value::Null, "the block is nobody's");
    assert!(container.names(NET).is_empty());
}

/// A node of a cluster with one pool, and the installation on it.
fn installation(host: &Host, api: &ApiServer) -> NodePod {
    api.define(GROUP).unwrap();
    api.cni_user().unwrap();
    for object in [
        json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": NODE } }),
        json!({ "apiVersion": GROUP, "kind": "ClusterInformation", "metadata": { "name": "default" },
                "spec": { "datastoreReady": true } }),
        json!({ "apiVersion": GROUP, "kind": "IPPool", "metadata": { "name": "pool" },
                "spec": { "cidr": "10.65.0.0/16", "blockSize": 26, "nodeSelector": "all()" } }),
    ] {
        api.admin().apply_object(&object).unwrap();
    }
    let mut pod = NodePod::new(host, api, ENDPOINT).unwrap();
    may_make_tokens(api, &pod, "calico-cni-plugin").unwrap();
    for (name, value) in [("SLEEP", "false"), ("KUBERNETES_NODE_NAME", NODE)] {
        pod.set(name, value);
    }
    let outcome = pod.calico(&["install"]).run().unwrap();
    assert_eq!(outcome.exit, Some(0), "{}", outcome.stderr);
    pod
}

/// As the plugins' user, with the role of `deploy/rbac` and no more.
#[test]
fn the_plugins_role_is_enough_on_kubernetes() {
    on_kubernetes(|host, Kubernetes { api, .. }| {
        let pod = installation(host, api);
        let kubeconfig = pod.kubeconfig();
        let datastore = json!({ "datastore_type": "kubernetes", "kubernetes": { "kubeconfig": kubeconfig } });
        let objects = Objects::new(api.admin(), ApiGroup::CrdV1, kubeconfig.clone());
        let blocks = || {
            let dump = objects.dump().unwrap().into_iter();
            dump.filter(|(key, _)| key.starts_with("ipamblocks/")).map(|(_, block)| block["spec"].clone()).collect()
        };
        // Every node does so, and blocks are those of the whole cluster.
        let audit = api.audit().unwrap();
        uninstall(&pod.container, &RELEASE[1..]).run().unwrap().success();
        let requests = audit.lines().unwrap();
        let lists = requests.iter().filter(|line| line.starts_with("list ") && line.contains("ipamblocks"));
        assert_eq!(lists.count(), 1, "{requests:?}");
        only_what_is_this_networks_is_given_back(host, &pod.container, &datastore, blocks);
        assert!(!kubeconfig.exists());
    });
}

/// The interface of such a pod is not on this host: it is on the node that has the name in the configuration.
#[test]
fn release_of_an_address_that_a_pod_reports_is_refused_until_the_pod_is_gone() {
    on_kubernetes(|host, Kubernetes { api, .. }| {
        let pod = installation(host, api);
        let kubeconfig = pod.kubeconfig();
        let datastore = json!({ "datastore_type": "kubernetes", "kubernetes": { "kubeconfig": kubeconfig } });
        let account = json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": "default", "namespace": "default" } });
        api.admin().apply_object(&account).unwrap();
        let web = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "web" },
            "spec": { "nodeName": "node2", "automountServiceAccountToken": false,
                      "containers": [{ "name": "main", "image": "busybox" }] } });
        api.admin().create("/api/v1/namespaces/default/pods", &web).unwrap().success().unwrap();
        let ip = hold(host, &datastore, NETWORK, "abc", "K8S_POD_NAMESPACE=default;K8S_POD_NAME=web");
        let url = "/api/v1/namespaces/default/pods/web";
        let report = |phase: &str| {
            let status = json!({ "status": { "phase": phase, "podIP": ip, "podIPs": [{ "ip": ip }] } });
            _ = api.admin().patch(&format!("{url}/status"), &status).unwrap().success().unwrap();
        };
        report("Running");
        let refused = format!("pods report theirs to the API server: default/web ({ip}); delete these pods first");
        for options in [&RELEASE[1..], &RELEASE, &["--yes", "--tear-down-pods", "--release-addresses"]] {
            let outcome = uninstall(&pod.container, options).run().unwrap();
            assert_eq!(outcome.exit, Some(1), "{}", outcome.stdout);
            assert!(outcome.stdout.contains(&refused), "{}", outcome.stdout);
        }
        report("Succeeded");
        let outcome = uninstall(&pod.container, &RELEASE).run().unwrap();
        assert_eq!(outcome.exit, Some(0), "{}{}", outcome.stdout, outcome.stderr);
        assert!(outcome.stdout.contains("released the addresses of 1 containers"), "{}", outcome.stdout);
    });
}

#[test]
fn addresses_go_back_to_etcd() {
    if !Etcd::installed() {
        return skipped(etcd::REQUIRES);
    }
    isolated(|host| {
        let etcd = Etcd::start(host).unwrap();
        etcd.load(Content::ready().node(NODE).pool("pool", "10.65.0.0/16", 26).pairs()).unwrap();
        let container = Container::new(host, "c").unwrap();
        let datastore = json!({ "datastore_type": "etcdv3", "etcd_endpoints": etcd::ENDPOINT });
        let mut plugin = json!({ "type": "calico", "ipam": { "type": "calico-ipam" }, "nodename": NODE });
        plugin.as_object_mut().unwrap().extend(datastore.as_object().unwrap().clone());
        let list = json!({ "name": NETWORK, "cniVersion": "1.0.0", "plugins": [plugin] }).to_string();
        let outcome = container.run(&[("CNI_NETWORK_CONFIG", &list), ("CNI_TRY_SECONDS", "0")]).unwrap();
        assert_eq!(outcome.exit, Some(0), "{}", outcome.stderr);

        let said = uninstall(&container, &[]).run().unwrap().stdout;
        assert!(said.contains("  endpoints of this node: they stay in the datastore; kube-controllers"), "{said}");
        let blocks = || {
            let dump = etcd.dump().unwrap().into_iter();
            dump.filter(|(key, _)| is_block(key)).map(|(_, block)| block).collect()
        };
        only_what_is_this_networks_is_given_back(host, &container, &datastore, blocks);
        assert!(!fs::exists(container.path(NET).join("10-calico.conflist")).unwrap());
    });
}

fn is_block(key: &str) -> bool {
    Path::new(key).starts_with("/calico/ipam/v2/assignment")
}

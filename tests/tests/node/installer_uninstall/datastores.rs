//! Addresses that uninstall releases in a cluster's datastore, and those that it keeps.

use std::fs;
use std::path::Path;

use integration_tests::cluster::{Cluster, on};
use integration_tests::content::{Content, NETWORK};
use integration_tests::etcd;
use integration_tests::installation::{Container, NET};
use integration_tests::kubernetes::{
    ApiServer, ENDPOINT, Kubernetes, Objects, on_prepared_kubernetes,
};
use integration_tests::namespaces::Host;
use integration_tests::node_pod::{NAMESPACE, NodePod, POD_ACCOUNT, may_make_tokens};
use integration_tests::plugin::Plugins;
use libcalico::kubernetes::ApiGroup;
use serde_json::{Value, json};

use super::uninstall;

const NODE: &str = "node1";
/// Calico's name of a node whose Kubernetes name differs.
const OTHER_NAME: &str = "node1.example.org";
const PODS: &str = "/api/v1/namespaces/default/pods";
const GROUP: &str = "crd.projectcalico.org/v1";
const RELEASE: [&str; 2] = ["--yes", "--release-addresses"];

/// Assigns an address to a container without an interface, as after the deletion of a pod without
/// DEL. Returns the address.
fn hold(host: &Host, datastore: &Value, network: &str, container: &str, args: &str) -> String {
    let mut conf = json!({
        "cniVersion": "1.0.0", "name": network, "type": "calico", "log_level": "error",
        "nodename": NODE,
        "nodename_file_optional": true, "ipam": { "type": "calico-ipam" },
    });
    conf.as_object_mut()
        .unwrap()
        .extend(datastore.as_object().unwrap().clone());
    let netns = host.ensure_pod("pod").unwrap();
    let call = Plugins::locate()
        .unwrap()
        .verb("calico-ipam", "ADD", container, &netns, &conf);
    let result = call.env("CNI_ARGS", args).run().success();
    result["ips"][0]["address"]
        .as_str()
        .unwrap()
        .split('/')
        .next()
        .unwrap()
        .to_owned()
}

/// Asserts that uninstall releases only the address of a container of this network. `blocks` reads
/// the blocks.
#[track_caller]
fn assert_only_this_network_is_released(
    host: &Host,
    container: &Container,
    datastore: &Value,
    blocks: impl Fn() -> Vec<Value>,
) {
    for (network, id) in [(NETWORK, "abc"), (NETWORK, "machine.1"), ("another", "abc")] {
        hold(host, datastore, network, id, "");
    }
    let held = |block: &Value| {
        block["allocations"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|slot| !slot.is_null())
            .count()
    };
    assert_eq!(blocks().iter().map(held).collect::<Vec<_>>(), [3]);
    assert_eq!(blocks()[0]["affinity"], format!("host:{NODE}"));

    let dry = uninstall(container, &RELEASE[1..]).run();
    assert_eq!(dry.exit, Some(0), "{}{}", dry.stdout, dry.stderr);
    assert_eq!(blocks().iter().map(held).collect::<Vec<_>>(), [3]);
    let outcome = uninstall(container, &RELEASE).run();
    assert_eq!(
        outcome.exit,
        Some(0),
        "{}{}",
        outcome.stdout,
        outcome.stderr
    );
    let said = &outcome.stdout;
    assert!(
        said.contains(&format!(
            "released the addresses of 1 containers and 1 blocks of node {NODE}"
        )),
        "{said}"
    );
    for said in [said, &dry.stdout] {
        let (_, left) = said.split_once("left on this node:\n").unwrap();
        for handle in [format!("{NETWORK}.machine.1"), "another.abc".into()] {
            let words = format!(
                ", allocated to handle {handle}: it belongs to no container of this network; "
            );
            assert!(left.contains(&words), "{words} is not in {said}");
        }
        assert!(
            !left.contains(&format!("allocated to handle {NETWORK}.abc")),
            "{said}"
        );
    }
    assert_eq!(blocks().iter().map(held).collect::<Vec<_>>(), [2]);
    assert_eq!(
        blocks()[0]["affinity"],
        Value::Null,
        "the block is nobody's"
    );
    assert!(container.names(NET).is_empty());
}

/// Runs a test on an API server with the accounts of an installation.
fn in_cluster(test: impl FnOnce(&Host, &mut Kubernetes) + Send) {
    let prepare = |api: &ApiServer| {
        api.define(GROUP)?;
        api.cni_user()?;
        may_make_tokens(
            api,
            &api.service_account(NAMESPACE, POD_ACCOUNT)?,
            "calico-cni-plugin",
        )
    };
    on_prepared_kubernetes("definitions and accounts", prepare, test);
}

fn installation(host: &Host, api: &ApiServer, variables: &[(&str, &str)]) -> NodePod {
    for object in [
        json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": NODE } }),
        json!({ "apiVersion": GROUP, "kind": "ClusterInformation",
                "metadata": { "name": "default" },
                "spec": { "datastoreReady": true } }),
        json!({ "apiVersion": GROUP, "kind": "IPPool", "metadata": { "name": "pool" },
                "spec": { "cidr": "10.65.0.0/16", "blockSize": 26, "nodeSelector": "all()" } }),
    ] {
        api.admin().apply_object(&object).unwrap();
    }
    let mut pod = NodePod::new(host, api, ENDPOINT).unwrap();
    for (name, value) in [("SLEEP", "false"), ("KUBERNETES_NODE_NAME", NODE)]
        .iter()
        .chain(variables)
    {
        pod.set(name, *value);
    }
    let outcome = pod.calico(&["install"]).run();
    assert_eq!(outcome.exit, Some(0), "{}", outcome.stderr);
    pod
}

/// uninstall runs as the plugins' user, with exactly the role of `deploy/rbac`.
#[test]
fn release_on_kubernetes_succeeds_with_the_plugins_role() {
    in_cluster(|host, kubernetes| {
        let api = &kubernetes.api;
        let pod = installation(host, api, &[]);
        let kubeconfig = pod.kubeconfig();
        let datastore =
            json!({ "datastore_type": "kubernetes", "kubernetes": { "kubeconfig": kubeconfig } });
        let objects = Objects::new(api.admin(), ApiGroup::CrdV1, kubeconfig.clone());
        let blocks = || {
            let dump = objects.dump().unwrap().into_iter();
            dump.filter(|(key, _)| key.starts_with("ipamblocks/"))
                .map(|(_, block)| block["spec"].clone())
                .collect()
        };
        // Uninstall runs on every node, so it must list the blocks of the whole cluster only once.
        let audit = api.audit().unwrap();
        uninstall(&pod.container, &RELEASE[1..]).run().success();
        let requests = audit.lines().unwrap();
        let lists = requests
            .iter()
            .filter(|line| line.starts_with("list ") && line.contains("ipamblocks"));
        assert_eq!(lists.count(), 1, "{requests:?}");
        assert_only_this_network_is_released(host, &pod.container, &datastore, blocks);
        assert!(!kubeconfig.exists());
    });
}

fn pod_with_address(host: &Host, api: &ApiServer, datastore: &Value, name: &str) -> String {
    let account = json!({ "apiVersion": "v1", "kind": "ServiceAccount",
            "metadata": { "name": "default", "namespace":
        "default" } });
    api.admin().apply_object(&account).unwrap();
    let object = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name },
        "spec": { "nodeName": NODE, "automountServiceAccountToken": false,
                  "containers": [{ "name": "main", "image": "busybox" }] } });
    api.admin().create(PODS, &object).unwrap().success();
    hold(
        host,
        datastore,
        NETWORK,
        name,
        &format!("K8S_POD_NAMESPACE=default;K8S_POD_NAME={name}"),
    )
}

/// The pod's annotation has the address of its previous sandbox. Shows SEC-80.
#[test]
fn release_during_an_add_is_refused_on_a_node_with_two_names() {
    in_cluster(|host, kubernetes| {
        let api = &kubernetes.api;
        let content = Content::ready().node(OTHER_NAME);
        let content = content.pool("pool", "10.65.0.0/16", 26);
        kubernetes.etcd.load(content.pairs()).unwrap();
        let datastore = json!({
            "datastore_type": "etcdv3", "etcd_endpoints": etcd::ENDPOINT, "nodename": OTHER_NAME,
        });
        let mut plugin = json!({
            "type": "calico", "ipam": { "type": "calico-ipam" }, "policy": { "type": "k8s" },
            "kubernetes": { "kubeconfig": "__KUBECONFIG_FILEPATH__", "node_name": NODE },
        });
        plugin
            .as_object_mut()
            .unwrap()
            .extend(datastore.as_object().unwrap().clone());
        let list =
            json!({ "name": NETWORK, "cniVersion": "1.0.0", "plugins": [plugin] }).to_string();
        let pod = installation(host, api, &[("CNI_NETWORK_CONFIG", &list)]);
        let held = pod_with_address(host, api, &datastore, "new");
        let change = |path: &str, change: Value| {
            api.admin()
                .patch(&format!("{PODS}/new{path}"), &change)
                .unwrap()
                .success();
        };
        change(
            "",
            json!({
                "metadata": { "annotations": { "cni.projectcalico.org/podIP": "10.65.99.99/32" } }
            }),
        );
        let outcome = uninstall(&pod.container, &RELEASE).run();
        assert_eq!(outcome.exit, Some(1), "{}", outcome.stdout);
        let refused = format!(
            "pods in the API server use these addresses: default/new ({held}); delete these pods \
             first"
        );
        assert!(outcome.stdout.contains(&refused), "{}", outcome.stdout);
        change("/status", json!({ "status": { "phase": "Succeeded" } }));
        let outcome = uninstall(&pod.container, &RELEASE).run();
        assert_eq!(
            outcome.exit,
            Some(0),
            "{}{}",
            outcome.stdout,
            outcome.stderr
        );
        assert!(
            outcome
                .stdout
                .contains(&format!("blocks of node {OTHER_NAME}")),
            "{}",
            outcome.stdout
        );
    });
}

/// The pod's interface is not on this host. Shows SEC-80.
#[test]
fn release_of_an_address_in_a_pod_status_is_refused_until_the_pod_ends() {
    in_cluster(|host, kubernetes| {
        let api = &kubernetes.api;
        let pod = installation(host, api, &[]);
        let kubeconfig = pod.kubeconfig();
        let datastore =
            json!({ "datastore_type": "kubernetes", "kubernetes": { "kubeconfig": kubeconfig } });
        // The kubelet has not reported the address of the pod "new" yet.
        let held = ["web", "new"].map(|name| pod_with_address(host, api, &datastore, name));
        let url = |name: &str| format!("{PODS}/{name}");
        let change =
            |path: &str, change: &Value| _ = api.admin().patch(path, change).unwrap().success();
        let report = |name: &str, phase: &str, ip: &str| {
            let status =
                json!({ "status": { "phase": phase, "podIP": ip, "podIPs": [{ "ip": ip }] } });
            change(&format!("{}/status", url(name)), &status);
        };
        report("web", "Running", &held[0]);
        let annotations = json!({ "cni.projectcalico.org/podIP": format!("{}/32", held[1]) });
        change(
            &url("new"),
            &json!({ "metadata": { "annotations": annotations } }),
        );
        let refused = format!(
            "pods in the API server use these addresses: default/new ({}), default/web ({}); \
             delete these pods first",
            held[1], held[0]
        );
        for options in [
            &RELEASE[1..],
            &RELEASE,
            &["--yes", "--tear-down-pods", "--release-addresses"],
        ] {
            let outcome = uninstall(&pod.container, options).run();
            assert_eq!(outcome.exit, Some(1), "{}", outcome.stdout);
            assert!(outcome.stdout.contains(&refused), "{}", outcome.stdout);
        }
        for (name, ip) in ["web", "new"].iter().zip(&held) {
            report(name, "Succeeded", ip);
        }
        let outcome = uninstall(&pod.container, &RELEASE).run();
        assert_eq!(
            outcome.exit,
            Some(0),
            "{}{}",
            outcome.stdout,
            outcome.stderr
        );
        assert!(
            outcome
                .stdout
                .contains("released the addresses of 2 containers"),
            "{}",
            outcome.stdout
        );
    });
}

/// Installs on a node whose cluster stores its objects in etcd. Returns the keys of the
/// configuration that select this datastore, too.
fn install_on_etcd(cluster: &Cluster<'_>) -> (Container, Value) {
    cluster.load(&Content::ready().node(NODE).pool("pool", "10.65.0.0/16", 26));
    let container = Container::new(cluster.host, "c").unwrap();
    let datastore = json!({ "datastore_type": "etcdv3", "etcd_endpoints": etcd::ENDPOINT });
    let mut plugin =
        json!({ "type": "calico", "ipam": { "type": "calico-ipam" }, "nodename": NODE });
    plugin
        .as_object_mut()
        .unwrap()
        .extend(datastore.as_object().unwrap().clone());
    let list = json!({ "name": NETWORK, "cniVersion": "1.0.0", "plugins": [plugin] }).to_string();
    let outcome = container
        .run(&[("CNI_NETWORK_CONFIG", &list), ("CNI_TRY_SECONDS", "0")])
        .unwrap();
    assert_eq!(outcome.exit, Some(0), "{}", outcome.stderr);
    (container, datastore)
}

#[on(etcd)]
fn release_on_etcd_releases_the_addresses_of_this_network(cluster: &Cluster<'_>) {
    let (container, datastore) = &install_on_etcd(cluster);
    let (host, store) = (cluster.host, &cluster.store);
    let said = uninstall(container, &[]).run().stdout;
    assert!(
        said.contains("  endpoints of this node: they remain in the datastore; kube-controllers"),
        "{said}"
    );
    let blocks = || {
        let dump = store.dump().unwrap().into_iter();
        dump.filter(|(key, _)| is_block(key))
            .map(|(_, block)| block)
            .collect()
    };
    assert_only_this_network_is_released(host, container, datastore, blocks);
    assert!(!fs::exists(container.path(NET).join("10-calico.conflist")).unwrap());
}

/// A container whose interface was not deleted on this node may run on another node. Shows SEC-80.
#[on(etcd)]
fn release_on_etcd_is_refused_for_addresses_in_foreign_endpoints(cluster: &Cluster<'_>) {
    let (container, datastore) = &install_on_etcd(cluster);
    let (host, store) = (cluster.host, &cluster.store);
    let netns = host.add_pod("here").unwrap();
    let mut conf = json!({ "cniVersion": "1.0.0", "name": NETWORK, "type": "calico",
            "nodename": NODE,
        "nodename_file_optional": true,
                           "ipam": { "type": "calico-ipam" } });
    conf.as_object_mut()
        .unwrap()
        .extend(datastore.as_object().unwrap().clone());
    Plugins::locate()
        .unwrap()
        .verb("calico", "ADD", "here", &netns, &conf)
        .run()
        .success();
    let endpoints = || {
        let dump = store.dump().unwrap().into_iter();
        dump.filter(|(key, _)| key.contains("/workloadendpoints/"))
            .collect::<Vec<_>>()
    };
    let [(key, mut endpoint)] = endpoints().try_into().unwrap();
    let ip = hold(host, datastore, NETWORK, "elsewhere", "");
    endpoint["metadata"]["name"] = json!(format!("{NODE}-cni-elsewhere-eth0"));
    endpoint["spec"]["containerID"] = json!("elsewhere");
    endpoint["spec"]["ipNetworks"] = json!([format!("{ip}/32")]);
    let other = key.replace("-here-", "-elsewhere-");
    store.put(&other, &endpoint).unwrap();

    let options = ["--yes", "--tear-down-pods", "--release-addresses"];
    for options in [&options[1..], &options, &options] {
        let outcome = uninstall(container, options).run();
        assert_eq!(outcome.exit, Some(1), "{}", outcome.stdout);
        let refused = format!(
            "endpoints list these addresses: default/{NODE}-cni-elsewhere-eth0 ({ip}); delete \
             their pods"
        );
        assert!(outcome.stdout.contains(&refused), "{}", outcome.stdout);
        assert_eq!(endpoints().len(), 2, "no endpoint is deleted");
    }
    store.put(&other, &json!("no endpoint")).unwrap();
    let outcome = uninstall(container, &RELEASE).run();
    assert_eq!(outcome.exit, Some(1), "{}", outcome.stdout);
    let unreadable = format!(
        "endpoint default/{NODE}-cni-elsewhere-eth0, which may list these addresses, cannot be \
         read"
    );
    assert!(outcome.stdout.contains(&unreadable), "{}", outcome.stdout);
    store.delete(&other).unwrap();
    // The run before has deleted the interface.
    let outcome = uninstall(container, &RELEASE).run();
    assert_eq!(
        outcome.exit,
        Some(0),
        "{}{}",
        outcome.stdout,
        outcome.stderr
    );
    assert!(
        outcome
            .stdout
            .contains("released the addresses of 2 containers"),
        "{}",
        outcome.stdout
    );
    assert_eq!(endpoints(), []);
    assert!(
        container
            .names("var/lib/calico")
            .iter()
            .all(|name| *name != "cni-install-state.json")
    );
}

fn is_block(key: &str) -> bool {
    Path::new(key).starts_with("/calico/ipam/v2/assignment")
}

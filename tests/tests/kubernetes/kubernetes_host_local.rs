//! host-local with the node's podCIDRs: `usePodCidr` and `usePodCidrIPv6`.

use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use integration_tests::cluster::{Cluster, ControlPlane, pod_path, restricted};
use integration_tests::content::{Content, NETWORK};
use integration_tests::kernel;
use integration_tests::plugin::is_host_local_installed;
use integration_tests::{Place, on};
use serde_json::{Value, json};

const NODES: [(&str, &[&str]); 4] = [
    ("node1", &["10.244.7.0/24", "fd00:244:7::/64"]),
    ("only-v4", &["10.244.8.0/24"]),
    ("only-v6", &["fd00:244:9::/64"]),
    ("without", &[]),
];

/// Runs a test with the nodes [`NODES`].
fn on(place: Place, test: fn(&Cluster<'_>)) {
    if !is_host_local_installed() {
        return;
    }
    restricted(place, |cluster: &Cluster<'_>| {
        for (name, cidrs) in NODES {
            let mut node =
                json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": name } });
            if let Some(first) = cidrs.first() {
                node["spec"] = json!({ "podCIDR": first, "podCIDRs": cidrs });
            }
            cluster.objects().client().apply_object(&node).unwrap();
        }
        cluster.load(&Content::ready());
        test(cluster);
    });
}

/// Returns a configuration with these keys of host-local, and the directory of its leases.
fn host_local(cluster: &Cluster<'_>, keys: Value) -> (Value, PathBuf) {
    let data = cluster.host.dir("host-local");
    let mut ipam = json!({ "type": "host-local", "dataDir": data });
    ipam.as_object_mut()
        .unwrap()
        .extend(keys.as_object().unwrap().clone());
    let conf = cluster.conf(
        "node1",
        json!({ "ipam": ipam, "policy": { "type": "k8s" } }),
    );
    (conf, data.join(NETWORK))
}

fn leases(directory: &Path) -> Vec<String> {
    let files = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut names: Vec<_> = files
        .map(|file| file.file_name().to_string_lossy().into_owned())
        .collect();
    names.retain(|name| name.parse::<IpAddr>().is_ok());
    names.sort();
    names
}

fn addresses(result: &Value) -> Vec<&str> {
    result["ips"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|ip| ip["address"].as_str())
        .collect()
}

#[on(kubernetes_v1)]
fn every_form_of_use_pod_cidr_assigns_from_the_podcidr(cluster: &Cluster<'_>) {
    let (v4, v6) = ("10.244.7.2/32", "fd00:244:7::2/128");
    for (keys, expected) in [
        (json!({ "subnet": "usePodCidr" }), &[v4][..]),
        (json!({ "subnet": "USEPODCIDR" }), &[v4]),
        (json!({ "subnet": "usePodCidrIPv6" }), &[v6]),
        (json!({ "ranges": [[{ "subnet": "usePodCidr" }]] }), &[v4]),
        (
            json!({
                "ranges": [[{ "subnet": "usePodCidr" }], [{ "subnet": "usePodCidrIPv6" }]]
            }),
            &[v4, v6],
        ),
        (
            json!({
                "ranges": [[{ "subnet": "usepodcidripv6" }], [{ "subnet": "10.88.0.0/24" }]]
            }),
            &[v6, "10.88.0.2/32"],
        ),
        // The address is from the first range with a free address.
        (
            json!({
                "ranges": [[
                    { "subnet": "usePodCidr", "rangeStart": "10.244.7.9" },
                    { "subnet": "10.88.1.0/24" },
                ]]
            }),
            &["10.244.7.9/32"],
        ),
        (
            json!({ "subnet": "usePodCidr", "ranges": [[{ "subnet": "usePodCidrIPv6" }]] }),
            &[v6, v4],
        ),
    ] {
        let (mut conf, data) = host_local(cluster, keys.clone());
        let pod = cluster.pod(1);
        let result = cluster.add(&pod, &conf);
        let (mut found, mut expected) = (addresses(&result), expected.to_vec());
        found.sort_unstable();
        expected.sort_unstable();
        assert_eq!(found, expected, "{keys}");
        assert_eq!(leases(&data).len(), expected.len());
        conf["prevResult"] = result;
        cluster.verb("CHECK", &pod, &conf).run().success();
        for _ in 0..2 {
            cluster.delete(&pod, &conf);
            assert_eq!(leases(&data), Vec::<String>::new(), "{keys}");
        }
        cluster.remove_pod(&pod);
        // host-local continues after the last assigned address.
        fs::remove_dir_all(&data).unwrap();
    }
}

#[on(kubernetes_v1)]
fn host_local_assigns_the_requested_address_and_routes(cluster: &Cluster<'_>) {
    let keys = json!({
        "subnet": "usePodCidr", "routes": [{ "dst": "10.9.0.0/16", "gw": "10.244.7.1" }],
    });
    let (conf, data) = host_local(cluster, keys);
    for number in 1..=2 {
        let pod = cluster.pod(number);
        let args = format!("{};IP=10.244.7.42", pod.args());
        let result = cluster
            .verb("ADD", &pod, &conf)
            .env("CNI_ARGS", args)
            .run()
            .success();
        assert_eq!(addresses(&result), ["10.244.7.42/32"]);
        let routes = kernel::pod(cluster.host, &pod.name).unwrap()["routes"].clone();
        let destinations: Vec<_> = routes
            .as_array()
            .unwrap()
            .iter()
            .map(|route| route["dst"].clone())
            .collect();
        assert!(destinations.contains(&json!("10.9.0.0/16")), "{routes}");
        assert!(!destinations.contains(&json!("default")), "{routes}");
        cluster.delete(&pod, &conf);
        assert_eq!(leases(&data), Vec::<String>::new());
        cluster.remove_pod(&pod);
    }
}

#[on(kubernetes_v1)]
fn node_without_a_podcidr_is_named_without_a_lease(cluster: &Cluster<'_>) {
    let pod = cluster.pod(1);
    for (node, word, expected) in [
        ("without", "usePodCidr", "no podCidr for node without"),
        (
            "only-v4",
            "usePodCidrIPv6",
            "no IPv6 podCIDR for node only-v4",
        ),
        ("only-v6", "usePodCidr", "no IPv4 podCIDR for node only-v6"),
        ("nobody", "usePodCidr", "nodes \"nobody\" not found"),
    ] {
        let (mut conf, data) = host_local(cluster, json!({ "ranges": [[{ "subnet": word }]] }));
        conf["kubernetes"]["node_name"] = json!(node);
        let before = cluster.state();
        let error = cluster.verb("ADD", &pod, &conf).run().error();
        assert_eq!(error.code, 11, "{error:?}");
        assert!(error.msg.contains(expected), "{error:?}");
        cluster.assert_unchanged(&before);
        assert_eq!(leases(&data), Vec::<String>::new());
    }
    let (mut conf, data) = host_local(cluster, json!({ "subnet": "usePodCidr" }));
    conf["kubernetes"]["node_name"] = json!("only-v4");
    assert_eq!(addresses(&cluster.add(&pod, &conf)), ["10.244.8.2/32"]);
    // At the time of the DEL, neither the pod nor the node exists.
    for path in [&pod_path("pod1"), "/api/v1/nodes/only-v4"] {
        cluster.objects().client().delete(path).unwrap().success();
    }
    cluster.delete(&pod, &conf);
    assert_eq!(leases(&data), Vec::<String>::new());
    cluster.remove_pod(&pod);
}

#[test]
fn pod_cidr_is_read_from_the_api_server_with_data_in_etcd() {
    if !is_host_local_installed() {
        return;
    }
    restricted(Place::KubernetesV1, pod_cidr_is_read_with_data_in_etcd);
}

fn pod_cidr_is_read_with_data_in_etcd(cluster: &Cluster<'_>, control_plane: &mut ControlPlane<'_>) {
    let api = &control_plane.servers.api;
    let spec = json!({ "podCIDR": "10.244.7.0/24", "podCIDRs": ["10.244.7.0/24"] });
    let node = json!({
        "apiVersion": "v1", "kind": "Node", "metadata": { "name": "node1" }, "spec": spec,
    });
    api.admin().apply_object(&node).unwrap();
    let cluster = cluster.in_etcd();
    cluster.load(&Content::ready().node("node1"));
    let (mut conf, data) = host_local(&cluster, json!({ "subnet": "usePodCidr" }));
    // With another policy type, the plugin does not read the pod.
    conf["policy"] = json!({ "type": "calico" });
    conf["kubernetes"] = json!({ "kubeconfig": api.admin_kubeconfig() });
    let mut pod = cluster.pod(1);
    pod.object = Some("nobody-knows".into());
    let audit = api.audit().unwrap();
    assert_eq!(addresses(&cluster.add(&pod, &conf)), ["10.244.7.2/32"]);
    assert_eq!(audit.lines().unwrap(), ["get nodes node1: 200"]);
    cluster.delete(&pod, &conf);
    assert_eq!(leases(&data), Vec::<String>::new());
    cluster.assert_nothing_left();
}

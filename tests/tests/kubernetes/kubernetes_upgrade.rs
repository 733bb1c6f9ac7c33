//! `calico-ipam -upgrade`: transfers the addresses of pods from host-local to Calico's IPAM. Strict
//! affinity, with which a cluster moves from flannel.

use std::fs;
use std::path::Path;
use std::time::Duration;

use integration_tests::cluster::{
    Cluster, ClusterTest, ControlPlane, handle, on_one_group, pod_path,
};
use integration_tests::content::Content;
use integration_tests::kubernetes::{Role, ServiceAccount};
use integration_tests::plugin::{Call, is_host_local_installed};
use integration_tests::proxy::{Fault, Point};
use integration_tests::{Place, on};
use serde_json::{Value, json};

const MANIFEST: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../deploy/components/upgrade-ipam/rbac.yaml"
);
/// The first pod's second address.
const SECOND: &str = "fd00:244:7::9";
const LEASES: &str = "/var/lib/cni/networks/k8s-pod-network";
const PAGE: &str = include_str!("../../../docs/moving-from-flannel.md");
/// The label of a node that upstream's Job moves.
const NETWORK: &str = "projectcalico.org/node-network-during-migration";

/// The commands find the API group by themselves.
fn on<Parameters>(place: Place, test: impl ClusterTest<Parameters>) {
    on_one_group(place.api_group(), test);
}

/// Creates `node1` with a podCIDR, and pools. Returns false if host-local is missing, and skips the
/// test then.
fn is_prepared(cluster: &Cluster<'_>) -> bool {
    let spec = json!({ "podCIDR": "10.244.7.0/24", "podCIDRs": ["10.244.7.0/24"] });
    let node = json!({
        "apiVersion": "v1", "kind": "Node", "metadata": { "name": "node1" }, "spec": spec,
    });
    cluster.objects().client().apply_object(&node).unwrap();
    cluster.load(&Content::ready().pool("pool4", "10.244.0.0/16", 26).pool(
        "pool6",
        "fd00:244::/32",
        122,
    ));
    is_host_local_installed()
}

/// Creates the user of the init container with its role alone.
fn user(control_plane: &ControlPlane<'_>) -> ServiceAccount {
    let api = &control_plane.servers.api;
    let user = api.service_account("kube-system", "upgrade-ipam").unwrap();
    api.admin()
        .apply(&fs::read_to_string(MANIFEST).unwrap())
        .unwrap();
    api.bind(&user, "upgrade-ipam").unwrap();
    user
}

fn upgrade(cluster: &Cluster<'_>, user: &ServiceAccount) -> Call {
    let call = cluster.plugins.call("calico-ipam").args(["-upgrade"]);
    call.env("KUBERNETES_NODE_NAME", "node1")
        .env("KUBECONFIG", &user.kubeconfig)
}

fn converts_host_local_pods(cluster: &Cluster<'_>, control_plane: &mut ControlPlane<'_>) {
    if !is_prepared(cluster) {
        return;
    }
    let ipam = json!({ "type": "host-local", "subnet": "usePodCidr" });
    let before = cluster.conf(
        "node1",
        json!({ "ipam": ipam, "policy": { "type": "k8s" } }),
    );
    let pods = [cluster.pod(1), cluster.pod(2)];
    let admin = control_plane.servers.api.admin();
    for pod in &pods {
        let result = cluster.add(pod, &before);
        let address = result["ips"][0]["address"].as_str().unwrap();
        let ip = address.split('/').next().unwrap();
        let mut ips = vec![json!({ "ip": ip })];
        if pod.name == pods[0].name {
            ips.push(json!({ "ip": SECOND }));
            fs::write(
                Path::new(LEASES).join(SECOND),
                format!("{}\r\neth0", pod.container_id),
            )
            .unwrap();
        }
        let status = json!({ "status": { "phase": "Running", "podIP": ip, "podIPs": ips } });
        let path = format!("{}/status", pod_path(pod.object.as_ref().unwrap()));
        admin.patch(&path, &status).unwrap().success();
    }
    // A lease of a deleted pod that host-local did not release.
    fs::write(Path::new(LEASES).join("10.244.7.77"), "gone\r\neth0").unwrap();
    assert!(cluster.accounts().held.is_empty());

    let (user, audit) = (
        user(control_plane),
        control_plane.servers.api.audit().unwrap(),
    );
    let outcome = upgrade(cluster, &user).run();
    assert_eq!(
        (outcome.exit, outcome.stdout.as_str()),
        (Some(0), ""),
        "{outcome:?}"
    );
    assert!(!Path::new(LEASES).exists());
    // The permission to delete objects is for a rollback.
    let name = cluster.objects().group().name();
    let mut role = Role::of_manifest(Path::new(MANIFEST))
        .unwrap()
        .of_groups(&["", name]);
    role.0.retain(|permission| permission.verb != "delete");
    assert_eq!(Role::used_by(&audit.of(&user.user).unwrap()), role);
    let held = cluster.accounts().held;
    let [first, second] = pods.each_ref().map(handle);
    let expected = [
        ("10.244.7.1", "ipip-tunnel-addr-node1".to_owned()),
        ("10.244.7.2", first.clone()),
        ("10.244.7.3", second),
        (SECOND, first),
    ];
    let expected = expected.map(|(ip, handle)| (ip.parse().unwrap(), handle));
    assert_eq!(held, expected.into());
    cluster.assert_in_order();
    let node = admin.get("/api/v1/nodes/node1").unwrap().success();
    assert_eq!(
        node["metadata"]["annotations"]["projectcalico.org/IPv4IPIPTunnelAddr"],
        "10.244.7.1"
    );
    let content = cluster.store.dump().unwrap();
    assert_eq!(
        content["clusterinformations/default"]["spec"]["datastoreReady"],
        true
    );

    let after = cluster.conf("node1", json!({ "policy": { "type": "k8s" } }));
    let next = cluster.pod(3);
    let given = cluster.add(&next, &after)["ips"][0]["address"].clone();
    assert!(
        !held.keys().any(|ip| given == format!("{ip}/32")),
        "{given}"
    );
    for pod in pods.iter().chain([&next]) {
        cluster.delete(pod, &after);
    }
    assert_eq!(
        cluster.accounts().held.into_values().collect::<Vec<_>>(),
        ["ipip-tunnel-addr-node1"]
    );
    upgrade(cluster, &user).run().success();
}

#[test]
fn upgrade_converts_host_local_pods_in_crd_v1() {
    on(Place::KubernetesV1, converts_host_local_pods);
}

#[test]
fn upgrade_converts_host_local_pods_in_v3() {
    on(Place::KubernetesV3, converts_host_local_pods);
}

/// Upstream would pause the cluster and assign the addresses in Calico, although host-local keeps
/// assigning them.
#[on(kubernetes_v1)]
fn upgrade_with_host_local_planned_changes_nothing(
    cluster: &Cluster<'_>,
    control_plane: &mut ControlPlane<'_>,
) {
    if !is_prepared(cluster) {
        return;
    }
    fs::create_dir_all(LEASES).unwrap();
    let lease = Path::new(LEASES).join("10.244.7.9");
    fs::write(&lease, "c9\r\neth0").unwrap();
    let (user, audit) = (
        user(control_plane),
        control_plane.servers.api.audit().unwrap(),
    );
    let before = cluster.store.dump().unwrap();
    let ipam = r#"{ "type": "host-local", "subnet": "usePodCidr" }"#;
    let template = format!(
        r#"{{ "name": "n", "plugins": [{{ "type": "calico", "mtu": __CNI_MTU__, "ipam": {ipam} }}] }}"#
    );
    let file = Path::new("/var/lib/cni/template");
    fs::write(file, &template).unwrap();
    let planned = [
        ("CNI_NETWORK_CONFIG", template.as_str()),
        ("CNI_NETWORK_CONFIG_FILE", file.to_str().unwrap()),
    ];
    for (variable, value) in planned {
        let error = upgrade(cluster, &user).env(variable, value).run().error();
        assert_eq!(error.code, 7, "{error:?}");
        assert!(
            error.msg.contains("host-local") && error.details.contains("upgrade-ipam"),
            "{error:?}"
        );
    }
    assert!(audit.of(&user.user).unwrap().is_empty());
    assert_eq!(cluster.store.dump().unwrap(), before);
    assert_eq!(fs::read_to_string(&lease).unwrap(), "c9\r\neth0");
}

#[on(kubernetes_v1)]
fn upgrade_without_the_variable_warns(cluster: &Cluster<'_>, control_plane: &mut ControlPlane<'_>) {
    if !is_prepared(cluster) {
        return;
    }
    let user = user(control_plane);
    let warning = "CNI_NETWORK_CONFIG is not set in this container";
    let unknown = upgrade(cluster, &user).run();
    assert!(
        unknown.exit == Some(0) && unknown.stderr.contains(warning),
        "{unknown:?}"
    );
    let template = r#"{ "type": "calico", "mtu": __CNI_MTU__, "ipam": { "type": "calico-ipam" } }"#;
    let planned = upgrade(cluster, &user)
        .env("CNI_NETWORK_CONFIG", template)
        .run();
    assert!(
        planned.exit == Some(0) && !planned.stderr.contains(warning),
        "{planned:?}"
    );
}

/// The init container may start while the API server is unreachable.
#[on(kubernetes_v3)]
fn upgrade_retries_until_the_api_server_is_reachable(
    cluster: &Cluster<'_>,
    control_plane: &mut ControlPlane<'_>,
) {
    if !is_prepared(cluster) {
        return;
    }
    fs::create_dir_all(LEASES).unwrap();
    fs::write(Path::new(LEASES).join("10.244.7.9"), "c9\r\neth0").unwrap();
    let ready = |control_plane: &ControlPlane<'_>| -> Value {
        let path = "/apis/projectcalico.org/v3/clusterinformations/default";
        control_plane.servers.api.admin().get(path).unwrap().body["spec"]["datastoreReady"].clone()
    };
    let (user, proxy) = (user(control_plane), &control_plane.proxy);
    let kubeconfig = control_plane
        .servers
        .api
        .kubeconfig_to(&proxy.endpoint(), "upgrade", &user.identity)
        .unwrap();
    proxy.go_away();
    let running = upgrade(cluster, &user)
        .env("KUBECONFIG", kubeconfig)
        .spawn()
        .unwrap();
    let started = std::time::Instant::now();
    std::thread::sleep(Duration::from_millis(500));
    // The program reads the pods of its node after it has locked the datastore.
    proxy.arm(Some((Point::First("GET", "/api/v1/pods?"), Fault::Hold)));
    proxy.await_held().unwrap();
    assert_eq!(ready(control_plane), false);
    let pod = cluster.pod(1);
    let conf = cluster.conf("node1", json!({ "policy": { "type": "k8s" } }));
    let refused = cluster.verb("ADD", &pod, &conf).run().error();
    assert!(refused.msg.contains("not ready"), "{refused:?}");
    proxy.resume();
    let outcome =
        integration_tests::plugin::wait(running, started, Duration::from_secs(60)).unwrap();
    assert_eq!(outcome.exit, Some(0), "{outcome:?}");
    assert_eq!(ready(control_plane), true);
    assert!(!Path::new(LEASES).exists());
    cluster.add(&pod, &conf);
}

/// Returns the arguments of the command of the page that begins with `calico-ipam` and these words,
/// with this kubeconfig.
fn documented(words: &str, kubeconfig: &str) -> Vec<String> {
    let beginning = format!("calico-ipam {words}");
    let command = PAGE
        .lines()
        .map(str::trim)
        .find(|line| line.starts_with(&beginning));
    let command = command.unwrap_or_else(|| panic!("the page has no command {beginning}"));
    command
        .replace("~/.kube/config", kubeconfig)
        .split_whitespace()
        .skip(1)
        .map(str::to_owned)
        .collect()
}

/// `node2` stands for a node whose addresses host-local still assigns (MB-13).
#[on(kubernetes_v3)]
fn add_after_the_documented_command_borrows_nothing_from_a_node_with_flannel(
    cluster: &Cluster<'_>,
    control_plane: &mut ControlPlane<'_>,
) {
    let (admin, config) = (
        control_plane.servers.api.admin(),
        control_plane.servers.api.admin_kubeconfig(),
    );
    cluster.load(
        &Content::ready()
            .node("node1")
            .node("node2")
            .pool("pool4", "10.244.0.0/30", 31),
    );
    for (node, network) in [("node1", "calico"), ("node2", "flannel")] {
        let labels = json!({ "metadata": { "labels": { NETWORK: network } } });
        admin
            .patch(&format!("/api/v1/nodes/{node}"), &labels)
            .unwrap()
            .success();
    }
    let (moved, waits) = (
        cluster.conf("node1", json!({})),
        cluster.conf("node2", json!({})),
    );
    // The first pod has one of the two addresses of node2's block, as a tunnel has.
    let claiming = cluster.pod_on("node2", 1);
    let [first, second, third] = [2, 3, 4].map(|number| cluster.pod(number));
    cluster.add(&claiming, &waits);
    for pod in [&first, &second] {
        cluster.add(pod, &moved);
    }
    let full = cluster.accounts().held;
    cluster.add(&third, &moved);
    assert_eq!(
        cluster.accounts().held.len(),
        4,
        "without the command, node1 takes an address of node2's block"
    );
    cluster.delete(&third, &moved);

    let arguments = documented(
        "configure --strictaffinity true",
        &config.display().to_string(),
    );
    let configured = cluster.plugins.call("calico-ipam").args(arguments).run();
    assert_eq!(configured.exit, Some(0), "{configured:?}");
    let refused = cluster.verb("ADD", &third, &moved).run().error();
    assert!(
        refused
            .msg
            .contains("No more free affine blocks and strict affinity enabled"),
        "{refused:?}"
    );
    assert_eq!(cluster.accounts().held, full);
    for (pod, conf) in [(&first, &moved), (&second, &moved), (&claiming, &waits)] {
        cluster.delete(pod, conf);
    }
}

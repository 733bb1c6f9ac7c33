//! The pools of pod addresses.

use integration_tests::command::run;
use integration_tests::manifests::{NAMESPACE, containers, deploy, helm, template};
use serde_json::json;

use super::options::{network, set, with};
use super::{DAEMON_SET, can_render, of_configuration};

#[test]
fn ipam_values_set_families_and_one_pool_of_each() {
    if !can_render() {
        return;
    }
    let (objects, changed) = with(&["ipam.assignIPv6=true"]);
    assert_eq!(changed, of_configuration(&["cni_network_config"]));
    // Upstream's plugin accepts these as strings only, not as booleans (INST-103).
    let expected = json!({ "type": "calico-ipam", "assign_ipv4": "true", "assign_ipv6": "true" });
    assert_eq!(network(&objects)["plugins"][0]["ipam"], expected);
    let objects = set(&[
        "ipam.pools[0].cidr=10.0.0.0/16",
        "ipam.pools[0].natOutgoing=false",
        "ipam.pools[0].blockSize=24",
        "ipam.pools[1].cidr=fd00::/48",
        "ipam.pools[1].vxlan=Always",
    ]);
    for container in containers(&objects[DAEMON_SET]) {
        let env = container["env"].as_array().unwrap().iter();
        let of_pools =
            env.filter(|variable| variable["name"].as_str().unwrap().starts_with("CALICO_IPV"));
        let said: Vec<String> = of_pools
            .map(|variable| {
                format!(
                    "{}={}",
                    variable["name"].as_str().unwrap(),
                    variable["value"].as_str().unwrap()
                )
            })
            .collect();
        let expected = [
            "CALICO_IPV4POOL_CIDR=10.0.0.0/16",
            "CALICO_IPV4POOL_BLOCK_SIZE=24",
            "CALICO_IPV4POOL_IPIP=Never",
            "CALICO_IPV4POOL_NAT_OUTGOING=false",
            "CALICO_IPV4POOL_VXLAN=Never",
            "CALICO_IPV6POOL_CIDR=fd00::/48",
            "CALICO_IPV6POOL_VXLAN=Always",
        ];
        assert_eq!(said, expected);
    }
    let twice = [
        "--set",
        "ipam.pools[0].cidr=10.0.0.0/16,ipam.pools[1].cidr=10.1.0.0/16",
    ];
    assert!(
        template(&twice)
            .unwrap_err()
            .to_string()
            .contains("two pools of IPv4")
    );
}

/// The installer creates the pools through the plugins' access to the datastore, so no Kubernetes
/// role is needed.
#[test]
fn pool_values_with_etcd_set_the_same_variables() {
    if !can_render() {
        return;
    }
    let objects = set(&["datastore=etcd", "ipam.pools[0].cidr=10.0.0.0/16"]);
    for container in containers(&objects[DAEMON_SET]) {
        let env = container["env"].as_array().unwrap();
        assert!(
            env.contains(&json!({ "name": "CALICO_IPV4POOL_CIDR", "value": "10.0.0.0/16" })),
            "{env:?}"
        );
    }
    assert!(
        !objects
            .keys()
            .any(|name| name == "ClusterRole.rbac.authorization.k8s.io calico-cni")
    );
}

/// Returns the notes that `helm install` prints for a release in this namespace with this value.
fn notes(namespace: &str, value: &str) -> String {
    let (helm, chart) = (
        helm().unwrap().display().to_string(),
        deploy("helm/calico-cni").display().to_string(),
    );
    let words = [
        "install",
        "calico-cni",
        &chart,
        "--namespace",
        namespace,
        "--dry-run=client",
        "--set",
        value,
    ];
    let said = run(&helm, &words).unwrap();
    said.split_once("NOTES:").unwrap().1.to_owned()
}

/// kubectl cannot write to etcd.
#[test]
fn notes_explain_pool_creation_only_without_a_pool() {
    if !can_render() {
        return;
    }
    let (by_kubectl, by_hand) = (
        "kubectl apply -f deploy/examples/ippool.yaml",
        "/opt/cni/bin/calico-ipam apply --config",
    );
    for (values, expected) in [
        ("datastore=kubernetes", [true, false]),
        ("datastore=etcd", [false, true]),
        (
            "datastore=etcd,ipam.pools[0].cidr=10.0.0.0/16",
            [false, false],
        ),
    ] {
        let said = notes(NAMESPACE, values);
        assert_eq!(
            [by_kubectl, by_hand].map(|command| said.contains(command)),
            expected,
            "{values}: {said}"
        );
    }
}

#[test]
fn notes_name_the_pod_security_level_outside_of_kube_system() {
    if !can_render() {
        return;
    }
    let command = "kubectl label namespace calico-system --overwrite \
                   pod-security.kubernetes.io/enforce=privileged";
    let said = notes("calico-system", "datastore=kubernetes");
    assert!(said.contains(command), "{said}");
    let said = notes(NAMESPACE, "datastore=kubernetes");
    assert!(!said.contains("pod-security"), "{said}");
}

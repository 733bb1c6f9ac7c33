//! Addresses of VMIs. The test writes KubeVirt's objects.

use std::net::IpAddr;
use std::time::Duration;

use serde_json::{Value, json};

use crate::controllers_gc::collected_cluster::{
    CollectedCluster, GRACE, Given, NAMESPACE, on, owned,
};

/// Longer than the interval in which KubeVirt's API group is looked up.
const MINUTE: Duration = Duration::from_secs(61);

fn to_machine(name: &str, launcher: &str) -> Given {
    let words = [
        ("node", "node-a"),
        ("pod", launcher),
        ("namespace", NAMESPACE),
        ("vmi-name", name),
    ];
    Given {
        handle: format!("k8s-pod-network.vmi.{NAMESPACE}.{name}"),
        attributes: words.map(owned).into(),
    }
}

fn make(cluster: &CollectedCluster<'_>, kind: &str, name: &str, owners: &Value) {
    let object = json!({
        "apiVersion": "kubevirt.io/v1", "kind": kind,
        "metadata": { "name": name, "namespace": NAMESPACE, "ownerReferences": owners },
    });
    cluster.servers.admin().apply_object(&object).unwrap();
}

fn remove(cluster: &CollectedCluster<'_>, plural: &str, name: &str) {
    let path = format!("/apis/kubevirt.io/v1/namespaces/{NAMESPACE}/{plural}/{name}");
    cluster.servers.remove(&path);
}

/// Creates a node, and a block with an address for each VMI, given by its name and its launcher.
fn machines<const N: usize>(
    cluster: &CollectedCluster<'_>,
    machines: [(&str, &str); N],
) -> [IpAddr; N] {
    cluster.pool("pool", "10.0.0.0/16", 26);
    cluster.node("node-a");
    let given = machines.map(|(name, launcher)| to_machine(name, launcher));
    cluster
        .block("10.0.0.0/26", Some("node-a"), &given)
        .try_into()
        .unwrap()
}

/// Shows SEC-19.
#[on(etcd, kubernetes_v1)]
fn vmi_or_launcher_that_outlives_its_vm_keeps_the_address(cluster: &CollectedCluster<'_>) {
    cluster.servers.api.define_machines().unwrap();
    let [gone, orphan, launched] = machines(
        cluster,
        [
            ("gone", "virt-launcher-gone"),
            ("orphan", "virt-launcher-orphan"),
            ("launched", "virt-launcher-launched"),
        ],
    );
    let owner = json!([{
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": "orphan", "uid": "u",
    }]);
    make(cluster, "VirtualMachineInstance", "orphan", &owner);
    cluster.pod("virt-launcher-launched", "node-a", &[launched]);
    let collector = cluster.collect_after(GRACE);
    let held = || cluster.held().into_keys().collect::<Vec<_>>();
    collector.advance_until(MINUTE, "the address of the machine that is gone", || {
        !held().contains(&gone)
    });
    assert_eq!(held(), [orphan, launched]);
    cluster.delete_pod("virt-launcher-launched");
    collector.advance_until(MINUTE, "the address of the launcher that is gone", || {
        !held().contains(&launched)
    });
    assert_eq!(held(), [orphan]);
    remove(cluster, "virtualmachineinstances", "orphan");
    collector.advance_until(MINUTE, "the address of the instance that is gone", || {
        held().is_empty()
    });
}

/// Shows SEC-82.
#[on(etcd, kubernetes_v1)]
fn vmi_addresses_are_released_after_kubevirt_and_the_pods_are_removed(
    cluster: &CollectedCluster<'_>,
) {
    cluster.servers.api.define_machines().unwrap();
    let [stopped, running] = machines(
        cluster,
        [
            ("stopped", "virt-launcher-old"),
            ("running", "virt-launcher-new"),
        ],
    );
    for name in ["stopped", "running"] {
        make(cluster, "VirtualMachine", name, &json!([]));
    }
    cluster.pod("virt-launcher-new", "node-a", &[running]);
    let collector = cluster.collect_after(GRACE);
    collector.await_first_pass();
    let held = || cluster.held().into_keys().collect::<Vec<_>>();
    cluster.servers.api.undefine_machines().unwrap();
    collector.advance_until(MINUTE, "the address of the stopped machine", || {
        !held().contains(&stopped)
    });
    assert_eq!(held(), [running]);
    cluster.delete_pod("virt-launcher-new");
    collector.advance_until(MINUTE, "the address of the machine that ran", || {
        held().is_empty()
    });
}

//! Addresses of VMIs. The test writes KubeVirt's objects.

use std::net::IpAddr;
use std::time::Duration;

use serde_json::{Value, json};

use crate::lab::{Given, Lab, NAMESPACE, owned};

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

fn make(lab: &Lab<'_>, kind: &str, name: &str, owners: &Value) {
    let object = json!({
        "apiVersion": "kubevirt.io/v1", "kind": kind,
        "metadata": { "name": name, "namespace": NAMESPACE, "ownerReferences": owners },
    });
    lab.admin().apply_object(&object).unwrap();
}

fn remove(lab: &Lab<'_>, plural: &str, name: &str) {
    let path = format!("/apis/kubevirt.io/v1/namespaces/{NAMESPACE}/{plural}/{name}");
    lab.admin().delete(&path).unwrap().success().unwrap();
}

/// Creates a node, and a block with an address for each VMI, given by its name and its launcher.
fn machines<const N: usize>(lab: &Lab<'_>, machines: [(&str, &str); N]) -> [IpAddr; N] {
    lab.pool("pool", "10.0.0.0/16", 26);
    lab.node("node-a");
    let given = machines.map(|(name, launcher)| to_machine(name, launcher));
    lab.block("10.0.0.0/26", Some("node-a"), &given)
        .try_into()
        .unwrap()
}

#[on(etcd, kubernetes_v1)]
fn vmi_or_launcher_that_outlives_its_vm_keeps_the_address(lab: &Lab<'_>) {
    lab.servers.api.define_machines().unwrap();
    let [gone, orphan, launched] = machines(
        lab,
        [
            ("gone", "virt-launcher-gone"),
            ("orphan", "virt-launcher-orphan"),
            ("launched", "virt-launcher-launched"),
        ],
    );
    let owner = json!([{
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": "orphan", "uid": "u",
    }]);
    make(lab, "VirtualMachineInstance", "orphan", &owner);
    lab.pod("virt-launcher-launched", "node-a", &[launched]);
    let collecting = lab.collect(lab.settings());
    let held = || lab.held().into_keys().collect::<Vec<_>>();
    collecting.as_time_goes_by(MINUTE, "the address of the machine that is gone", || {
        !held().contains(&gone)
    });
    assert_eq!(held(), [orphan, launched]);
    lab.delete_pod("virt-launcher-launched");
    collecting.as_time_goes_by(MINUTE, "the address of the launcher that is gone", || {
        !held().contains(&launched)
    });
    assert_eq!(held(), [orphan]);
    remove(lab, "virtualmachineinstances", "orphan");
    collecting.as_time_goes_by(MINUTE, "the address of the instance that is gone", || {
        held().is_empty()
    });
}

#[on(etcd, kubernetes_v1)]
fn vmi_addresses_are_released_after_kubevirt_and_the_pods_are_removed(lab: &Lab<'_>) {
    lab.servers.api.define_machines().unwrap();
    let [stopped, running] = machines(
        lab,
        [
            ("stopped", "virt-launcher-old"),
            ("running", "virt-launcher-new"),
        ],
    );
    for name in ["stopped", "running"] {
        make(lab, "VirtualMachine", name, &json!([]));
    }
    lab.pod("virt-launcher-new", "node-a", &[running]);
    let collecting = lab.collect(lab.settings());
    collecting.has_looked();
    let held = || lab.held().into_keys().collect::<Vec<_>>();
    lab.servers.api.undefine_machines().unwrap();
    collecting.as_time_goes_by(MINUTE, "the address of the stopped machine", || {
        !held().contains(&stopped)
    });
    assert_eq!(held(), [running]);
    lab.delete_pod("virt-launcher-new");
    collecting.as_time_goes_by(MINUTE, "the address of the machine that ran", || {
        held().is_empty()
    });
}

//! KubeVirt: the virtual machine that runs in a pod, as far as the pod's addresses depend on it.
//!
//! ```text
//! VirtualMachine ─owns─▶ VirtualMachineInstance ─owns─▶ pod virt-launcher-…
//! ```
//! A VMI may exist without a VirtualMachine. During a live migration it has two pods.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::pod::Pod;
use crate::api::{ObjectKey, ObjectMeta};
use crate::store::Kind;

/// The prefix of the names of pods that run a VMI.
const LAUNCHER_POD_PREFIX: &str = "virt-launcher-";
const API_VERSION: &str = "kubevirt.io/v1";
const VMI_KIND: &str = "VirtualMachineInstance";
const VM_KIND: &str = "VirtualMachine";
/// The label on the target pod of a live migration, with the migration's uid.
pub const MIGRATION_LABEL: &str = "kubevirt.io/migrationJobUID";

/// A running virtual machine (VMI).
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct VirtualMachineInstance {
    /// The metadata; `unknown` contains the owner references.
    pub metadata: ObjectMeta,
}

/// A virtual machine (VM), running or not.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct VirtualMachine {
    /// The metadata.
    pub metadata: ObjectMeta,
}

/// A reference to an owner in the metadata of an object.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct OwnerReference {
    /// The group and version of the owner.
    pub api_version: String,
    /// The kind of the owner.
    pub kind: String,
    /// The name of the owner, in the namespace of the object.
    pub name: String,
    /// The uid of the owner. Another object of the same name is not the owner.
    pub uid: String,
    /// True if the owner controls the object.
    pub controller: Option<bool>,
}

/// A pod that runs a VMI, with the facts about the VMI and its VM.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VmiPod {
    /// The namespace of the pod, the VMI and the VM.
    pub namespace: String,
    /// The pod's name.
    pub pod: String,
    /// The VMI's name, which is the same after a restart of the VM.
    pub vmi_name: String,
    /// The VMI's uid.
    pub vmi_uid: String,
    /// The VM's uid, if the VMI exists and a VM owns it.
    pub vm_uid: Option<String>,
    /// The uid of the migration whose target is this pod.
    pub migration_uid: Option<String>,
    /// True if the VM, or a VMI that no VM owns, is being deleted or does not exist. Only then does
    /// DEL release addresses that persist from pod to pod.
    pub is_being_deleted: bool,
}

/// Returns true if a pod of this name may run a VMI.
pub fn may_be_virt_launcher(pod: &str) -> bool {
    pod.starts_with(LAUNCHER_POD_PREFIX)
}

impl Pod {
    /// Returns the pod's reference to the VMI that controls it.
    pub fn vmi_owner(&self) -> Option<OwnerReference> {
        owners(&self.metadata, VMI_KIND).find(|owner| owner.controller == Some(true))
    }

    fn migration(&self) -> Option<String> {
        self.metadata
            .labels
            .get(MIGRATION_LABEL)
            .filter(|uid| !uid.is_empty())
            .cloned()
    }
}

impl VirtualMachineInstance {
    /// Returns the VMI's reference to the VM that owns it.
    pub fn vm_owner(&self) -> Option<OwnerReference> {
        owners(&self.metadata, VM_KIND).next()
    }
}

fn owners(metadata: &ObjectMeta, kind: &str) -> impl Iterator<Item = OwnerReference> {
    let owners = metadata
        .unknown
        .get("ownerReferences")
        .and_then(Value::as_array);
    let owners = owners
        .into_iter()
        .flatten()
        .filter_map(|owner| OwnerReference::deserialize(owner).ok());
    owners.filter(move |owner| owner.api_version == API_VERSION && owner.kind == kind)
}

impl VmiPod {
    /// Combines the pod, its `owner` reference, the VMI of that name, and the VM. A missing VM
    /// counts as being deleted, unless the VMI exists and no VM owns it.
    pub fn new(
        pod: &Pod,
        owner: &OwnerReference,
        vmi: Option<&VirtualMachineInstance>,
        vm: Option<&VirtualMachine>,
    ) -> Self {
        let vm_owner = vmi.and_then(VirtualMachineInstance::vm_owner);
        let without_vm = vmi.filter(|_| vm_owner.is_none()).map(|vmi| &vmi.metadata);
        let metadata = without_vm.or_else(|| vm.map(|vm| &vm.metadata));
        VmiPod {
            namespace: pod.metadata.namespace.clone(),
            pod: pod.metadata.name.clone(),
            vmi_name: owner.name.clone(),
            vmi_uid: owner.uid.clone(),
            vm_uid: vm_owner.map(|vm_owner| vm_owner.uid),
            migration_uid: pod.migration(),
            is_being_deleted: metadata.is_none_or(|metadata| metadata.deletion_timestamp.is_some()),
        }
    }

    /// Returns true if the pod was created as the target of a live migration.
    pub fn is_migration_target(&self) -> bool {
        self.migration_uid.is_some()
    }

    /// Returns the attributes that are stored with each address of the VMI in addition to the
    /// pod's.
    pub fn attributes(&self) -> impl Iterator<Item = (String, String)> {
        let vm = self.vm_uid.iter().map(|uid| ("vm-uid", uid));
        let migration = self.migration_uid.iter().map(|uid| ("vmim-uid", uid));
        let vmi = [("vmi-name", &self.vmi_name), ("vmi-uid", &self.vmi_uid)];
        vmi.into_iter()
            .chain(vm)
            .chain(migration)
            .map(|(key, value)| (key.to_owned(), value.clone()))
    }
}

// === paths in a read batch ===

macro_rules! unconverted_kinds {
    ($($type:ty, $kind:expr, $root:literal;)*) => {$(
        impl Kind for $type {
            const KIND: &'static str = $kind;
            type Key = ObjectKey;
            type Select = ();

            fn path(key: &ObjectKey) -> String {
                format!(
                    concat!($root, "{}/{}"), key.namespace.as_deref().unwrap_or_default(), key.name,
                )
            }

            fn parse_path(path: &str) -> Option<ObjectKey> {
                ObjectKey::parse_namespaced(path.strip_prefix($root)?)
            }

            fn prefix(_: &()) -> String {
                $root.to_owned()
            }
        }
    )*};
}

unconverted_kinds! {
    VirtualMachineInstance, VMI_KIND, "/kubernetes/virtualmachineinstances/";
    VirtualMachine, VM_KIND, "/kubernetes/virtualmachines/";
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::json;

    use super::*;

    fn pod(owner: Value, label: Option<&str>) -> Pod {
        let labels = label
            .map(|uid| json!({ MIGRATION_LABEL: uid }))
            .unwrap_or(json!({}));
        let metadata = json!({ "name": "virt-launcher-vm1-x", "namespace": "ns", "labels": labels,
                               "ownerReferences": [{ "kind": "Node", "controller": true, "x": 1 }, owner] });
        serde_json::from_value(json!({ "metadata": metadata })).unwrap()
    }

    fn vmi_owner() -> Value {
        json!({
            "apiVersion": "kubevirt.io/v1", "kind": VMI_KIND, "name": "vm1", "uid": "i-1",
            "controller": true,
        })
    }

    fn vmi(owned: bool, going: bool) -> VirtualMachineInstance {
        let owner =
            json!({ "apiVersion": "kubevirt.io/v1", "kind": VM_KIND, "name": "vm1", "uid": "m-1" });
        let owners = if owned { json!([owner]) } else { json!([]) };
        let since = going.then_some("2026-08-22T06:33:20Z");
        let metadata = json!({
            "name": "vm1", "uid": "i-1", "ownerReferences": owners, "deletionTimestamp": since,
        });
        serde_json::from_value(json!({ "metadata": metadata })).unwrap()
    }

    fn vm(going: bool) -> VirtualMachine {
        let since = going.then_some("2026-08-22T06:33:20Z");
        serde_json::from_value(json!({ "metadata": { "name": "vm1", "deletionTimestamp": since } }))
            .unwrap()
    }

    fn vmi_pod(
        label: Option<&str>,
        vmi: Option<&VirtualMachineInstance>,
        vm: Option<&VirtualMachine>,
    ) -> VmiPod {
        let pod = pod(vmi_owner(), label);
        VmiPod::new(&pod, &pod.vmi_owner().unwrap(), vmi, vm)
    }

    #[test]
    fn only_the_controlling_vmi_owns_a_launcher_pod() {
        assert_eq!(pod(vmi_owner(), None).vmi_owner().unwrap().name, "vm1");
        for (field, value) in [
            ("apiVersion", json!("kubevirt.io/v2")),
            ("kind", json!("Pod")),
            ("controller", json!(null)),
        ] {
            let mut owner = vmi_owner();
            owner[field] = value;
            assert_eq!(pod(owner, None).vmi_owner(), None, "{field}");
        }
        let mut two = pod(vmi_owner(), None);
        let mut other = vmi_owner();
        (other["name"], other["controller"]) = (json!("vm2"), json!(false));
        two.metadata.unknown["ownerReferences"]
            .as_array_mut()
            .unwrap()
            .insert(0, other);
        assert_eq!(two.vmi_owner().unwrap().name, "vm1");
        assert!(
            may_be_virt_launcher("virt-launcher-vm1-x")
                && !may_be_virt_launcher("web-virt-launcher-")
        );
        assert_eq!(vmi(true, false).vm_owner().unwrap().uid, "m-1");
        assert_eq!(vmi(false, false).vm_owner(), None);
    }

    #[test]
    fn vmi_addresses_are_released_with_the_vm_or_an_unowned_vmi() {
        let going = |vmi: Option<VirtualMachineInstance>, vm: Option<VirtualMachine>| {
            vmi_pod(None, vmi.as_ref(), vm.as_ref()).is_being_deleted
        };
        assert!(!going(Some(vmi(true, true)), Some(vm(false))));
        assert!(going(Some(vmi(true, false)), Some(vm(true))));
        assert!(going(Some(vmi(true, false)), None));
        // The VM does not own the VMI.
        assert!(going(Some(vmi(false, true)), Some(vm(false))));
        assert!(!going(Some(vmi(false, false)), None));
        // The VM is between two runs.
        assert!(!going(None, Some(vm(false))));
        assert!(going(None, Some(vm(true))) && going(None, None));
    }

    #[test]
    fn vmi_attributes_of_source_and_target_are_recorded() {
        let attributes_of = |label, owned| -> BTreeMap<String, String> {
            vmi_pod(label, Some(&vmi(owned, false)), None)
                .attributes()
                .collect()
        };
        let pairs = |pairs: &[(&str, &str)]| {
            pairs
                .iter()
                .map(|(k, v)| (k.to_string(), v.to_string()))
                .collect()
        };
        assert_eq!(
            attributes_of(None, false),
            pairs(&[("vmi-name", "vm1"), ("vmi-uid", "i-1")])
        );
        let target = [
            ("vmi-name", "vm1"),
            ("vmi-uid", "i-1"),
            ("vm-uid", "m-1"),
            ("vmim-uid", "job"),
        ];
        assert_eq!(attributes_of(Some("job"), true), pairs(&target));
        assert_eq!(attributes_of(Some(""), true), pairs(&target[..3]));
        assert!(vmi_pod(Some("job"), None, None).is_migration_target());
    }
}

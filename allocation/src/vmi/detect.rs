//! Detects the VMI of a pod through the Kubernetes API (IPAM-50).

use futures::future::join;
use libcalico::api::{IpamConfiguration, ObjectKey};
use libcalico::kubernetes::{
    Pod, VirtualMachine, VirtualMachineInstance, VmiPod, may_be_virt_launcher,
};
use libcalico::store::{ReadBatch, Store, StoreError};

use crate::error::VmiError;
use crate::reads::find;

/// A pod with a VMI.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DetectedVmi {
    vmi: VmiPod,
    /// True if VMIs keep their addresses in this cluster.
    persistent: bool,
    /// The error for a missing object of the VMI.
    missing: Option<VmiError>,
}

impl DetectedVmi {
    /// Returns the VMI for an ADD, or `None` if VMIs do not keep their addresses, so that the pod
    /// gets addresses like any other. Fails if the VMI or its VirtualMachine is missing, and for
    /// the target of a migration if VMIs do not keep their addresses.
    pub fn for_add(self) -> Result<Option<VmiPod>, VmiError> {
        match self.missing {
            Some(missing) => Err(missing),
            None if self.persistent => Ok(Some(self.vmi)),
            None if self.vmi.is_migration_target() => Err(VmiError::TargetNotAllowed),
            None => Ok(None),
        }
    }

    /// Returns the VMI for a later operation, or `None` if VMIs do not keep their addresses. A VMI
    /// that was deleted meanwhile does not fail a DEL; upstream's DEL would fail.
    pub fn for_del(self) -> Option<VmiPod> {
        self.persistent.then_some(self.vmi)
    }
}

/// Reads the VMI of a pod from `api`, the Kubernetes API if the call needs it. Reads the setting
/// that VMIs keep their addresses from `store`, which may be the same. Returns `None` if the pod
/// has no VMI, or if `api` or `pod` is `None`.
pub async fn detect<A: Store, S: Store>(
    api: Option<&A>,
    store: &S,
    pod: Option<&Pod>,
) -> Result<Option<DetectedVmi>, StoreError> {
    let (Some(api), Some(pod)) = (api, pod) else {
        return Ok(None);
    };
    let Some(owner) = pod
        .vmi_owner()
        .filter(|_| may_be_virt_launcher(&pod.metadata.name))
    else {
        return Ok(None);
    };
    let mut batch = ReadBatch::new();
    let key = |name: &str| ObjectKey::namespaced(pod.metadata.namespace.clone(), name);
    let instance = batch.get::<VirtualMachineInstance>(&key(&owner.name));
    // KubeVirt usually gives an instance the name of its VirtualMachine.
    let vm = batch.get::<VirtualMachine>(&key(&owner.name));
    let (answers, persistent) = join(api.read(&batch), is_persistent(store)).await;
    let answers = answers?;
    let instance = answers.get(&instance)?.map(|entry| entry.value);
    let mut vm = answers.get(&vm)?.map(|entry| entry.value);
    let vm_owner = instance.as_ref().and_then(VirtualMachineInstance::vm_owner);
    if let Some(vm_owner) = vm_owner
        .as_ref()
        .filter(|vm_owner| vm_owner.name != owner.name)
    {
        vm = find::<VirtualMachine>(api, &key(&vm_owner.name))
            .await?
            .map(|entry| entry.value);
    }
    let namespace = pod.metadata.namespace.clone();
    let missing = if instance
        .as_ref()
        .is_none_or(|instance| instance.metadata.uid != owner.uid)
    {
        Some(VmiError::NoVmi {
            namespace,
            name: owner.name.clone(),
            uid: owner.uid.clone(),
        })
    } else {
        vm_owner
            .filter(|_| vm.is_none())
            .map(|vm_owner| VmiError::NoVm {
                namespace,
                name: vm_owner.name,
            })
    };
    let vmi = VmiPod::new(pod, &owner, instance.as_ref(), vm.as_ref());
    Ok(Some(DetectedVmi {
        vmi,
        persistent,
        missing,
    }))
}

/// As in upstream, a missing or unreadable setting counts as enabled, so that no address is lost
/// (IPAM-51).
async fn is_persistent<S: Store>(store: &S) -> bool {
    match store
        .get::<IpamConfiguration>(&ObjectKey::global("default"))
        .await
    {
        Ok(configuration) => {
            configuration
                .value
                .spec
                .kube_virt_vm_address_persistence
                .as_deref()
                != Some("Disabled")
        }
        Err(_) => true,
    }
}

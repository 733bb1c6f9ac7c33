//! What a pod is to a virtual machine: asked of the Kubernetes API (IPAM-50, IPAM-51).

use futures::future::join;
use libcalico::api::{IpamConfiguration, ObjectKey};
use libcalico::kubernetes::{MachinePod, OwnerReference, Pod, VirtualMachine, VirtualMachineInstance, may_be_machine};
use libcalico::store::{ReadBatch, Store, StoreError};

use super::MachineError;

/// A pod with a virtual machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Detected {
    machine: MachinePod,
    /// Whether machines keep their addresses here.
    persistent: bool,
    /// What of the machine is missing.
    missing: Option<MachineError>,
}

impl Detected {
    /// For an ADD: `None` for a pod that is networked like any other.
    pub fn arriving(self) -> Result<Option<MachinePod>, MachineError> {
        match self.missing {
            Some(missing) => Err(missing),
            None if self.persistent => Ok(Some(self.machine)),
            None if self.machine.is_migration_target() => Err(MachineError::TargetNotAllowed),
            None => Ok(None),
        }
    }

    /// For what comes after: a machine that is gone meanwhile keeps nobody from leaving. Upstream's DEL fails until the
    /// pod is gone too, and leaves the addresses behind then.
    pub fn leaving(self) -> Option<MachinePod> {
        self.persistent.then_some(self.machine)
    }
}

/// Asks `api` for the machine of a pod and `store`, which may be the same, whether machines keep their addresses. `None`
/// for a pod without machine, which costs no request.
pub async fn detect<A: Store, S: Store>(api: &A, store: &S, pod: &Pod) -> Result<Option<Detected>, StoreError> {
    let owner = pod.instance().filter(|_| may_be_machine(&pod.metadata.name));
    let Some(owner) = owner else { return Ok(None) };
    let mut batch = ReadBatch::new();
    let key = |name: &str| ObjectKey::namespaced(pod.metadata.namespace.clone(), name);
    let instance = batch.get::<VirtualMachineInstance>(&key(&owner.name));
    // KubeVirt names an instance after its machine: no need to wait for the instance to say so.
    let machine = batch.get::<VirtualMachine>(&key(&owner.name));
    let (answers, persistent) = join(api.read(&batch), is_persistent(store)).await;
    let answers = answers?;
    let instance = answers.get(&instance)?.map(|entry| entry.value);
    let mut machine = answers.get(&machine)?.map(|entry| entry.value);
    let named = instance.as_ref().and_then(VirtualMachineInstance::machine);
    if let Some(named) = named.as_ref().filter(|named| named.name != owner.name) {
        machine = match api.get::<VirtualMachine>(&key(&named.name)).await {
            Ok(found) => Some(found.value),
            Err(StoreError::NotFound { .. }) => None,
            Err(error) => return Err(error),
        };
    }
    let missing = missing(pod, &owner, instance.as_ref(), named.as_ref().filter(|_| machine.is_none()));
    let machine = MachinePod::new(pod, &owner, instance.as_ref(), machine.as_ref());
    Ok(Some(Detected { machine, persistent, missing }))
}

fn missing(
    pod: &Pod,
    owner: &OwnerReference,
    instance: Option<&VirtualMachineInstance>,
    machine: Option<&OwnerReference>,
) -> Option<MachineError> {
    let namespace = pod.metadata.namespace.clone();
    if instance.is_none_or(|instance| instance.metadata.uid != owner.uid) {
        let (name, uid) = (owner.name.clone(), owner.uid.clone());
        return Some(MachineError::NoInstance { namespace, name, uid });
    }
    machine.map(|machine| MachineError::NoMachine { namespace, name: machine.name.clone() })
}

/// What cannot be read counts as enabled, as upstream has it: an address is kept rather than lost.
async fn is_persistent<S: Store>(store: &S) -> bool {
    match store.get::<IpamConfiguration>(&ObjectKey::global("default")).await {
        Ok(found) => found.value.spec.kube_virt_vm_address_persistence.as_deref() != Some("Disabled"),
        Err(_) => true,
    }
}

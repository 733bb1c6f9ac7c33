//! Lookup of virtual machines, and of KubeVirt itself.

use libcalico::api::ObjectKey;
use libcalico::ipam::{MachineSight, Sight};
use libcalico::kubernetes::{VIRTUAL_MACHINE_INSTANCES, VIRTUAL_MACHINES};

use super::api::Api;

const GROUP: &str = "kubevirt.io";

/// Looks up a VirtualMachine or VirtualMachineInstance with this name. Unlike upstream (KC-436), any instance counts:
/// it may outlive its VirtualMachine, and its launcher pod is running then.
pub(super) async fn sight(api: &Api<'_>, key: &ObjectKey) -> MachineSight {
    for resource in [VIRTUAL_MACHINES, VIRTUAL_MACHINE_INSTANCES] {
        match api.exists(resource, key).await {
            Sight::Absent => {}
            Sight::Present(()) => return MachineSight::Present,
            Sight::Unknown => return MachineSight::Unknown,
        }
    }
    MachineSight::Absent
}

/// Checks if the API server serves neither kind. Returns [`MachineSight::Undefined`] if so, and otherwise
/// [`MachineSight::Unknown`], because no particular machine was looked up.
pub(super) async fn without_kubevirt(api: &Api<'_>) -> MachineSight {
    match api.serves(GROUP, &[VIRTUAL_MACHINES.plural, VIRTUAL_MACHINE_INSTANCES.plural]).await {
        Sight::Absent => MachineSight::Undefined,
        Sight::Present(()) | Sight::Unknown => MachineSight::Unknown,
    }
}

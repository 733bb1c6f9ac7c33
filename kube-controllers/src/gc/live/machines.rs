//! Virtual machines (KC-436), and whether KubeVirt is installed.

use libcalico::api::ObjectKey;
use libcalico::ipam::{MachineSight, Sight};
use libcalico::kubernetes::{VIRTUAL_MACHINE_INSTANCES, VIRTUAL_MACHINES};

use super::api::Api;

const GROUP: &str = "kubevirt.io";

/// Looks for a machine of that name, or an instance of it. An instance may outlive its machine, and its launcher runs.
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

/// Looks whether neither kind is defined: [`MachineSight::Undefined`], and else [`MachineSight::Unknown`], as nobody looked for
/// a machine.
pub(super) async fn without_kubevirt(api: &Api<'_>) -> MachineSight {
    match api.serves(GROUP, &[VIRTUAL_MACHINES.plural, VIRTUAL_MACHINE_INSTANCES.plural]).await {
        Sight::Absent => MachineSight::Undefined,
        Sight::Present(()) | Sight::Unknown => MachineSight::Unknown,
    }
}

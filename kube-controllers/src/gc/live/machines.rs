//! Virtual machines (KC-436).

use libcalico::api::ObjectKey;
use libcalico::ipam::Sight;
use libcalico::kubernetes::{VIRTUAL_MACHINE_INSTANCES, VIRTUAL_MACHINES, VirtualMachineInstance};

use super::api::Api;

/// Whether there is a machine of that name, or an instance that belongs to none.
pub(super) async fn sight(api: &Api<'_>, key: &ObjectKey) -> Sight<()> {
    match api.exists(VIRTUAL_MACHINES, key).await {
        Sight::Absent => {}
        seen => return seen,
    }
    match api.metadata::<VirtualMachineInstance>(VIRTUAL_MACHINE_INSTANCES, key).await {
        Sight::Absent => Sight::Absent,
        Sight::Unknown => Sight::Unknown,
        Sight::Present(instance) if instance.machine().is_some() => Sight::Absent,
        Sight::Present(_) => Sight::Present(()),
    }
}

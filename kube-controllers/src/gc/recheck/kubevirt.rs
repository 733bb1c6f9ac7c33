//! Lookup of virtual machines, and of KubeVirt itself. Without KubeVirt, addresses of its virtual
//! machines may be leaked.

use std::time::Duration;

use libcalico::api::ObjectKey;
use libcalico::ipam::{Lookup, VmiLookup};
use libcalico::kubernetes::{VIRTUAL_MACHINE_INSTANCES, VIRTUAL_MACHINES};

use super::ApiReader;
use crate::gc::world::World;

const GROUP: &str = "kubevirt.io";

impl<W: World> ApiReader<'_, W> {
    /// Looks up a VirtualMachine or VirtualMachineInstance with this name. Unlike upstream
    /// (KC-436), any instance counts: it may outlive its VirtualMachine, and its launcher pod may
    /// run then.
    pub(super) async fn virtual_machine(&self, key: &ObjectKey) -> VmiLookup {
        for resource in [VIRTUAL_MACHINES, VIRTUAL_MACHINE_INSTANCES] {
            match self.exists(resource, key).await {
                Lookup::Absent => {}
                Lookup::Present(()) => return VmiLookup::Present,
                Lookup::Unknown => return VmiLookup::Unknown,
            }
        }
        VmiLookup::Absent
    }

    /// Returns [`VmiLookup::Undefined`] if the API server serves neither VirtualMachines nor
    /// VirtualMachineInstances, and otherwise [`VmiLookup::Unknown`].
    pub(in crate::gc) async fn look_up_kubevirt(&self) -> VmiLookup {
        match self
            .serves(
                GROUP,
                &[VIRTUAL_MACHINES.plural, VIRTUAL_MACHINE_INSTANCES.plural],
            )
            .await
        {
            Lookup::Absent => VmiLookup::Undefined,
            Lookup::Present(()) | Lookup::Unknown => VmiLookup::Unknown,
        }
    }
}

/// Interval of discovery requests while an address belongs to a virtual machine.
const DISCOVERY_INTERVAL: Duration = Duration::from_secs(60);

#[derive(Debug, Default)]
pub(in crate::gc) struct KubeVirtDiscovery {
    /// Time of the last discovery, by the clock of grace periods. `None` before the first one and
    /// after a reset.
    discovered_at: Option<Duration>,
    /// True if the API server served neither kind at the last discovery. The grace period of an
    /// address begins with the first such result, and any other result cancels the grace period.
    pub(in crate::gc) is_missing: bool,
}

impl KubeVirtDiscovery {
    pub(in crate::gc) fn is_due(&self, now: Duration) -> bool {
        self.discovered_at
            .is_none_or(|discovered_at| now >= discovered_at + DISCOVERY_INTERVAL)
    }

    /// Returns the time of the next discovery; `None` before the first one and after a reset.
    pub(in crate::gc) fn next_deadline(&self) -> Option<Duration> {
        self.discovered_at
            .map(|discovered_at| discovered_at + DISCOVERY_INTERVAL)
    }

    pub(in crate::gc) fn record(&mut self, lookup: VmiLookup, now: Duration) {
        *self = KubeVirtDiscovery {
            discovered_at: Some(now),
            is_missing: lookup == VmiLookup::Undefined,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kubevirt_is_absent_only_while_each_lookup_confirms_it() {
        let mut kubevirt = KubeVirtDiscovery::default();
        let at = |minutes: u64| Duration::from_secs(60) * minutes as u32;
        assert!(
            kubevirt.is_due(at(0)) && !kubevirt.is_missing && kubevirt.next_deadline().is_none()
        );
        for (minute, lookup, is_missing) in [
            (0, VmiLookup::Undefined, true),
            (1, VmiLookup::Unknown, false),
            (2, VmiLookup::Undefined, true),
            (3, VmiLookup::Undefined, true),
        ] {
            assert!(kubevirt.is_due(at(minute)));
            kubevirt.record(lookup, at(minute));
            assert_eq!(kubevirt.is_missing, is_missing, "minute {minute}");
            assert!(!kubevirt.is_due(at(minute)));
            assert_eq!(kubevirt.next_deadline(), Some(at(minute + 1)));
        }
    }
}

//! [`Conflict`]: an address that a running pod reports although IPAM has it free or allocated to another owner.
//! Conflicts appear for example after a restore of the datastore: the pods kept running, and the blocks are those of
//! the backup. Conflicts are only reported to operators, not repaired.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use super::grace_tracker::GraceTracker;
use super::table::RowId;
use crate::ipam::{AllocationOwner, Block};
use crate::net::{Cidr, IpVersion};

/// The minimum duration of a conflict. ADD and DEL write the block and kubelet writes the status, one after the other,
/// so shorter contradictions are normal.
pub(super) const MIN_CONFLICT_DURATION: Duration = Duration::from_secs(120);

/// An address that a running pod reports, but that its block has had free or allocated to another owner for at least
/// two minutes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conflict {
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name.
    pub name: String,
    /// The address.
    pub address: IpAddr,
    /// The address's block.
    pub block: Cidr,
}

/// The state in a block of an address that a pod reports.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConflictKind {
    /// The address is free or cooling down, so another pod may get it.
    #[error("free")]
    Free,
    /// The address belongs to the owner described here.
    #[error("allocated to {0}")]
    Another(String),
}

/// Returns the state in `block` of an `address` that a pod reports. Returns `None` if the address belongs to the pod or
/// may belong to it, because the allocation does not identify its owner.
pub fn conflict_kind(block: &Block, address: IpAddr, namespace: &str, name: &str) -> Option<ConflictKind> {
    let Some(allocation) = block.allocation(address).filter(|allocation| !allocation.is_cooling()) else {
        return Some(ConflictKind::Free);
    };
    let attribute = allocation.attribute.filter(|attribute| attribute.handle().is_some())?;
    let (allocation_owner, _) = AllocationOwner::of(attribute);
    let owner_pods = || AllocationOwner::owners(attribute);
    let owner = match allocation_owner {
        AllocationOwner::Unnamed => return None,
        AllocationOwner::Pod { namespace: of, name: pod } if (of, pod) == (namespace, name) => return None,
        AllocationOwner::Vmi { .. } if owner_pods().any(|pod| pod == (namespace, name)) => return None,
        // The allocation names no pod of the VMI, so the pod may be the VMI's.
        AllocationOwner::Vmi { namespace: of, .. } if of == namespace && owner_pods().next().is_none() => return None,
        AllocationOwner::Pod { namespace, name } => format!("pod {namespace}/{name}"),
        AllocationOwner::Vmi { namespace, name } => format!("virtual machine {namespace}/{name}"),
        AllocationOwner::Service { namespace, name } => format!("service {namespace}/{name}"),
        AllocationOwner::Tunnel => "the tunnel of a node".into(),
        AllocationOwner::HostReserved => "the host".into(),
        AllocationOwner::Foreign => "an owner of an unknown type".into(),
    };
    Some(ConflictKind::Another(owner))
}

#[derive(Debug, Default)]
pub(super) struct Conflicts {
    /// The suspected conflicts, by the pod's row and the address.
    pub(super) suspected: GraceTracker<(RowId, IpAddr), ()>,
    /// The conflicts that were reported to operators.
    pub(super) reported: BTreeSet<(RowId, IpAddr)>,
    /// The pods to examine.
    pub(super) pods_to_check: BTreeSet<RowId>,
    /// Whether the next examination looks at all pods. This is so after a block was added, because any pod may report
    /// its addresses.
    pub(super) check_all_pods: bool,
    /// The number of blocks of each size.
    pub(super) sizes: BTreeMap<(IpVersion, u8), usize>,
}

impl Conflicts {
    pub(super) fn block_added(&mut self, cidr: Cidr) {
        self.check_all_pods = true;
        *self.sizes.entry((cidr.version(), cidr.prefix())).or_default() += 1;
    }

    pub(super) fn block_removed(&mut self, cidr: Cidr) {
        let size = (cidr.version(), cidr.prefix());
        let Some(count) = self.sizes.get_mut(&size) else { return };
        *count = count.saturating_sub(1);
        if *count == 0 {
            self.sizes.remove(&size);
        }
    }

    pub(super) fn clear(&mut self, key: &(RowId, IpAddr)) {
        self.suspected.clear(key);
        self.reported.remove(key);
    }
}

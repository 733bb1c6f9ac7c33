//! [`Conflict`]: an address that a running pod reports although IPAM has it free or allocated to
//! another owner. Conflicts are only reported to operators.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use super::grace_tracker::GraceTracker;
use super::table::RowId;
use crate::ipam::{AllocationOwner, Block, Holder};
use crate::net::{Cidr, IpVersion};

/// The minimum duration of a conflict. Shorter contradictions are normal, because the block and the
/// pod's status are not written together.
pub(super) const MIN_CONFLICT_DURATION: Duration = Duration::from_secs(120);

/// An address that a running pod reports, but that its block has had free or allocated to another
/// owner for a while.
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
    /// The address belongs to this owner. The text is the one for the pod's namespace.
    #[error("allocated to {}", .0.for_caller)]
    Another(Holder),
}

impl ConflictKind {
    /// Returns the text with the whole description of the owner, for logs.
    pub fn whole(&self) -> String {
        match self {
            ConflictKind::Free => self.to_string(),
            ConflictKind::Another(holder) => format!("allocated to {}", holder.whole),
        }
    }
}

/// Returns the state in `block` of an `address` that a pod reports; `None` if the address may
/// belong to the pod.
pub fn conflict_kind(
    block: &Block,
    address: IpAddr,
    namespace: &str,
    name: &str,
) -> Option<ConflictKind> {
    let Some(allocation) = block
        .allocation(address)
        .filter(|allocation| !allocation.is_cooling())
    else {
        return Some(ConflictKind::Free);
    };
    let attribute = allocation
        .attribute
        .filter(|attribute| attribute.handle().is_some())?;
    let (allocation_owner, _) = AllocationOwner::of(attribute);
    let owner_pods = || AllocationOwner::owners(attribute);
    let owner = match allocation_owner {
        AllocationOwner::Unnamed => return None,
        AllocationOwner::Pod {
            namespace: of,
            name: pod,
        } if (of, pod) == (namespace, name) => return None,
        AllocationOwner::Vmi { .. } if owner_pods().any(|pod| pod == (namespace, name)) => {
            return None;
        }
        // The pod may be the VMI's.
        AllocationOwner::Vmi { namespace: of, .. }
            if of == namespace && owner_pods().next().is_none() =>
        {
            return None;
        }
        owner => owner.to_string(),
    };
    Some(ConflictKind::Another(Holder::described(
        owner,
        Some(attribute),
        Some(namespace),
    )))
}

#[derive(Debug, Default)]
pub(super) struct Conflicts {
    /// The suspected conflicts, by the pod's row and the address.
    pub(super) suspected: GraceTracker<(RowId, IpAddr), ()>,
    pub(super) reported: BTreeSet<(RowId, IpAddr)>,
    pub(super) pods_to_check: BTreeSet<RowId>,
    /// True if the next examination looks at all pods, as after a new block, whose addresses any
    /// pod may report.
    pub(super) check_all_pods: bool,
    pub(super) sizes: BTreeMap<(IpVersion, u8), usize>,
}

impl Conflicts {
    pub(super) fn block_added(&mut self, cidr: Cidr) {
        self.check_all_pods = true;
        *self
            .sizes
            .entry((cidr.version(), cidr.prefix()))
            .or_default() += 1;
    }

    pub(super) fn block_removed(&mut self, cidr: Cidr) {
        let size = (cidr.version(), cidr.prefix());
        let Some(count) = self.sizes.get_mut(&size) else {
            return;
        };
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

//! Contradictions in and between stored objects: the decision behind `calico-ipam check`.
//!
//! A finding alone does not permit a release: a second check must confirm it.
//!
//! Read `finding` first.

mod addresses;
mod blocks;
mod by_address;
mod finding;
mod handles;
mod owners;
mod packed;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::net::IpAddr;

use time::{Duration, OffsetDateTime};

pub(in crate::ipam) use self::addresses::owner_time;
pub use self::addresses::{allocation_time, pod_in_use_reason};
pub(in crate::ipam) use self::by_address::EndpointsByAddress;
pub use self::finding::{AllocatedAddress, Finding};
#[cfg(feature = "gc")]
pub(super) use self::handles::miscounted;
pub use self::handles::{HandleRepair, SuspectHandle, repair};
pub use self::owners::{AddressOwner, OwnedAddress, Owners};
pub use self::packed::{PackedAllocation, PackedBlock, PackedEndpoint, PackedHandle};
use super::{BlockAffinity, Lookup};
use crate::api::ObjectKey;
use crate::kubernetes::Pod;
use crate::net::Cidr;
use crate::store::Entry;

/// The fields of an endpoint that the audit needs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AuditedEndpoint {
    /// The endpoint's name for messages, `namespace/name`.
    pub name: String,
    /// Namespace and name of the WorkloadEndpoint, as calicoctl's reports name it.
    pub object: String,
    /// The endpoint's node.
    pub node: String,
    /// The endpoint's pod; `None` for the endpoint of a container without a pod.
    pub pod: Option<ObjectKey>,
    /// The endpoint's addresses.
    pub addresses: Vec<IpAddr>,
    /// The ID of the endpoint's container, if known.
    pub container_id: Option<String>,
}

/// Pods by namespace and name. An unreadable pod is [`Lookup::Unknown`].
pub type Pods = BTreeMap<ObjectKey, Lookup<Pod>>;

/// The objects to compare, preferably read in one snapshot.
#[derive(Debug, Clone, Copy)]
pub struct Inventory<'a> {
    /// Ranges of the pools, including those that are not in service.
    pub pools: &'a [Cidr],
    /// Ranges of the pools that are in service.
    pub active_pools: &'a [Cidr],
    /// The readable blocks.
    pub blocks: &'a [PackedBlock],
    /// The readable handles.
    pub handles: &'a [PackedHandle],
    /// The readable affinities.
    pub affinities: &'a [Entry<BlockAffinity>],
    /// The readable endpoints.
    pub endpoints: &'a [PackedEndpoint],
    /// The pods, if endpoints are derived from pods; otherwise empty.
    pub pods: &'a Pods,
    /// The tunnels, Services and virtual machines.
    pub owners: &'a Owners,
    /// The current time.
    pub now: OffsetDateTime,
    /// The age up to which an address without an endpoint is attributed to an ADD in progress.
    pub in_flight: Duration,
}

/// Compares the objects of the inventory, and returns the contradictions and notes found.
pub fn audit(inventory: &Inventory<'_>) -> Vec<Finding> {
    let mut findings = blocks::findings(inventory);
    findings.extend(handles::findings(inventory));
    findings.extend(addresses::findings(inventory));
    findings.extend(owners::findings(inventory));
    findings
}

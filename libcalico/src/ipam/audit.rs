//! What is wrong with the stored addresses: the decisions behind `calico-ipam check`, and behind garbage collection.
//!
//! Nothing here says that something may be freed. A finding carries the facts by which whoever frees it looks again
//! first: the address with its handle and sequence number, the handle or block with its revision.

mod addresses;
mod blocks;
mod finding;
mod handles;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::net::IpAddr;

use time::{Duration, OffsetDateTime};

pub use self::addresses::pod_keeper;
pub use self::finding::{Finding, HeldAddress};
pub(super) use self::handles::miscounted;
use super::{Block, BlockAffinity, Handle, Sight};
use crate::api::ObjectKey;
use crate::kubernetes::Pod;
use crate::net::Cidr;
use crate::store::Entry;

/// An endpoint, as far as its addresses are concerned.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EndpointFacts {
    /// Its name for people, `namespace/name`.
    pub name: String,
    /// The node it is on.
    pub node: String,
    /// The pod that it is of; `None` for that of a plain container.
    pub pod: Option<ObjectKey>,
    /// Its addresses.
    pub addresses: Vec<IpAddr>,
    /// The container it belongs to.
    pub container_id: Option<String>,
}

/// Pods by namespace and name. One that cannot be read is [`Sight::Unknown`].
pub type Pods = BTreeMap<ObjectKey, Sight<Pod>>;

/// Everything that is compared, best read in one snapshot.
#[derive(Debug, Clone, Copy)]
pub struct Inventory<'a> {
    /// Ranges of all pools, in service or not.
    pub pools: &'a [Cidr],
    /// All blocks.
    pub blocks: &'a [Entry<Block>],
    /// All handles.
    pub handles: &'a [Entry<Handle>],
    /// All affinities.
    pub affinities: &'a [Entry<BlockAffinity>],
    /// All endpoints.
    pub endpoints: &'a [EndpointFacts],
    /// All pods, where endpoints are views of them; elsewhere none.
    pub pods: &'a Pods,
    /// The time.
    pub now: OffsetDateTime,
    /// An address without endpoint that was allocated less than this ago is taken for an ADD under way.
    pub in_flight: Duration,
}

/// Compares blocks, handles, affinities and endpoints, and lists every contradiction.
pub fn audit(inventory: &Inventory<'_>) -> Vec<Finding> {
    let mut findings = blocks::findings(inventory);
    findings.extend(handles::findings(inventory));
    findings.extend(addresses::findings(inventory));
    findings
}

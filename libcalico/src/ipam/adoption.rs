//! Adoption: the allocation of addresses that running workloads use and that IPAM does not have,
//! for example after a restore of the datastore.
//!
//! A tenant writes the names, labels and annotations of pods. A claim therefore takes its address
//! from the pod's status, and its container from the node ([`prove_container`]). Two claims on one
//! address are a conflict for a person to solve ([`plan_adoption`]).

mod container;
mod plan;
#[cfg(test)]
mod tests;

use std::fmt;
use std::net::IpAddr;

use super::HandleId;
use crate::failure::Failure;

pub use self::container::{ContainerEvidence, Statement, foreign_interface, prove_container};
pub use self::plan::{Adoption, AdoptionInputs, plan_adoption};

/// A workload that uses an address.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Claimant {
    /// A pod.
    Pod {
        /// The pod's namespace.
        namespace: String,
        /// The pod's name.
        name: String,
    },
    /// A container that is not a pod, by its ID.
    Container(String),
    /// The tunnel device of this node.
    Tunnel(String),
}

impl fmt::Display for Claimant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Claimant::Pod { namespace, name } => write!(f, "pod {namespace}/{name}"),
            Claimant::Container(id) => write!(f, "container {id}"),
            Claimant::Tunnel(node) => write!(f, "the tunnel of node {node}"),
        }
    }
}

/// An address that a running workload of the node uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// The address.
    pub address: IpAddr,
    /// The workload.
    pub claimant: Claimant,
    /// The handle under which the workload's DEL releases the address, if it is proven.
    pub handle: Result<HandleId, Failure>,
}

//! Addresses that a VMI of KubeVirt keeps from pod to pod.
//!
//! The allocations name the VMI's pods: the pod in which it runs as active owner, the target of a
//! live migration as alternate owner. The addresses are released when the VMI is being deleted and
//! no owner remains (IPAM-55).
//!
//! Read `detect` first, then `owners`.

mod detect;
mod owners;

pub use detect::{DetectedVmi, detect};
pub use owners::{AdoptedAddresses, Ownership, adopt_addresses, restore_owner};

//! Addresses that a VMI of KubeVirt keeps from pod to pod.
//!
//! The addresses are allocated under the VMI's handle. The allocations name the VMI's pods: the pod in which it runs as
//! active owner, the target of a live migration as alternate owner. The DEL of a pod removes the pod as owner. The
//! addresses are released when the VMI is being deleted and no owner remains (IPAM-55).
//!
//! Read `detect` first, then `keep`.

mod detect;
mod owners;

use libcalico::ipam::HandleId;
use libcalico::store::StoreError;
use netconf::{CniError, Code};

pub use detect::{Detected, detect};
pub use owners::{TakenOver, give_back, leave, take_over};

/// The reason why a pod with a VMI cannot be served.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MachineError {
    /// The Kubernetes API did not return the pod's VMI.
    #[error("failed to get VMI info: {0}")]
    Unknown(#[from] StoreError),
    /// The pod's VirtualMachineInstance is missing, or an earlier one of the same name.
    #[error("failed to get VMI info: VirtualMachineInstance {namespace}/{name} with uid {uid} does not exist")]
    NoInstance {
        /// The namespace.
        namespace: String,
        /// The name.
        name: String,
        /// The UID that the pod names.
        uid: String,
    },
    /// The VirtualMachine of the instance is missing.
    #[error("failed to get VMI info: VirtualMachine {namespace}/{name} does not exist")]
    NoMachine {
        /// The namespace.
        namespace: String,
        /// The name.
        name: String,
    },
    /// A live migration requires that VMIs keep their addresses.
    #[error("live migration target pod is not allowed when KubeVirtVMAddressPersistence is disabled")]
    TargetNotAllowed,
    /// The VMI of a migration target has no address that it could keep.
    #[error("migration target pod but no IP allocated to VM handle {0}")]
    NothingHeld(HandleId),
}

impl MachineError {
    /// Returns true if the Kubernetes API may respond later: see [`StoreError::is_postponable`].
    pub fn is_postponable(&self) -> bool {
        matches!(self, MachineError::Unknown(error) if error.is_postponable())
    }
}

impl From<MachineError> for CniError {
    fn from(error: MachineError) -> Self {
        let (code, advice) = match &error {
            MachineError::TargetNotAllowed => {
                (Code::INVALID_CONFIG, "IPAMConfiguration default: set kubeVirtVMAddressPersistence to Enabled")
            }
            MachineError::Unknown(cause) if !cause.is_unavailable() => {
                (Code::INTERNAL, "the plugin gets virtualmachineinstances and virtualmachines of kubevirt.io")
            }
            MachineError::NothingHeld(_) => (Code::TRY_AGAIN, "the machine's other pod has no address of this network"),
            _ => (Code::TRY_AGAIN, ""),
        };
        CniError::new(code, error.to_string()).with_details(advice)
    }
}

#[cfg(test)]
mod tests;

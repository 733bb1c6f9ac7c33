//! Addresses that a virtual machine of KubeVirt keeps, whatever pod it runs in (IPAM-50..IPAM-55).
//!
//! The machine's handle holds them. The pods of the machine are noted with them: the one it runs in as active owner,
//! the target of a live migration as alternate owner. A pod that goes takes itself off; the addresses are given back
//! when the machine is being deleted and no pod is noted any more.

mod detect;
mod keep;

use libcalico::ipam::HandleId;
use libcalico::store::StoreError;
use netconf::{CniError, Code};

pub use detect::{Detected, detect};
pub use keep::{TakenOver, give_back, leave, take_over};

/// Why a pod with a virtual machine cannot be served.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MachineError {
    /// The Kubernetes API did not say what the pod is to its machine.
    #[error("failed to get VMI info: {0}")]
    Unknown(#[from] StoreError),
    /// The pod is of an instance that is not there, or of an earlier one of this name.
    #[error("failed to get VMI info: VirtualMachineInstance {namespace}/{name} with uid {uid} does not exist")]
    NoInstance {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
        /// The uid that the pod names.
        uid: String,
    },
    /// The instance is of a machine that is not there.
    #[error("failed to get VMI info: VirtualMachine {namespace}/{name} does not exist")]
    NoMachine {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
    },
    /// A machine on the move keeps its addresses, or it has none.
    #[error("live migration target pod is not allowed when KubeVirtVMAddressPersistence is disabled")]
    TargetNotAllowed,
    /// There is nothing that the machine could bring along.
    #[error("migration target pod but no IP allocated to VM handle {0}")]
    NothingHeld(HandleId),
}

impl MachineError {
    /// Returns true if the Kubernetes API may answer later: see [`StoreError::is_postponable`].
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

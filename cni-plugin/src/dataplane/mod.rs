//! The Linux dataplane: the interface pair, addresses, routes and kernel settings of one endpoint.
//!
//! [`plan`] computes the desired state (pure), [`setup()`] applies it (ADD), [`verify()`] compares the kernel with it
//! (CHECK), and [`Teardown`] removes it (DEL). All of that is synchronous. Only this module uses netlink. [`grpc`] lets
//! another program carry out ADD and DEL instead.

mod compare;
mod error;
pub mod grpc;
mod host;
mod interfaces_lock;
mod mac;
mod netlink;
pub mod netns;
mod occupied;
mod ownership;
pub mod plan;
mod setup;
mod suspects;
mod sysctl;
mod teardown;

pub use compare::{Aspect, Difference, verify};
pub use error::{BusyRoute, DataplaneError};
pub use grpc::{GrpcDataplane, GrpcError};
pub use host::KernelNetwork;
pub use mac::{MacAddr, MacParseError};
pub use netconf::conf::DeviceType;
pub use netlink::NetlinkError;
pub use netns::{NetnsError, NetnsFd};
pub use occupied::{Occupant, is_absent, occupant};
pub use ownership::{Holder, Reason};
pub use plan::{Before, EndpointPlan, Wanted};
pub use setup::{Attached, Stage, remove, setup};
pub use suspects::{Interface, Running, Suspect, aliases, interfaces, running};
pub use sysctl::SysctlError;
pub use teardown::{Endpoint, HostLinkProof, Removed, Teardown};

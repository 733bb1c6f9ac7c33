//! The network configuration of the plugins: every key with its type, its default, and the CNI
//! commands that read it.
//!
//! "Read by" in the comment of a key names the CNI commands that read the key; `-t` is the
//! datastore connection test.

mod accepted;
mod datastore;
mod del;
mod environment;
mod interface;
mod ipam;
mod log;
mod net_conf;
mod node;
mod readiness;

pub use accepted::{
    Args, MesosLabel, MesosLabels, MesosNetworkInfo, OrgApacheMesos, RuntimeConfig, RuntimeDns,
    WindowsConf,
};
pub use datastore::{ApiGroup, DatastoreConf, DatastoreType, Kubernetes, Policy, Secret};
pub use interface::{
    ContainerSettings, DataplaneOptions, DeviceType, FeatureControl, InterfaceConf, MTU_MAX,
    MTU_MIN,
};
pub use ipam::{Ipam, IpamRange, IpamRoute};
pub use log::{LogConf, LogLevel};
pub use net_conf::{Attachment, NetConf};
pub use node::NodeConf;
pub use readiness::ReadinessConf;

#[cfg(test)]
mod tests;

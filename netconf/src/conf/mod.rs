//! The network configuration of the plugins: every key with its type, its default, and the CNI commands that read it.
//!
//! "Read by" names the CNI commands; `-t` is the datastore connection test.

mod accepted;
mod dataplane;
mod datastore;
mod del;
mod environment;
mod interface;
mod ipam;
mod kubernetes;
mod log;
mod net_conf;
mod node;
mod runtime;

pub use accepted::{Args, MesosLabel, MesosLabels, MesosNetworkInfo, OrgApacheMesos, WindowsConf};
pub use dataplane::{ContainerSettings, DataplaneOptions, FeatureControl};
pub use datastore::{ApiGroup, DatastoreConf, DatastoreType, Secret};
pub use interface::{DeviceType, InterfaceConf};
pub use ipam::{Ipam, IpamRange, IpamRoute};
pub use kubernetes::{Kubernetes, Policy};
pub use log::{LogConf, LogLevel};
pub use net_conf::NetConf;
pub use node::{NodeConf, ReadinessConf};
pub use runtime::{Attachment, RuntimeConfig, RuntimeDns};

#[cfg(test)]
mod tests;

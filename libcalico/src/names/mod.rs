//! Names that are derived from other names: endpoints, host interfaces, status files, labels.

mod cidr;
mod endpoint_status;
mod host_hash;
mod host_interface;
mod interface_alias;
mod mesos_label;
mod node;
mod workload_endpoint;

pub use cidr::cidr_name;
pub use endpoint_status::endpoint_status_file;
pub use host_hash::{HOSTNAME_HASH_LABEL, hostname_hash};
pub use host_interface::{DEFAULT_INTERFACE_PREFIX, container_interface, interface_prefix, pod_interface};
pub use interface_alias::InterfaceAlias;
pub use mesos_label::sanitise_mesos_label;
pub use node::{NodeName, NodeNameInputs, NodeNameSource, node_name};
pub use workload_endpoint::{EndpointIdentifiers, EndpointNameError};

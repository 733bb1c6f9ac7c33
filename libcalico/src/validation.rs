//! Rules, mostly those that upstream's clients and API server apply before an object is stored
//! (DS-46, DS-47).
//!
//! Functions named `admit_…` add defaults, check the object, and return it; functions named
//! `complete_…` only add defaults, and functions named `validate_…` only check.

mod cluster_information;
mod host_endpoint;
mod ip_pool;
mod ip_reservation;
mod ipam_configuration;
mod kube_controllers_configuration;
pub mod manifest;
mod metadata;
mod node;
mod policy;
mod profile;
mod syntax;
mod workload_endpoint;

pub use cluster_information::validate_cluster_information;
pub use host_endpoint::validate_host_endpoint;
pub use ip_pool::{PoolContext, admit_ip_pool, complete_ip_pool};
pub use ip_reservation::validate_ip_reservation;
pub use ipam_configuration::{admit_ipam_configuration, validate_ipam_config};
pub use kube_controllers_configuration::{
    complete_kube_controllers_configuration, invalid_templates,
    validate_kube_controllers_configuration,
};
pub use node::validate_node;
pub use policy::admit_policy;
pub use profile::validate_profile;
pub(crate) use syntax::label_problem;
pub use workload_endpoint::validate_workload_endpoint;

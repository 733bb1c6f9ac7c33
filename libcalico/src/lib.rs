//! Calico's data model and rules as pure functions.
//!
//! This library does no I/O: it uses no sockets, files, clock or randomness. The `datastore` crate
//! implements [`store::Store`], the only trait for access to the outside.

pub mod api;
pub mod backoff;
pub mod conversion;
#[cfg(feature = "schema")]
pub mod crd;
pub mod dead_interface;
pub mod failure;
pub mod host_endpoints;
pub mod ipam;
pub mod kind;
pub mod kubernetes;
pub mod migration;
pub mod names;
pub mod net;
pub mod orphaned_endpoint;
pub mod selector;
pub mod store;
pub mod validation;
pub mod validation_error;
pub mod variables;
pub mod workload;
pub mod yaml;

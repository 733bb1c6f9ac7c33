//! Calico's data model and rules as pure functions.
//!
//! This library does no I/O: it uses no sockets, files, clock or randomness. Time and seeds are arguments, so unit and
//! property tests can cover every rule. The only trait for access to the outside is [`store::Store`]; the `datastore`
//! crate implements it.

pub mod api;
pub mod backoff;
pub mod conversion;
#[cfg(feature = "schema")]
pub mod crd;
pub mod host_endpoints;
pub mod ipam;
pub mod kind;
pub mod kubernetes;
pub mod names;
pub mod net;
pub mod orphaned_endpoint;
pub mod selector;
pub mod store;
pub mod validation;
pub mod validation_error;
pub mod workload;

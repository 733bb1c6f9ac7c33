//! Calico's model and logic as values and functions from values to values.
//!
//! Nothing in here does I/O: no sockets, no files, no clock, no randomness. Time and seeds come in as arguments, so
//! that every rule can be shown by a unit or property test. The one trait that touches the outside, [`store::Store`],
//! is implemented by the `datastore` crate.

pub mod api;
pub mod conversion;
#[cfg(feature = "schema")]
pub mod crd;
pub mod host_endpoints;
pub mod ipam;
pub mod kubernetes;
pub mod names;
pub mod net;
pub mod orphaned_endpoint;
pub mod selector;
pub mod store;
pub mod validation;

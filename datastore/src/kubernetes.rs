//! The Kubernetes API server as a datastore: Calico's data as custom resources, pods as WorkloadEndpoints (DS-53).

mod access;
mod client;
pub mod config;
mod discovery;
mod failure;
mod pages;
mod store;
mod tls;
mod transport;

pub use store::Kubernetes;

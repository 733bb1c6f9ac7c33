//! The controllers. Most are a `cached::CachedController` with a reconciler.

mod cached;
mod custom_resource;
pub mod host_endpoints;
pub mod ip_pool;
pub mod load_balancer;
pub mod namespace;
pub mod node_deletion;
pub mod node_labels;
mod node_names;
pub mod policy;
pub mod policy_names;
pub(crate) mod same_cluster;
pub mod service_account;
pub mod sync;
#[cfg(test)]
pub(crate) mod testing;
pub mod tier;
pub mod workload_endpoint;

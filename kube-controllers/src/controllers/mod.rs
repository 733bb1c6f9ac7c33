//! The controllers.
//!
//! [`mirror`] is shared by [`policy`], [`namespace`] and [`service_account`]; the other modules are independent of each
//! other.

mod condition;
mod custom_resource;
pub mod host_endpoints;
pub mod ip_pool;
pub mod load_balancer;
pub mod mirror;
pub mod namespace;
pub mod node_deletion;
pub mod node_labels;
mod orchestrated;
pub mod policy;
pub mod policy_names;
mod refusal;
mod rounds;
pub mod service_account;
#[cfg(test)]
pub(crate) mod testing;
pub mod tier;
mod work;
pub mod workload_endpoint;

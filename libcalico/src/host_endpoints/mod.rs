//! The HostEndpoints that nodes get by themselves (KC-480..KC-489): which there are to be for a node, a function of the
//! node and the settings.
//!
//! Ours are told from those of people by the label [`CREATED_BY`] alone.

mod desired;
mod name;
mod node;
mod settings;
#[cfg(test)]
mod tests;

pub use desired::{Desired, TemplateProblem, desired, differs};
pub use name::auto_host_endpoint_name;
pub use node::{HostNode, NodeInterface};
pub use settings::AutoHostEndpoints;

use crate::api::HostEndpoint;

/// The label that ours have.
pub const CREATED_BY: (&str, &str) = ("projectcalico.org/created-by", "calico-kube-controllers");

/// The profile that ours have: what no policy speaks of is allowed.
pub const PROFILE: &str = "projectcalico-default-allow";

/// Whether the endpoint is one of ours; all others are left alone.
pub fn is_ours(endpoint: &HostEndpoint) -> bool {
    endpoint.metadata.labels.get(CREATED_BY.0).is_some_and(|creator| creator == CREATED_BY.1)
}

//! Computes the HostEndpoints that kube-controllers creates for a node, from the node and the settings.
//!
//! Only the label [`CREATED_BY`] distinguishes these endpoints from the ones that people create. Start with `desired`.

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

/// The label of endpoints that kube-controllers creates.
pub const CREATED_BY: (&str, &str) = ("projectcalico.org/created-by", "calico-kube-controllers");

/// The profile of endpoints that kube-controllers creates. It allows all traffic that no policy selects.
pub const PROFILE: &str = "projectcalico-default-allow";

/// Returns true if kube-controllers created the endpoint. All other endpoints remain unchanged.
pub fn is_ours(endpoint: &HostEndpoint) -> bool {
    endpoint.metadata.labels.get(CREATED_BY.0).is_some_and(|creator| creator == CREATED_BY.1)
}

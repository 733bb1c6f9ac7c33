//! Computes the HostEndpoints that kube-controllers creates for a node, from the node and the settings.
//!
//! Only the label [`CREATED_BY`] distinguishes these endpoints from the ones that people create. Start with `desired`.

mod desired;
mod node;
#[cfg(test)]
mod tests;

use data_encoding::BASE64URL_NOPAD;
use sha2::{Digest, Sha256};

use crate::api::{HostEndpoint, HostEndpointTemplate};

pub use desired::{Desired, TemplateProblem, desired, differs};
pub use node::{HostNode, NodeInterface};

/// The label of endpoints that kube-controllers creates.
pub const CREATED_BY: (&str, &str) = ("projectcalico.org/created-by", "calico-kube-controllers");

/// The profile of endpoints that kube-controllers creates. It allows all traffic that no policy selects.
pub const PROFILE: &str = "projectcalico-default-allow";

/// Returns true if kube-controllers created the endpoint. All other endpoints remain unchanged.
pub fn is_ours(endpoint: &HostEndpoint) -> bool {
    endpoint.metadata.labels.get(CREATED_BY.0).is_some_and(|creator| creator == CREATED_BY.1)
}

/// The HostEndpoints that nodes get. The default is none.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct AutoHostEndpoints {
    /// True if nodes get any endpoints (`autoCreate`).
    pub enabled: bool,
    /// True if each node gets an endpoint for all its interfaces (`createDefaultHostEndpoint`).
    pub default_endpoint: bool,
    /// The templates of further endpoints.
    pub templates: Vec<HostEndpointTemplate>,
    /// True if part of the configuration could not be read. No endpoint is deleted then.
    pub keep: bool,
}

/// The longest name that Kubernetes accepts.
const MAX_NAME: usize = 253;
const SUFFIX: &str = "auto-hep";

/// Returns `NODE-auto-hep`, with the names of the template and the interface, if any, before the suffix. A name that is
/// too long is replaced by its hash (KC-485). So is a name that Kubernetes rejects, because an interface may be named
/// `Eth_0` (KC-489).
pub fn auto_host_endpoint_name(node: &str, template: Option<&str>, interface: Option<&str>) -> String {
    let parts = [Some(node), template, interface, Some(SUFFIX)];
    let name = parts.into_iter().flatten().collect::<Vec<_>>().join("-");
    let is_valid = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'-' | b'.');
    // The name begins with the node's name and ends with the suffix, which are valid there.
    if name.len() <= MAX_NAME && name.bytes().all(is_valid) {
        return name;
    }
    let mut hash = BASE64URL_NOPAD.encode(&Sha256::digest(&name));
    hash.retain(|c| !matches!(c, '-' | '_' | '.'));
    format!("{hash}-{SUFFIX}").to_lowercase()
}

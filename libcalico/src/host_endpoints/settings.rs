//! The settings for automatic HostEndpoints.

use crate::api::HostEndpointTemplate;

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

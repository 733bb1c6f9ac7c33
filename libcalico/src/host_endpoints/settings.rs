//! What people ask for.

use crate::api::HostEndpointTemplate;

/// Which HostEndpoints nodes get. By default none.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct AutoHostEndpoints {
    /// Whether there are any (`autoCreate`).
    pub enabled: bool,
    /// Whether each node has one for all its interfaces (`createDefaultHostEndpoint`).
    pub default_endpoint: bool,
    /// Further ones.
    pub templates: Vec<HostEndpointTemplate>,
    /// True if more is asked for than could be read: no endpoint is deleted.
    pub keep: bool,
}

//! [`Observed`]: an observation, or the reason why it is missing.

use std::fmt::Display;

use crate::host_network::NetworkError;
use crate::node_conf::NodeConfError;

/// An observation, or the reason why it is missing.
pub type Observed<T> = Result<T, Unobserved>;

/// The reason for a missing observation.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Unobserved(String);

impl Unobserved {
    /// Takes the text of an error as the reason.
    pub fn new(reason: impl Display) -> Self {
        Unobserved(reason.to_string())
    }
}

impl From<&str> for Unobserved {
    fn from(reason: &str) -> Self {
        Unobserved(reason.to_owned())
    }
}

impl From<NetworkError> for Unobserved {
    fn from(error: NetworkError) -> Self {
        Unobserved::new(error)
    }
}

impl From<NodeConfError> for Unobserved {
    fn from(error: NodeConfError) -> Self {
        Unobserved::new(error)
    }
}

impl From<Unobserved> for String {
    fn from(Unobserved(reason): Unobserved) -> Self {
        reason
    }
}

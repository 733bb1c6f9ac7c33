//! Errors of objects and requests that cannot be represented on an API server.

use crate::store::StoreError;

/// A request that the Kubernetes datastore does not support.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TranscodeError {
    /// The kind, or the operation on the kind, does not exist on an API server. The text is upstream's (DS-118).
    #[error("operation {operation} is not supported on {object}: {reason}")]
    Unsupported {
        /// The operation, such as `Create` or `List`.
        operation: &'static str,
        /// The identifier of the object, or the kind.
        object: String,
        /// The reason, with an alternative if there is one.
        reason: &'static str,
    },
    /// A path that no object of its kind has.
    #[error("cannot find {kind} at {path}: not a path of that kind")]
    Path {
        /// The kind.
        kind: String,
        /// The path.
        path: String,
    },
    /// A value to write that is not an object of its kind.
    #[error("cannot write {object} to Kubernetes: {reason}")]
    Value {
        /// Identifier of the object.
        object: String,
        /// The reason.
        reason: String,
    },
}

impl From<TranscodeError> for StoreError {
    fn from(error: TranscodeError) -> Self {
        StoreError::Other(error.to_string())
    }
}

/// The reason why an object of the API server cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(super) struct Malformed(pub(super) String);

impl From<serde_json::Error> for Malformed {
    fn from(error: serde_json::Error) -> Self {
        Malformed(error.to_string())
    }
}

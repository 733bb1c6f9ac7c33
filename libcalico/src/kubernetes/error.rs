//! Why an object or a request has no form in Kubernetes.

use crate::store::StoreError;

/// A request that the Kubernetes datastore does not serve.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TranscodeError {
    /// The kind, or the operation on it, has no form there (DS-53). The text is upstream's (DS-118).
    #[error("operation {operation} is not supported on {object}: {reason}")]
    Unsupported {
        /// `Create`, `List` …
        operation: &'static str,
        /// Identifier of the object, or the kind.
        object: String,
        /// Why not, and what to do instead.
        reason: &'static str,
    },
    /// A path that its kind does not have.
    #[error("cannot find {kind} at {path}: not a path of that kind")]
    Path {
        /// The kind.
        kind: String,
        /// The path.
        path: String,
    },
    /// A value to be written that is no object of its kind.
    #[error("cannot write {object} to Kubernetes: {reason}")]
    Value {
        /// Identifier of the object.
        object: String,
        /// What is wrong.
        reason: String,
    },
}

impl From<TranscodeError> for StoreError {
    fn from(error: TranscodeError) -> Self {
        StoreError::Other(error.to_string())
    }
}

/// An object of the API server that cannot be read: what is wrong with it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(super) struct Malformed(pub(super) String);

impl From<serde_json::Error> for Malformed {
    fn from(error: serde_json::Error) -> Self {
        Malformed(error.to_string())
    }
}

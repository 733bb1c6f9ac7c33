//! Errors of objects and requests that cannot be represented on an API server, and [`PodProblem`].

use crate::net::{Cidr, CidrParseError};
use crate::store::{StoreError, StoredValue};

/// A request that the Kubernetes datastore does not support.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CodecError {
    /// The kind or the operation is not supported on an API server. The text is upstream's
    /// (DS-118).
    #[error("operation {operation} is not supported on {object}: {reason}")]
    Unsupported {
        /// The operation, such as `Create` or `List`.
        operation: &'static str,
        /// The identifier of the object, or the kind.
        object: String,
        /// The reason.
        reason: &'static str,
    },
    /// A path that no object of its kind has.
    #[error("cannot find {kind}: invalid path {path}")]
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

impl From<CodecError> for StoreError {
    fn from(error: CodecError) -> Self {
        StoreError::Other(error.to_string())
    }
}

/// The reason why an object of the API server cannot be converted to its stored form, or back.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(super) struct Malformed(pub(super) String);

impl From<serde_json::Error> for Malformed {
    fn from(error: serde_json::Error) -> Self {
        Malformed(error.to_string())
    }
}

/// The value of an unreadable object: no kind decodes from a text, and the decoder's error quotes
/// the text.
impl From<Malformed> for StoredValue {
    fn from(Malformed(reason): Malformed) -> Self {
        StoredValue::Json(reason.into())
    }
}

/// The annotation with floating addresses.
pub const FLOATING_IPS: &str = "cni.projectcalico.org/floatingIPs";

/// Maximum number of characters that [`beginning`] returns.
const SHOWN: usize = 200;

/// Returns the beginning of a text of a tenant, for an error: an annotation may have 256 KiB.
pub fn beginning(text: &str) -> String {
    text.chars().take(SHOWN).collect()
}

/// A value on a pod that its endpoint cannot contain as written. The texts are upstream's, if
/// upstream has one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PodProblem {
    /// An address of the pod.
    #[error("address of the pod: {0}")]
    Address(#[from] CidrParseError),
    /// An annotation that should be a JSON array of texts.
    #[error("failed to parse '{value}' as JSON: {reason}")]
    Json {
        /// The key of the annotation.
        annotation: &'static str,
        /// The beginning of the annotation's value.
        value: String,
        /// The beginning of the parser's message, which may contain a part of the value.
        reason: String,
    },
    /// A prefix in an annotation.
    #[error("failed to parse '{}' as a CIDR: {cause}", .cause.0)]
    Prefix {
        /// The key of the annotation.
        annotation: &'static str,
        /// The parser's error.
        cause: CidrParseError,
    },
    /// Floating addresses of a pod whose own address is a network.
    #[error("the pod's address {0} is a range; floating IPs require a single address")]
    NotSingleAddress(Cidr),
    /// A traffic limit or a DSCP that is ignored or changed.
    #[error("{reason}")]
    Limit {
        /// The key of Calico's annotation for the limit, even if another annotation has the value.
        annotation: &'static str,
        /// The reason.
        reason: String,
    },
}

impl PodProblem {
    /// Returns the key of the annotation concerned; `None` for the pod's addresses.
    pub fn annotation(&self) -> Option<&'static str> {
        match self {
            PodProblem::Address(_) => None,
            PodProblem::NotSingleAddress(_) => Some(FLOATING_IPS),
            PodProblem::Json { annotation, .. }
            | PodProblem::Prefix { annotation, .. }
            | PodProblem::Limit { annotation, .. } => Some(annotation),
        }
    }

    /// Returns true if an ADD that reads the pod's annotations fails with this problem (CNI-104).
    pub fn is_fatal(&self) -> bool {
        !matches!(self, PodProblem::Limit { .. })
    }
}

//! Errors about a value in a JSON document.

use crate::{CniError, Code};

/// A value in a JSON document that cannot be used. `path` is a JSON path such as `$.ipam.ipv4_pools[1]`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// A value of the wrong JSON type.
    #[error("{path}: found {found}, want {want}")]
    Type {
        /// The JSON path.
        path: String,
        /// The value found.
        found: String,
        /// The values allowed.
        want: String,
    },
    /// A value of the right type that is not allowed.
    #[error("{path}: found {found}, want {want}")]
    Value {
        /// The JSON path.
        path: String,
        /// The value found.
        found: String,
        /// The values allowed.
        want: String,
    },
    /// A required key that is missing.
    #[error("{path}: missing, want {want}")]
    Missing {
        /// The JSON path.
        path: String,
        /// The values allowed.
        want: String,
    },
    /// Two keys of one object that differ only in letter case and mean the same setting.
    #[error("{path}: the same key as {other:?}; keep one of them")]
    Duplicate {
        /// The JSON path.
        path: String,
        /// The other key.
        other: String,
    },
}

impl DecodeError {
    /// Returns the JSON path of the value.
    pub(crate) fn path(&self) -> &str {
        match self {
            DecodeError::Type { path, .. }
            | DecodeError::Value { path, .. }
            | DecodeError::Missing { path, .. }
            | DecodeError::Duplicate { path, .. } => path,
        }
    }

    /// Returns code 6 for a document of the wrong shape, and code 7 for a value that is missing or not allowed.
    pub fn code(&self) -> Code {
        match self {
            DecodeError::Type { .. } | DecodeError::Duplicate { .. } => Code::DECODE,
            DecodeError::Value { .. } | DecodeError::Missing { .. } => Code::INVALID_CONFIG,
        }
    }

    /// Returns the CNI error. `doing` precedes the message and names the failed step and the document.
    pub(crate) fn while_doing(&self, doing: &str) -> CniError {
        CniError::new(self.code(), format!("{doing}: {self}"))
    }
}

//! Where a document is not what it should be.

use crate::{CniError, Code};

/// A place in a JSON document whose content cannot be used. `path` is a JSON path such as `$.ipam.ipv4_pools[1]`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// A value of the wrong JSON type.
    #[error("{path}: found {found}, want {want}")]
    Type {
        /// Where.
        path: String,
        /// What is there.
        found: String,
        /// What is allowed.
        want: String,
    },
    /// A value of the right type that is not allowed.
    #[error("{path}: found {found}, want {want}")]
    Value {
        /// Where.
        path: String,
        /// What is there.
        found: String,
        /// What is allowed.
        want: String,
    },
    /// A key that has to be there is not.
    #[error("{path}: missing, want {want}")]
    Missing {
        /// Where.
        path: String,
        /// What is allowed.
        want: String,
    },
    /// Two keys of one object differ in letter case only and mean the same setting.
    #[error("{path}: the same key as {other:?}; keep one of them")]
    Duplicate {
        /// Where.
        path: String,
        /// The other key.
        other: String,
    },
}

impl DecodeError {
    /// Returns the place, as a JSON path.
    pub(crate) fn path(&self) -> &str {
        match self {
            DecodeError::Type { path, .. }
            | DecodeError::Value { path, .. }
            | DecodeError::Missing { path, .. }
            | DecodeError::Duplicate { path, .. } => path,
        }
    }

    /// Code 6 when the document has the wrong shape, code 7 when a value is missing or not allowed.
    pub fn code(&self) -> Code {
        match self {
            DecodeError::Type { .. } | DecodeError::Duplicate { .. } => Code::DECODE,
            DecodeError::Value { .. } | DecodeError::Missing { .. } => Code::INVALID_CONFIG,
        }
    }

    /// The CNI error, its message introduced by `doing`: what was being done to which document.
    pub(crate) fn while_doing(&self, doing: &str) -> CniError {
        CniError::new(self.code(), format!("{doing}: {self}"))
    }
}

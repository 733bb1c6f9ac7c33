//! [`Work`]: a key of a controller that also compares all objects periodically.

use std::fmt;

use libcalico::api::ObjectKey;

/// A unit of work.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Work {
    /// Compare all objects.
    All,
    /// Reconcile the object with this key.
    One(ObjectKey),
}

impl fmt::Display for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Work::All => f.write_str("all"),
            Work::One(key) => key.fmt(f),
        }
    }
}

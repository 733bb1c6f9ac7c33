//! [`Work`]: one piece of work of a controller that also compares everything from time to time.

use std::fmt;

use libcalico::api::ObjectKey;

/// One piece of work.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Work {
    /// Compare everything.
    All,
    /// Bring what this names in order.
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

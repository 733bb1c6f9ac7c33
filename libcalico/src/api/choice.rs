//! [`Choice`]: a value of a closed set that a newer Calico may have widened.

use std::fmt;

use serde::{Deserialize, Serialize};

/// One value of the set `T`, as it is stored. A value that this build does not know is kept as it is written, so that
/// it neither hides the object nor is lost when the object is written again.
#[derive(Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Choice<T> {
    /// A value of the set.
    Known(T),
    /// Any other text.
    Other(String),
}

impl<T: PartialEq> Choice<T> {
    /// Whether it is `value`.
    pub fn is(&self, value: &T) -> bool {
        matches!(self, Choice::Known(known) if known == value)
    }
}

impl<T> From<T> for Choice<T> {
    fn from(value: T) -> Self {
        Choice::Known(value)
    }
}

/// As it is stored, without quotes.
impl<T: fmt::Debug> fmt::Debug for Choice<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Choice::Known(value) => value.fmt(f),
            Choice::Other(text) => f.write_str(text),
        }
    }
}

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

/// Who writes is held to the values of the set.
#[cfg(feature = "schema")]
impl<T: schemars::JsonSchema> schemars::JsonSchema for Choice<T> {
    fn inline_schema() -> bool {
        T::inline_schema()
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        T::schema_name()
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        T::json_schema(generator)
    }
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

//! [`StringEnum`]: a value of a closed set to which a newer Calico may have added values.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A value of the set `T` in its stored form. A value unknown to this build is kept as text, so
/// that the object stays readable and the value survives a rewrite.
#[derive(Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(untagged)]
pub enum StringEnum<T> {
    /// A value of the set.
    Known(T),
    /// Any other text.
    Other(String),
}

/// The schema lists only the known values.
#[cfg(feature = "schema")]
impl<T: schemars::JsonSchema> schemars::JsonSchema for StringEnum<T> {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        T::schema_name()
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        T::json_schema(generator)
    }
}

impl<T: PartialEq> StringEnum<T> {
    /// Returns true if this is `value`.
    pub fn is(&self, value: &T) -> bool {
        matches!(self, StringEnum::Known(known) if known == value)
    }
}

impl<T> From<T> for StringEnum<T> {
    fn from(value: T) -> Self {
        StringEnum::Known(value)
    }
}

/// Formats the value as it is stored, without quotes.
impl<T: fmt::Debug> fmt::Debug for StringEnum<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StringEnum::Known(value) => value.fmt(f),
            StringEnum::Other(text) => f.write_str(text),
        }
    }
}

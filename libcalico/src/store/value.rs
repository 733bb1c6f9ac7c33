//! [`StoredValue`]: the value of a stored pair, in the form in which its store has it.

use std::borrow::Cow;

use serde_json::Value;

use super::Kind;

/// The value of a stored pair. Both forms of a value decode as the same object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoredValue {
    /// The stored bytes.
    Bytes(Vec<u8>),
    /// JSON that the store has parsed already.
    Json(Value),
}

impl<B: Into<Vec<u8>>> From<B> for StoredValue {
    fn from(bytes: B) -> Self {
        StoredValue::Bytes(bytes.into())
    }
}

impl StoredValue {
    /// Decodes the value as an object of kind `K`.
    ///
    /// # Errors
    /// If the value is no such object.
    pub fn decode<K: Kind>(&self) -> Result<K, serde_json::Error> {
        match self {
            StoredValue::Bytes(bytes) => K::decode(bytes),
            StoredValue::Json(value) => K::from_json(value),
        }
    }

    /// Returns the value as JSON.
    ///
    /// # Errors
    /// If the stored bytes are not JSON.
    pub fn json(&self) -> Result<Cow<'_, Value>, serde_json::Error> {
        match self {
            StoredValue::Bytes(bytes) => serde_json::from_slice(bytes).map(Cow::Owned),
            StoredValue::Json(value) => Ok(Cow::Borrowed(value)),
        }
    }

    /// Returns the stored bytes, or the text of the JSON.
    pub fn bytes(&self) -> Cow<'_, [u8]> {
        match self {
            StoredValue::Bytes(bytes) => Cow::Borrowed(bytes),
            StoredValue::Json(value) => Cow::Owned(value.to_string().into_bytes()),
        }
    }
}

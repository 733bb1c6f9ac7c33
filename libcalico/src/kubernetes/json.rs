//! JSON objects taken apart.

use serde_json::{Map, Value};

pub(super) type Fields = Map<String, Value>;

/// Removes the object under `key`. Anything else there is removed too, and nothing is returned for it.
pub(super) fn take_object(fields: &mut Fields, key: &str) -> Fields {
    match fields.remove(key) {
        Some(Value::Object(found)) => found,
        _ => Fields::new(),
    }
}

/// Puts `object` under `key`, unless it is empty.
pub(super) fn put_object(fields: &mut Fields, key: &str, object: Fields) {
    if !object.is_empty() {
        fields.insert(key.into(), Value::Object(object));
    }
}

/// Removes the text under `key`; anything else stays.
pub(super) fn take_text(fields: &mut Fields, key: &str) -> Option<String> {
    match fields.remove(key)? {
        Value::String(text) => Some(text),
        other => {
            fields.insert(key.into(), other);
            None
        }
    }
}

/// The text under `key`.
pub(super) fn text<'f>(fields: &'f Fields, key: &str) -> Option<&'f str> {
    fields.get(key)?.as_str()
}

/// A value's JSON. Its `to_string` goes through Rust's formatter piece by piece, which was a twentieth of an ADD's work.
pub fn json_bytes(value: &Value) -> Vec<u8> {
    // Memory takes everything: there is no other way for this to fail.
    serde_json::to_vec(value).unwrap_or_else(|_| value.to_string().into_bytes())
}

/// What a JSON field must at least be: absent and null become `default` (DS-55).
pub(super) fn require(fields: &mut Fields, key: &str, default: impl Into<Value>) {
    let value = fields.entry(key).or_insert(Value::Null);
    if value.is_null() {
        *value = default.into();
    }
}

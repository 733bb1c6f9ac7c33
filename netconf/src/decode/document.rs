//! Parses a JSON document: UTF-8, of limited size and depth, without duplicate keys.

use std::cell::RefCell;
use std::fmt;

use serde::de::{DeserializeSeed, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use crate::{CniError, Code};

/// Maximum size of a document: 1 MiB.
pub const MAX_INPUT: usize = 1 << 20;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Malformed {
    /// The text is upstream's.
    #[error("unexpected end of JSON input")]
    Truncated,
    #[error("the input has more than {MAX_INPUT} bytes")]
    TooLong,
    #[error("invalid UTF-8 at byte {0}")]
    NotUtf8(usize),
    #[error("duplicate key {0}")]
    DuplicateKey(String),
    #[error("{0}")]
    Syntax(String),
}

/// The reason why a value in a JSON document cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{path}: {problem}")]
pub struct DecodeError {
    /// The JSON path of the value, such as `$.ipam.ipv4_pools[1]`.
    pub(crate) path: String,
    /// Code 6 for a value of the wrong JSON type or a duplicate key, and code 7 for a value that is
    /// missing or not allowed.
    pub(super) code: Code,
    pub(super) problem: String,
}

impl DecodeError {
    /// `context` precedes the message.
    pub(crate) fn with_context(&self, context: &str) -> CniError {
        CniError::new(self.code, format!("{context}: {self}"))
    }
}

#[derive(Clone, Copy)]
pub(super) enum Path<'a> {
    /// The name of a document's root in errors.
    Root(&'a str),
    Key(&'a Path<'a>, &'a str),
    Index(&'a Path<'a>, usize),
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Path::Root(name) => f.write_str(name),
            // A key that is not a plain word is quoted: `["cni.dev/valid-attachments"]`.
            Path::Key(parent, key) if is_word(key) => write!(f, "{parent}.{key}"),
            Path::Key(parent, key) => write!(f, "{parent}[{key:?}]"),
            Path::Index(parent, index) => write!(f, "{parent}[{index}]"),
        }
    }
}

fn is_word(key: &str) -> bool {
    !key.is_empty() && key.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

pub(crate) fn parse(bytes: &[u8]) -> Result<Value, Malformed> {
    if bytes.len() > MAX_INPUT {
        return Err(Malformed::TooLong);
    }
    let text = str::from_utf8(bytes).map_err(|error| Malformed::NotUtf8(error.valid_up_to()))?;
    let duplicate = RefCell::new(None);
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let value = Strict {
        path: &Path::Root("$"),
        duplicate: &duplicate,
    }
    .deserialize(&mut deserializer)
    .and_then(|value| deserializer.end().map(|()| value));
    value.map_err(|error| match duplicate.into_inner() {
        Some(path) => Malformed::DuplicateKey(path),
        None if error.is_eof() => Malformed::Truncated,
        None => Malformed::Syntax(error.to_string()),
    })
}

/// serde_json's own deserializer of [`Value`] keeps the last of two equal keys silently.
struct Strict<'a> {
    path: &'a Path<'a>,
    /// Path of the first duplicate key. The path is stored here because serde errors carry only
    /// text.
    duplicate: &'a RefCell<Option<String>>,
}

impl<'de> DeserializeSeed<'de> for Strict<'_> {
    type Value = Value;

    fn deserialize<D: serde::Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Strict<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Number::from_f64(value).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_owned()))
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut array = Vec::new();
        loop {
            let path = Path::Index(self.path, array.len());
            match items.next_element_seed(Strict {
                path: &path,
                duplicate: self.duplicate,
            })? {
                Some(item) => array.push(item),
                None => return Ok(Value::Array(array)),
            }
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(key) = entries.next_key::<String>()? {
            let path = Path::Key(self.path, &key);
            if map.contains_key(&key) {
                self.duplicate.replace(Some(path.to_string()));
                return Err(A::Error::custom("duplicate key"));
            }
            let value = entries.next_value_seed(Strict {
                path: &path,
                duplicate: self.duplicate,
            })?;
            map.insert(key, value);
        }
        Ok(Value::Object(map))
    }
}

//! A position in a JSON document, and methods that read typed values from it.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::document::{DecodeError, Path};
use crate::Code;

pub(crate) trait FromNode: Sized {
    /// Not called for an absent key, nor for a key whose value is `null`. An item of an array or
    /// map may be `null`.
    fn from_node(node: &Node<'_>) -> Result<Self, DecodeError>;
}

pub(crate) trait FromObject: Sized {
    fn from_object(object: &Object<'_>) -> Result<Self, DecodeError>;
}

impl<T: FromObject> FromNode for T {
    fn from_node(node: &Node<'_>) -> Result<T, DecodeError> {
        T::from_object(&node.object()?)
    }
}

/// Implements [`FromObject`] for a struct. The key of a field is the text beside it, or else the
/// field's name. A missing key stands for the default of the field's type.
macro_rules! read_fields {
    ($type:ident { $($field:ident $(: $key:literal)?),+ $(,)? }) => {
        impl $crate::decode::FromObject for $type {
            fn from_object(
                object: &$crate::decode::Object<'_>,
            ) -> Result<$type, $crate::decode::DecodeError> {
                Ok($type {
                    $($field: object.read_or_default([$($key,)? stringify!($field)][0])?),+
                })
            }
        }
    };
}
pub(crate) use read_fields;

/// A value with its path from the root. The path is formatted only for errors.
pub(crate) struct Node<'a> {
    pub(crate) value: &'a Value,
    path: Path<'a>,
    is_secret: bool,
}

#[derive(Clone, Copy)]
pub(crate) struct Object<'a> {
    node: &'a Node<'a>,
    map: &'a Map<String, Value>,
}

impl<'a> Node<'a> {
    /// Creates the root of a document. Errors use `name` for it.
    pub(crate) fn root(name: &'a str, value: &'a Value) -> Node<'a> {
        Node {
            value,
            path: Path::Root(name),
            is_secret: false,
        }
    }

    /// Returns the same position, whose value errors do not show.
    pub(crate) fn secret(&'a self) -> Node<'a> {
        Node {
            value: self.value,
            path: self.path,
            is_secret: true,
        }
    }

    pub(crate) fn object(&'a self) -> Result<Object<'a>, DecodeError> {
        match self.value {
            Value::Object(map) => Ok(Object { node: self, map }),
            _ => Err(self.wrong_type("an object")),
        }
    }

    pub(crate) fn items<T>(
        &self,
        read: impl Fn(&Node<'_>) -> Result<T, DecodeError>,
    ) -> Result<Vec<T>, DecodeError> {
        let Value::Array(items) = self.value else {
            return Err(self.wrong_type("an array"));
        };
        let item = |(index, value)| Node {
            value,
            path: Path::Index(&self.path, index),
            is_secret: self.is_secret,
        };
        items
            .iter()
            .enumerate()
            .map(|item_at| read(&item(item_at)))
            .collect()
    }

    fn child(&'a self, key: &'a str, value: &'a Value) -> Node<'a> {
        Node {
            value,
            path: Path::Key(&self.path, key),
            is_secret: self.is_secret,
        }
    }

    /// Returns the error for a value of the wrong JSON type. `want` describes the allowed values.
    pub(crate) fn wrong_type(&self, want: &str) -> DecodeError {
        self.mismatch(Code::DECODE, want)
    }

    /// Returns the error for a value of the right JSON type that is not allowed. `want` describes
    /// the allowed values.
    pub(crate) fn bad_value(&self, want: &str) -> DecodeError {
        self.mismatch(Code::INVALID_CONFIG, want)
    }

    fn mismatch(&self, code: Code, want: &str) -> DecodeError {
        let problem = format!("found {}, want {want}", self.describe());
        DecodeError {
            path: self.path.to_string(),
            code,
            problem,
        }
    }

    /// Describes the value for an error, without a secret text.
    fn describe(&self) -> String {
        const LONGEST: usize = 80;
        let kind = match self.value {
            Value::Null => return "null".to_owned(),
            Value::Bool(_) => "the boolean",
            Value::Number(_) => "the number",
            Value::String(_) => "the string",
            Value::Array(_) => return "an array".to_owned(),
            Value::Object(_) => return "an object".to_owned(),
        };
        if self.is_secret {
            return kind.replace("the", "a");
        }
        let text = self.value.to_string();
        if text.chars().count() <= LONGEST {
            return format!("{kind} {text}");
        }
        format!("{kind} {}…", text.chars().take(LONGEST).collect::<String>())
    }
}

impl<'a> Object<'a> {
    /// Returns the value of `key`, or `None` if the key is absent or `null`.
    pub(crate) fn read<T: FromNode>(&self, key: &str) -> Result<Option<T>, DecodeError> {
        self.read_with(key, T::from_node)
    }

    /// Returns the value of `key`, or the type's default if the key is absent or `null`.
    pub(crate) fn read_or_default<T: FromNode + Default>(
        &self,
        key: &str,
    ) -> Result<T, DecodeError> {
        Ok(self.read(key)?.unwrap_or_default())
    }

    /// Returns the string at `key`, or `None` if the key is absent or `null`, or the string is
    /// empty.
    pub(crate) fn read_nonempty(&self, key: &str) -> Result<Option<String>, DecodeError> {
        Ok(self.read(key)?.filter(|text: &String| !text.is_empty()))
    }

    /// Returns the value that `words` assigns to the string at `key`, or `None` if the key is
    /// absent or `null`, or the string is empty. Fails for any other string.
    pub(crate) fn read_word<T: Copy>(
        &self,
        key: &str,
        words: &[(&str, T)],
        ignores_case: bool,
    ) -> Result<Option<T>, DecodeError> {
        let word = |node: &Node<'_>| match node.value.as_str() {
            Some("") => Ok(None),
            _ => node.word(words, ignores_case).map(Some),
        };
        Ok(self.read_with(key, word)?.flatten())
    }

    /// Fails if the key is absent or `null`; `want` describes the allowed values for that error.
    pub(crate) fn require<T: FromNode>(&self, key: &str, want: &str) -> Result<T, DecodeError> {
        self.read(key)?.ok_or_else(|| self.missing(key, want))
    }

    /// Returns the value of `key` as `read` decodes it, or `None` if the key is absent or `null`.
    pub(crate) fn read_with<T>(
        &self,
        key: &str,
        read: impl FnOnce(&Node<'_>) -> Result<T, DecodeError>,
    ) -> Result<Option<T>, DecodeError> {
        match self.find(key)? {
            None | Some((_, Value::Null)) => Ok(None),
            Some((name, value)) => read(&self.node.child(name, value)).map(Some),
        }
    }

    /// Returns every key with its value, including `null` values.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (&'a str, Node<'a>)> + use<'a> {
        let node = self.node;
        self.map
            .iter()
            .map(move |(key, value)| (key.as_str(), node.child(key, value)))
    }

    /// Returns true if `key` is present and not `null`.
    pub(crate) fn has(&self, key: &str) -> Result<bool, DecodeError> {
        Ok(self.find(key)?.is_some_and(|(_, value)| !value.is_null()))
    }

    pub(crate) fn missing(&self, key: &str, want: &str) -> DecodeError {
        let problem = format!("missing, want {want}");
        DecodeError {
            path: self.path_of(key),
            code: Code::INVALID_CONFIG,
            problem,
        }
    }

    fn find(&self, key: &str) -> Result<Option<(&'a str, &'a Value)>, DecodeError> {
        let mut matching = self
            .map
            .iter()
            .filter(|(name, _)| name.eq_ignore_ascii_case(key));
        let Some((first, value)) = matching.next() else {
            return Ok(None);
        };
        match matching.next() {
            None => Ok(Some((first, value))),
            // Two keys that differ only in letter case mean the same setting.
            Some((second, _)) => {
                let problem = format!("duplicate of key {first:?}; remove one of them");
                Err(DecodeError {
                    path: self.path_of(second),
                    code: Code::DECODE,
                    problem,
                })
            }
        }
    }

    fn path_of(&self, key: &str) -> String {
        Path::Key(&self.node.path, key).to_string()
    }
}

impl<T: FromNode> FromNode for Vec<T> {
    fn from_node(node: &Node<'_>) -> Result<Vec<T>, DecodeError> {
        node.items(T::from_node)
    }
}

impl<T: FromNode> FromNode for BTreeMap<String, T> {
    fn from_node(node: &Node<'_>) -> Result<BTreeMap<String, T>, DecodeError> {
        node.object()?
            .entries()
            .map(|(key, value)| Ok((key.to_owned(), T::from_node(&value)?)))
            .collect()
    }
}

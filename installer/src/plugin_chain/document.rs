//! [`Verbatim`]: JSON as Go reads it, together with its original text. Pure.
//!
//! Runtimes and the programs that add plugins are written in Go. Go's `encoding/json` accepts more than a [`Value`] can
//! hold: integers of any length, `1e400`, nesting deeper than 128. So foreign entries are written back as their
//! original text, and the [`Value`] is used for comparisons only.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Deref;

use serde::de::DeserializeOwned;
use serde::{Serialize, Serializer};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

/// Length of an escape sequence such as `\ud800`, in bytes.
const ESCAPE: usize = 6;

/// Reasons why a text is no configuration. The text may contain a token, so the errors do not quote it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unreadable {
    /// The text is not JSON.
    #[error("it is not valid JSON (line {line}, column {column})")]
    Syntax {
        /// The line, from 1.
        line: usize,
        /// The column, from 1.
        column: usize,
    },
    /// The text is JSON, but not an object.
    #[error("it is not a JSON object")]
    NoObject,
}

/// A value and the text it was read from.
#[derive(Debug, Clone, Default)]
pub struct Verbatim<T> {
    value: T,
    /// `None` for a value that was not read from a text.
    text: Option<Box<RawValue>>,
}

impl<T> Deref for Verbatim<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> From<T> for Verbatim<T> {
    fn from(value: T) -> Verbatim<T> {
        Verbatim { value, text: None }
    }
}

/// Compares the values and ignores the texts.
impl<T: PartialEq> PartialEq for Verbatim<T> {
    fn eq(&self, other: &Verbatim<T>) -> bool {
        self.value == other.value
    }
}

impl<T: Serialize> Serialize for Verbatim<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match &self.text {
            Some(text) => text.serialize(serializer),
            None => self.value.serialize(serializer),
        }
    }
}

impl Verbatim<Value> {
    /// Reads a value. A value that does not fit into a [`Value`] becomes a string of its text.
    pub(super) fn read(text: Box<RawValue>) -> Verbatim<Value> {
        Verbatim { value: value(&text), text: Some(text) }
    }
}

impl Verbatim<Map<String, Value>> {
    /// Reads an object. Returns `None` for anything else.
    pub(super) fn read(text: Box<RawValue>) -> Option<Verbatim<Map<String, Value>>> {
        let value = parsed(&text).or_else(|| {
            let values: BTreeMap<String, Box<RawValue>> = parsed(&text)?;
            Some(values.into_iter().map(|(key, text)| (key, value(&text))).collect())
        })?;
        Some(Verbatim { value, text: Some(text) })
    }
}

fn value(text: &RawValue) -> Value {
    parsed(text).unwrap_or_else(|| Value::String(text.get().to_owned()))
}

fn parsed<T: DeserializeOwned>(text: &RawValue) -> Option<T> {
    serde_json::from_str(text.get()).ok()
}

/// Returns the values of an object. The last one wins if a key is repeated.
///
/// # Errors
/// Returns an error if the text is not a JSON object.
pub(super) fn values(text: &[u8]) -> Result<BTreeMap<String, Box<RawValue>>, Unreadable> {
    serde_json::from_str(&repaired(&String::from_utf8_lossy(text))).map_err(|error| {
        if error.is_data() {
            return Unreadable::NoObject;
        }
        Unreadable::Syntax { line: error.line(), column: error.column() }
    })
}

/// Returns the elements of an array, or none for any other value.
pub(super) fn elements(text: &RawValue) -> Vec<Box<RawValue>> {
    parsed(text).unwrap_or_default()
}

/// Replaces each unpaired surrogate escape by U+FFFD, as Go does.
fn repaired(text: &str) -> Cow<'_, str> {
    let (mut whole, mut rest) = (Cow::Borrowed(""), text);
    while let Some(at) = rest.find('\\') {
        let unit = |at: usize| u16::from_str_radix(rest.get(at..at + ESCAPE)?.strip_prefix("\\u")?, 16).ok();
        let (length, is_half) = match (unit(at), unit(at + ESCAPE)) {
            (Some(0xd800..=0xdbff), Some(0xdc00..=0xdfff)) => (2 * ESCAPE, false),
            (Some(0xd800..=0xdfff), _) => (ESCAPE, true),
            // The escaped character may itself be a backslash, or take more than one byte.
            _ => (1 + rest[at + 1..].chars().next().map_or(0, char::len_utf8), false),
        };
        let (read, following) = rest.split_at(at + length);
        whole += if is_half { &read[..at] } else { read };
        whole += if is_half { "\\ufffd" } else { "" };
        rest = following;
    }
    whole + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repair_replaces_halves_of_pairs_and_nothing_else() {
        for (text, expected) in [
            (r#"["\ud83d\ude00"]"#, r#"["\ud83d\ude00"]"#),
            (r#"["\ud83d\ud83d\ude00"]"#, r#"["\ufffd\ud83d\ude00"]"#),
            (r#"["\ud83dx", "\ude00\ud83d"]"#, r#"["\ufffdx", "\ufffd\ufffd"]"#),
            (r#"["\\ud83d", "\"\ud800"]"#, r#"["\\ud83d", "\"\ufffd"]"#),
            (r#"["\ü", "\ud8"#, r#"["\ü", "\ud8"#),
            ("\\", "\\"),
        ] {
            assert_eq!(repaired(text), expected, "{text}");
        }
    }

    #[test]
    fn values_of_what_is_no_object_say_where_it_ends() {
        let said = |text: &str| values(text.as_bytes()).unwrap_err().to_string();
        assert!(said("{\"a\": ").contains("line 1, column 6"), "{}", said("{\"a\": "));
        assert!(said("[]").contains("not a JSON object"));
        assert!(said("{} {}").contains("not valid JSON"));
    }

    #[test]
    fn read_of_what_no_value_holds_keeps_the_text_in_its_place() {
        let text: Box<RawValue> = serde_json::from_str(r#"{"type": "mesh", "n": 1e400}"#).unwrap();
        let read = Verbatim::<Map<String, Value>>::read(text).unwrap();
        assert_eq!((&read["type"], &read["n"]), (&Value::from("mesh"), &Value::from("1e400")));
        assert_eq!(serde_json::to_string(&read).unwrap(), r#"{"type": "mesh", "n": 1e400}"#);
    }
}

//! [`Entry`]: a plugin in a configuration, with its original text; and the equality of JSON values
//! for the programs that read them.
//!
//! Most runtimes and programs that add plugins are written in Go. Go's `encoding/json` accepts more
//! than a [`Value`] can hold: integers of any length, `1e400`, nesting deeper than 128. So foreign
//! entries are written back as their original text, and the [`Value`] is used for comparisons only.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Deref;

use libcalico::failure::Failure;
use serde::de::DeserializeOwned;
use serde::{Serialize, Serializer};
use serde_json::value::RawValue;
use serde_json::{Map, Number, Value};

use crate::layout::CALICO;
use crate::template::TOKEN_PLACEHOLDER;

/// Length of an escape sequence such as `\ud800`, in bytes.
const ESCAPE: usize = 6;

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
        Verbatim {
            value: value(&text),
            text: Some(text),
        }
    }
}

impl Verbatim<Map<String, Value>> {
    /// Reads an object. Returns `None` for anything else.
    pub(super) fn read(text: Box<RawValue>) -> Option<Verbatim<Map<String, Value>>> {
        let value = parsed(&text).or_else(|| {
            let values: BTreeMap<String, Box<RawValue>> = parsed(&text)?;
            Some(
                values
                    .into_iter()
                    .map(|(key, text)| (key, value(&text)))
                    .collect(),
            )
        })?;
        Some(Verbatim {
            value,
            text: Some(text),
        })
    }
}

fn value(text: &RawValue) -> Value {
    parsed(text).unwrap_or_else(|| Value::String(text.get().to_owned()))
}

fn parsed<T: DeserializeOwned>(text: &RawValue) -> Option<T> {
    serde_json::from_str(text.get()).ok()
}

/// Returns the values of a JSON object by key. If a key is repeated, its last value is returned.
/// The text may contain a token, so the error does not quote it.
pub(super) fn values(text: &[u8]) -> Result<BTreeMap<String, Box<RawValue>>, Failure> {
    serde_json::from_str(&replace_unpaired_surrogates(&String::from_utf8_lossy(text))).map_err(
        |error| {
            let (line, column) = (error.line(), error.column());
            if error.is_data() {
                Failure::new("not a JSON object")
            } else {
                Failure::new(format_args!(
                    "not valid JSON (line {line}, column {column})"
                ))
            }
        },
    )
}

pub(super) fn elements(text: &RawValue) -> Vec<Box<RawValue>> {
    parsed(text).unwrap_or_default()
}

/// Replaces each unpaired surrogate escape by U+FFFD, as Go does.
fn replace_unpaired_surrogates(text: &str) -> Cow<'_, str> {
    let (mut repaired, mut rest) = (Cow::Borrowed(""), text);
    while let Some(at) = rest.find('\\') {
        let unit = |at: usize| {
            u16::from_str_radix(rest.get(at..at + ESCAPE)?.strip_prefix("\\u")?, 16).ok()
        };
        let (length, is_half) = match (unit(at), unit(at + ESCAPE)) {
            (Some(0xd800..=0xdbff), Some(0xdc00..=0xdfff)) => (2 * ESCAPE, false),
            (Some(0xd800..=0xdfff), _) => (ESCAPE, true),
            // The escaped character may itself be a backslash, or take more than one byte.
            _ => (
                1 + rest[at + 1..].chars().next().map_or(0, char::len_utf8),
                false,
            ),
        };
        let (read, following) = rest.split_at(at + length);
        repaired += if is_half { &read[..at] } else { read };
        repaired += if is_half { "\\ufffd" } else { "" };
        rest = following;
    }
    repaired + rest
}

/// A plugin in a list.
pub type Entry = Verbatim<Map<String, Value>>;

/// The relation of an entry to a configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryRelation {
    /// The configuration contains the same entry.
    Same,
    /// The configuration contains another entry of this type, which may occur only once.
    Other,
    /// The entry can be added.
    More,
}

/// Returns the type of a plugin. Runtimes match the key without regard to case.
pub fn kind(entry: &Entry) -> &str {
    let other_spelling = || {
        entry
            .iter()
            .find(|(key, _)| key.eq_ignore_ascii_case("type"))
            .map(|(_, kind)| kind)
    };
    entry
        .get("type")
        .or_else(other_spelling)
        .and_then(Value::as_str)
        .unwrap_or_default()
}

pub(super) fn is_calico(entry: &Entry) -> bool {
    kind(entry) == CALICO
}

pub(super) fn is_same(one: &Entry, other: &Entry) -> bool {
    form(one) == form(other)
}

/// Returns a form of an entry that is equal for entries that differ only in formatting.
pub(super) fn form(entry: &Entry) -> Value {
    canonical(&Value::Object((**entry).clone()))
}

/// Returns true if this entry is the `portmap` or `bandwidth` entry that upstream's templates or
/// ours generate.
pub(super) fn is_template_entry(entry: &Entry) -> bool {
    let is = |text: &str| {
        serde_json::from_str::<Value>(text).is_ok_and(|ours| ours.as_object() == Some(&**entry))
    };
    is(r#"{"type": "portmap", "snat": true, "capabilities": {"portMappings": true}}"#)
        || is(r#"{"type": "bandwidth", "capabilities": {"bandwidth": true}}"#)
}

/// Above this number, not every integer has its own floating-point representation.
const MAX_EXACT_INTEGER: f64 = 9_007_199_254_740_992.0;

/// Returns one form for spellings such as `1.0` and `1`. Go writes `1.0` as `1`.
pub(super) fn canonical(value: &Value) -> Value {
    match value {
        Value::Number(number) => Value::Number(without_fraction(number)),
        Value::Array(values) => values.iter().map(canonical).collect(),
        Value::Object(object) => {
            let entry = |(key, value): (&String, &Value)| (key.clone(), canonical(value));
            Value::Object(object.iter().map(entry).collect::<Map<_, _>>())
        }
        other => other.clone(),
    }
}

fn without_fraction(number: &Number) -> Number {
    match number.as_f64() {
        Some(float)
            if number.is_f64() && float.fract() == 0.0 && float.abs() < MAX_EXACT_INTEGER =>
        {
            Number::from(float as i64)
        }
        _ => number.clone(),
    }
}

/// Returns true if a value matches a pattern, in which the token's placeholder matches any token.
pub(super) fn value_matches(pattern: &Value, found: &Value) -> bool {
    match (pattern, found) {
        (Value::String(pattern), Value::String(found)) => text_matches(pattern, found),
        (Value::Array(pattern), Value::Array(found)) => {
            pattern.len() == found.len()
                && pattern
                    .iter()
                    .zip(found)
                    .all(|(one, other)| value_matches(one, other))
        }
        (Value::Object(pattern), Value::Object(found)) => entry_matches(pattern, found),
        (pattern, found) => canonical(pattern) == canonical(found),
    }
}

/// Returns true if an object matches a pattern: both have the same keys, with values that match.
pub(super) fn entry_matches(pattern: &Map<String, Value>, found: &Map<String, Value>) -> bool {
    pattern.len() == found.len()
        && pattern.iter().all(|(key, value)| {
            found
                .get(key)
                .is_some_and(|found| value_matches(value, found))
        })
}

fn text_matches(pattern: &str, found: &str) -> bool {
    match pattern.split_once(TOKEN_PLACEHOLDER) {
        None => pattern == found,
        Some((before, after)) => {
            let rest = found.strip_prefix(before);
            // A token is never empty. The placeholder may occur several times.
            let after = after.rsplit(TOKEN_PLACEHOLDER).next().unwrap_or_default();
            rest.and_then(|rest| rest.strip_suffix(after))
                .is_some_and(|token| !token.is_empty())
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_lone_surrogates_are_replaced() {
        for (text, expected) in [
            (r#"["\ud83d\ude00"]"#, r#"["\ud83d\ude00"]"#),
            (r#"["\ud83d\ud83d\ude00"]"#, r#"["\ufffd\ud83d\ude00"]"#),
            (
                r#"["\ud83dx", "\ude00\ud83d"]"#,
                r#"["\ufffdx", "\ufffd\ufffd"]"#,
            ),
            (r#"["\\ud83d", "\"\ud800"]"#, r#"["\\ud83d", "\"\ufffd"]"#),
            (r#"["\ü", "\ud8"#, r#"["\ü", "\ud8"#),
            ("\\", "\\"),
        ] {
            assert_eq!(replace_unpaired_surrogates(text), expected, "{text}");
        }
    }

    #[test]
    fn invalid_json_is_rejected_with_the_position() {
        let said = |text: &str| values(text.as_bytes()).unwrap_err().to_string();
        assert!(
            said("{\"a\": ").contains("line 1, column 6"),
            "{}",
            said("{\"a\": ")
        );
        assert!(said("[]").contains("not a JSON object"));
        assert!(said("{} {}").contains("not valid JSON"));
    }

    #[test]
    fn entry_without_a_json_value_retains_its_text() {
        let text: Box<RawValue> = serde_json::from_str(r#"{"type": "mesh", "n": 1e400}"#).unwrap();
        let read = Verbatim::<Map<String, Value>>::read(text).unwrap();
        assert_eq!(
            (&read["type"], &read["n"]),
            (&Value::from("mesh"), &Value::from("1e400"))
        );
        assert_eq!(
            serde_json::to_string(&read).unwrap(),
            r#"{"type": "mesh", "n": 1e400}"#
        );
    }

    #[test]
    fn equal_json_numbers_match_in_any_notation() {
        let read = |text: &str| serde_json::from_str::<Value>(text).unwrap();
        for (one, other, is_same) in [
            (
                r#"{"mtu": 1500, "a": [1.0]}"#,
                r#"{"a": [1], "mtu": 1.5e3}"#,
                true,
            ),
            (r#""\u003c""#, r#""<""#, true),
            ("0.5", "0", false),
            ("9007199254740993", "9007199254740992", false),
            ("[1, 2]", "[2, 1]", false),
            (r#"{"a": null}"#, "{}", false),
        ] {
            assert_eq!(
                canonical(&read(one)) == canonical(&read(other)),
                is_same,
                "{one} {other}"
            );
            assert_eq!(
                value_matches(&read(one), &read(other)),
                is_same,
                "{one} {other}"
            );
        }
    }

    #[test]
    fn any_token_matches_the_token_placeholder() {
        for (pattern, found, expected) in [
            ("__SERVICEACCOUNT_TOKEN__", "abc", true),
            ("Bearer __SERVICEACCOUNT_TOKEN__!", "Bearer abc!", true),
            ("Bearer __SERVICEACCOUNT_TOKEN__!", "Bearer abc", false),
            ("Bearer __SERVICEACCOUNT_TOKEN__", "bearer abc", false),
            ("__SERVICEACCOUNT_TOKEN__", "", false),
            ("a__SERVICEACCOUNT_TOKEN__a", "a", false),
            ("x", "y", false),
        ] {
            assert_eq!(
                value_matches(
                    &json!({ "policy": [pattern] }),
                    &json!({ "policy": [found] })
                ),
                expected,
                "{pattern} {found}"
            );
        }
    }
}

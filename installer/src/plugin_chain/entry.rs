//! [`Entry`]: a plugin in a configuration, and the equality of JSON values as the programs that read them see it.

use serde_json::{Map, Number, Value};

use super::document::Verbatim;
use crate::layout::CALICO;
use crate::template::TOKEN;

/// A plugin in a list.
pub type Entry = Verbatim<Map<String, Value>>;

/// The relation of an entry to a configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlaceFor {
    /// The configuration contains the same entry.
    Same,
    /// The configuration contains another entry of this type, added by its owner.
    Other,
    /// The entry can be added.
    More,
}

/// Returns the type of a plugin. Runtimes match the key without regard to case.
pub fn kind(entry: &Entry) -> &str {
    let found = entry
        .get("type")
        .or_else(|| entry.iter().find(|(key, _)| key.eq_ignore_ascii_case("type")).map(|(_, kind)| kind));
    found.and_then(Value::as_str).unwrap_or_default()
}

pub(super) fn is_calico(entry: &Entry) -> bool {
    kind(entry) == CALICO
}

pub(super) fn is_same(one: &Entry, other: &Entry) -> bool {
    form(one) == form(other)
}

/// Returns a form of an entry that does not depend on formatting.
pub(super) fn form(entry: &Entry) -> Value {
    canonical(&Value::Object((**entry).clone()))
}

/// Returns true if upstream's templates or ours generate this entry.
pub(super) fn is_of_a_template(entry: &Entry) -> bool {
    let is = |text: &str| serde_json::from_str::<Value>(text).is_ok_and(|ours| ours.as_object() == Some(&**entry));
    is(r#"{"type": "portmap", "snat": true, "capabilities": {"portMappings": true}}"#)
        || is(r#"{"type": "bandwidth", "capabilities": {"bandwidth": true}}"#)
}

/// Above this number, not every integer has its own floating-point representation.
const EXACT: f64 = 9_007_199_254_740_992.0;

/// Returns one form for all spellings of a value. Go writes `1.0` as `1`.
pub(super) fn canonical(value: &Value) -> Value {
    match value {
        Value::Number(number) => Value::Number(whole(number)),
        Value::Array(values) => values.iter().map(canonical).collect(),
        Value::Object(object) => {
            let entry = |(key, value): (&String, &Value)| (key.clone(), canonical(value));
            Value::Object(object.iter().map(entry).collect::<Map<_, _>>())
        }
        other => other.clone(),
    }
}

fn whole(number: &Number) -> Number {
    match number.as_f64() {
        Some(float) if number.is_f64() && float.fract() == 0.0 && float.abs() < EXACT => Number::from(float as i64),
        _ => number.clone(),
    }
}

/// Returns true if a value matches a pattern, in which the token's placeholder matches any token.
pub(super) fn fits(pattern: &Value, found: &Value) -> bool {
    match (pattern, found) {
        (Value::String(pattern), Value::String(found)) => text_fits(pattern, found),
        (Value::Array(pattern), Value::Array(found)) => {
            pattern.len() == found.len() && pattern.iter().zip(found).all(|(pattern, found)| fits(pattern, found))
        }
        (Value::Object(pattern), Value::Object(found)) => fits_entry(pattern, found),
        (pattern, found) => canonical(pattern) == canonical(found),
    }
}

/// Returns true if an object matches a pattern: each key of the one is in the other, with a value that matches.
pub(super) fn fits_entry(pattern: &Map<String, Value>, found: &Map<String, Value>) -> bool {
    pattern.len() == found.len()
        && pattern.iter().all(|(key, value)| found.get(key).is_some_and(|found| fits(value, found)))
}

fn text_fits(pattern: &str, found: &str) -> bool {
    match pattern.split_once(TOKEN) {
        None => pattern == found,
        Some((before, after)) => {
            let rest = found.strip_prefix(before);
            // A token is never empty. If the placeholder occurs twice, the text between both may be anything.
            let after = after.rsplit(TOKEN).next().unwrap_or_default();
            rest.and_then(|rest| rest.strip_suffix(after)).is_some_and(|token| !token.is_empty())
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn numbers_are_the_same_however_they_are_written() {
        let read = |text: &str| serde_json::from_str::<Value>(text).unwrap();
        for (one, other, is_same) in [
            (r#"{"mtu": 1500, "a": [1.0]}"#, r#"{"a": [1], "mtu": 1.5e3}"#, true),
            (r#""\u003c""#, r#""<""#, true),
            ("0.5", "0", false),
            ("9007199254740993", "9007199254740992", false),
            ("[1, 2]", "[2, 1]", false),
            (r#"{"a": null}"#, "{}", false),
        ] {
            assert_eq!(canonical(&read(one)) == canonical(&read(other)), is_same, "{one} {other}");
            assert_eq!(fits(&read(one), &read(other)), is_same, "{one} {other}");
        }
    }

    #[test]
    fn any_token_is_in_the_place_of_the_token() {
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
                fits(&json!({ "policy": [pattern] }), &json!({ "policy": [found] })),
                expected,
                "{pattern} {found}"
            );
        }
    }
}

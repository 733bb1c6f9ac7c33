//! Writes JSON as Go's `encoding/json` does, because callers of upstream expect that form on stdout.

use serde::Serialize;
use serde_json::ser::{PrettyFormatter, Serializer};

/// Returns `value` with four spaces of indentation, no trailing newline, and `<`, `>`, `&`, U+2028 and U+2029 escaped
/// (CNI-37).
pub(crate) fn indented<T: Serialize>(value: &T) -> String {
    let mut bytes = Vec::new();
    let mut serializer = Serializer::with_formatter(&mut bytes, PrettyFormatter::with_indent(b"    "));
    value.serialize(&mut serializer).expect("maps with string keys into memory cannot fail");
    escaped(&String::from_utf8_lossy(&bytes))
}

/// Escapes the whole text at once: outside of strings, JSON has none of these characters.
fn escaped(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    for c in json.chars() {
        match c {
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => out.push_str(&format!("\\u{:04x}", c as u32)),
            _ => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn four_spaces_and_no_newline() {
        let text = indented(&json!({ "a": [1, { "b": [] }], "c": {} }));
        assert_eq!(
            text,
            "{\n    \"a\": [\n        1,\n        {\n            \"b\": []\n        }\n    ],\n    \"c\": {}\n}"
        );
    }

    #[test]
    fn html_characters_are_escaped() {
        assert_eq!(indented(&"<&>\u{2028}\u{2029}é\n"), r#""\u003c\u0026\u003e\u2028\u2029é\n""#);
    }
}

//! Escapes text from outside the program before it gets into a log line, an Event or a terminal. A
//! control character in such text could start a new line, hide earlier text, or send commands to
//! the terminal.
//!
//! Also writes JSON as Go's `encoding/json` does.

use std::borrow::Cow;

use serde::Serialize;
use serde_json::ser::{PrettyFormatter, Serializer};

/// Returns `text` as one line, in which each control character, including line breaks and tabs, is
/// a JSON escape.
pub fn line(text: &str) -> Cow<'_, str> {
    escape(text, is_control)
}

/// Returns `text` with its line breaks and tabs kept and every other control character escaped.
pub fn lines(text: &str) -> Cow<'_, str> {
    escape(text, |c| is_control(c) && !matches!(c, '\n' | '\t'))
}

fn escape(text: &str, is_escaped: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.contains(&is_escaped) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        match c {
            c if !is_escaped(c) => out.push(c),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c => out.push_str(&format!("\\u{:04x}", u32::from(c))),
        }
    }
    Cow::Owned(out)
}

/// Returns true if `c` is a control character, a line separator, or a mark that changes the text
/// direction.
fn is_control(c: char) -> bool {
    let is_bidi = matches!(
        c, '\u{061c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}',
    );
    c.is_control() || is_bidi || matches!(c, '\u{2028}' | '\u{2029}')
}

/// Returns `value` as JSON with four spaces of indentation and Go's escapes (CNI-37).
pub(crate) fn indented_json<T: Serialize>(value: &T) -> String {
    let mut bytes = Vec::new();
    let mut serializer =
        Serializer::with_formatter(&mut bytes, PrettyFormatter::with_indent(b"    "));
    value
        .serialize(&mut serializer)
        .expect("maps with string keys into memory cannot fail");
    // JSON has these characters only in strings.
    let is_escaped = |c| matches!(c, '<' | '>' | '&' | '\u{2028}' | '\u{2029}');
    escape(&String::from_utf8_lossy(&bytes), is_escaped).into_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn control_characters_are_escaped_as_in_json() {
        for code in (0..=0x2100).filter_map(char::from_u32) {
            let text = format!("a{code}b");
            let shown = line(&text);
            assert!(!shown.contains(is_control), "{code:?}");
            if is_control(code) {
                let json = format!("\"{shown}\"");
                assert_eq!(serde_json::from_str::<String>(&json).unwrap(), text);
            } else {
                assert_eq!(shown, text);
            }
        }
    }

    #[test]
    fn printable_lines_preserve_line_breaks_and_tabs() {
        assert_eq!(
            lines("a\n\tb\x1b[2K\r\u{9b}c\u{202e}"),
            "a\n\tb\\u001b[2K\\r\\u009bc\\u202e"
        );
    }

    #[test]
    fn printable_text_is_borrowed() {
        assert!(matches!(line("zwölf \"b\" \\n"), Cow::Borrowed(_)));
    }

    #[test]
    fn indented_json_has_four_spaces_and_no_final_newline() {
        let text = indented_json(&json!({ "a": [1, { "b": [] }], "c": {} }));
        assert_eq!(
            text,
            "{\n    \"a\": [\n        1,\n        {\n            \"b\": []\n        }\n    ],\n    \
             \"c\": {}\n}"
        );
    }

    #[test]
    fn html_characters_are_escaped_in_json() {
        assert_eq!(
            indented_json(&"<&>\u{2028}\u{2029}é\n"),
            r#""\u003c\u0026\u003e\u2028\u2029é\n""#
        );
    }
}

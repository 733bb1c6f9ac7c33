//! [`documents`]: the YAML parser of all programs, with a limit of depth. The parser's time grows
//! with the square of the depth of flow collections, before its own limit of depth applies.

/// The maximum number of brackets that may be open at once if no quote and no comment counts as
/// one. [`find_excess`] can mistake a quote in a text over several lines for the beginning of a
/// quoted text, and so ignore the brackets behind it. The parser reads this depth in a fraction of
/// a second.
const MAX_OPEN: usize = 4000;

/// The maximum depth of nested flow collections (`[…]`, `{…}`). It is also the parser's own limit.
const MAX_DEPTH: usize = 128;

/// Flow collections that are nested too deep.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: the YAML is nested deeper than {MAX_DEPTH} levels; write fewer levels")]
pub struct TooDeep {
    /// The line of the first collection that is too deep, from 1.
    pub line: usize,
}

/// Returns the documents of a text.
///
/// # Errors
/// Returns an error if flow collections are nested too deep.
pub fn documents(text: &str) -> Result<serde_norway::Deserializer<'_>, TooDeep> {
    match find_excess(text.as_bytes()).or_else(|| find_unclosed(text.as_bytes())) {
        None => Ok(serde_norway::Deserializer::from_str(text)),
        Some(at) => Err(TooDeep {
            line: 1 + text.as_bytes()[..at]
                .iter()
                .filter(|byte| **byte == b'\n')
                .count(),
        }),
    }
}

/// Returns the position of the first collection that is too deep. Ignores brackets in quoted texts,
/// in comments, and in plain texts outside of a collection.
fn find_excess(text: &[u8]) -> Option<usize> {
    let (mut depth, mut at) = (0_usize, 0);
    // The last byte that is not blank, by which the beginning of a value is recognized.
    let mut previous = b'\n';
    while let Some(&byte) = text.get(at) {
        let is_separated = at == 0 || matches!(text[at - 1], b' ' | b'\t' | b'\r' | b'\n');
        let begins_value = matches!(previous, b'\n' | b':' | b'-' | b'?') && is_separated
            || depth > 0 && matches!(previous, b'\n' | b':' | b',' | b'[' | b'{');
        match byte {
            b'#' if is_separated => at = end_of_line(text, at) - 1,
            b'"' | b'\'' if begins_value => {
                at = end_of_quoted(text, at);
                previous = byte;
            }
            // A tag or an anchor, which precedes the value.
            b'!' | b'&' if begins_value => at = end_of_property(text, at) - 1,
            b'[' | b'{' if begins_value || depth > 0 => {
                depth += 1;
                if depth > MAX_DEPTH {
                    return Some(at);
                }
                previous = byte;
            }
            b']' | b'}' => {
                depth = depth.saturating_sub(1);
                previous = byte;
            }
            b'-' if previous == b'\n'
                && text[at..].starts_with(b"---")
                && (at == 0 || text[at - 1] == b'\n') =>
            {
                depth = 0;
                previous = byte;
            }
            b' ' | b'\t' | b'\r' => {}
            _ => previous = byte,
        }
        at += 1;
    }
    None
}

/// Returns the position of the first bracket that is too many, whatever the context of brackets.
fn find_unclosed(text: &[u8]) -> Option<usize> {
    let mut open = 0_usize;
    text.iter().position(|byte| {
        match byte {
            b'[' | b'{' => open += 1,
            b']' | b'}' => open = open.saturating_sub(1),
            _ => {}
        }
        open > MAX_OPEN
    })
}

fn end_of_line(text: &[u8], from: usize) -> usize {
    text[from..]
        .iter()
        .position(|byte| *byte == b'\n')
        .map_or(text.len(), |length| from + length)
}

/// Returns the position after the tag or the anchor at `from`.
fn end_of_property(text: &[u8], from: usize) -> usize {
    let is_end =
        |byte: &u8| byte.is_ascii_whitespace() || matches!(byte, b',' | b'[' | b']' | b'{' | b'}');
    text[from..]
        .iter()
        .position(is_end)
        .map_or(text.len(), |length| from + length)
}

/// Returns the position of the quote that ends the text at `from`, or the end of all.
fn end_of_quoted(text: &[u8], from: usize) -> usize {
    let quote = text[from];
    let mut at = from + 1;
    while let Some(&byte) = text.get(at) {
        match byte {
            b'\\' if quote == b'"' => at += 1,
            b'\'' if quote == b'\'' && text.get(at + 1) == Some(&quote) => at += 1,
            _ if byte == quote => return at,
            _ => {}
        }
        at += 1;
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;
    use serde_json::Value;

    use super::*;

    fn parse(text: &str) -> Result<Vec<Value>, String> {
        let documents = documents(text).map_err(|error| error.to_string())?;
        documents
            .map(|document| Value::deserialize(document).map_err(|error| error.to_string()))
            .collect()
    }

    #[test]
    fn nesting_is_refused_before_the_parser_reads_the_text() {
        for open in [
            "[",
            "{",
            "{a: ",
            "{\"}\": ",
            "[!t ",
            "[&a ",
            "[ # ]\n",
            "[']', ",
            "[\"\\\"]\", ",
        ] {
            let error = documents(&format!("users:\n- {}", open.repeat(100_000)))
                .err()
                .unwrap();
            assert!(error.line >= 2, "{open}: {error}");
        }
        let nested = |depth: usize| format!("a: {}1{}", "[".repeat(depth), "]".repeat(depth));
        assert!(parse(&nested(100)).is_ok());
        let error = parse(&nested(MAX_DEPTH + 1)).unwrap_err();
        assert_eq!(
            error,
            "line 1: the YAML is nested deeper than 128 levels; write fewer levels"
        );
    }

    #[test]
    fn nesting_behind_a_quote_that_begins_no_text_is_refused() {
        for before in [
            "a: |\n  'x\nb: ",
            "a: |\n  \"x\nb: ",
            "a: foo\n  'bar\nb: ",
            "a: b\n  --- 'x\nc: ",
        ] {
            for open in ["[", "{a: "] {
                let error = documents(&format!("{before}{}", open.repeat(100_000)))
                    .err()
                    .unwrap();
                assert_eq!(error.line, 3, "{before}");
            }
        }
    }

    #[test]
    fn brackets_that_nest_no_collections_are_accepted() {
        let many = "{[".repeat(200);
        for text in [
            format!("a: \"{many}\"\n"),
            format!("a: '{many}it''s {many}'\n"),
            format!("a: 1 # {many}\n"),
            format!("# {many}\na: 1\n"),
            format!("a: x{many}\n"),
            format!("- it's {many}\n"),
            format!("{{\"a\":\"{many}\"}}\n"),
            "- [{a: 1}, [b]]\n".repeat(500),
            "---\na: [1]\n".repeat(500),
        ] {
            let parsed = parse(&text);
            assert!(parsed.is_ok(), "{text}: {parsed:?}");
        }
    }
}

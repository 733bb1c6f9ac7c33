//! Writes JSON values as YAML in blocks.
//!
//! A text that any version of YAML could read as something else, such as `on` or `1_000`, is
//! quoted. So is each text with a line break: no line of the output is the separator of the file's
//! parts.

use std::fmt::{self, Write};

use serde_json::{Map, Value};

/// Texts that YAML 1.1 reads as null or Booleans, in lower case.
const RESERVED: [&str; 9] = ["null", "true", "false", "yes", "no", "on", "off", "y", "n"];

/// Writes the items of a list, each of which begins with `- `.
pub(super) fn write_items(out: &mut impl Write, items: &[Value], indent: usize) -> fmt::Result {
    for item in items {
        write!(out, "{:indent$}", "")?;
        write_item(out, item, indent)?;
    }
    Ok(())
}

fn write_item(out: &mut impl Write, item: &Value, indent: usize) -> fmt::Result {
    out.write_str("- ")?;
    match item {
        Value::Object(fields) if !fields.is_empty() => write_fields(out, fields, indent + 2, true),
        Value::Array(items) => match items.split_first() {
            Some((first, rest)) => {
                write_item(out, first, indent + 2)?;
                write_items(out, rest, indent + 2)
            }
            None => out.write_str("[]\n"),
        },
        scalar => write_scalar(out, scalar),
    }
}

/// `is_inline` is true if the first field continues a line.
fn write_fields(
    out: &mut impl Write,
    fields: &Map<String, Value>,
    indent: usize,
    mut is_inline: bool,
) -> fmt::Result {
    for (key, value) in fields {
        if !std::mem::take(&mut is_inline) {
            write!(out, "{:indent$}", "")?;
        }
        write_text(out, key)?;
        match value {
            Value::Object(inner) if !inner.is_empty() => {
                out.write_str(":\n")?;
                write_fields(out, inner, indent + 2, false)?;
            }
            Value::Array(items) if !items.is_empty() => {
                out.write_str(":\n")?;
                write_items(out, items, indent)?;
            }
            scalar => {
                out.write_str(": ")?;
                write_scalar(out, scalar)?;
            }
        }
    }
    Ok(())
}

/// Writes a value without parts, and a line break.
fn write_scalar(out: &mut impl Write, value: &Value) -> fmt::Result {
    match value {
        Value::String(text) => write_text(out, text)?,
        // Null, Booleans, numbers, `{}` and `[]` are the same in JSON and YAML.
        other => write!(out, "{other}")?,
    }
    out.write_char('\n')
}

fn write_text(out: &mut impl Write, text: &str) -> fmt::Result {
    if is_plain(text) {
        return out.write_str(text);
    }
    out.write_char('"')?;
    for c in text.chars() {
        match c {
            '"' | '\\' => write!(out, "\\{c}")?,
            '\n' => out.write_str("\\n")?,
            ' '..='~' => out.write_char(c)?,
            '\0'..='\u{ffff}' => write!(out, "\\u{:04x}", u32::from(c))?,
            _ => write!(out, "\\U{:08x}", u32::from(c))?,
        }
    }
    out.write_char('"')
}

/// Returns true if a text needs no quotes.
fn is_plain(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | '/'))
        && !RESERVED
            .iter()
            .any(|reserved| text.eq_ignore_ascii_case(reserved))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn written(items: &[Value]) -> String {
        let mut out = String::new();
        write_items(&mut out, items, 0).unwrap();
        out
    }

    #[test]
    fn values_are_written_in_blocks() {
        let value = json!({
            "empty": [{}, []], "kind": "IPPool",
            "list": [[1, "a b"], {"a": null, "b": {"c": true}}],
            "spec": {"cidr": "10.0.0.0/24", "order": 10.5, "status": {}},
        });
        let expected = "\
- empty:
  - {}
  - []
  kind: IPPool
  list:
  - - 1
    - \"a b\"
  - a: null
    b:
      c: true
  spec:
    cidr: \"10.0.0.0/24\"
    order: 10.5
    status: {}
";
        assert_eq!(written(&[value]), expected);
    }

    #[test]
    fn texts_that_could_be_other_values_are_quoted() {
        for text in [
            "on",
            "No",
            "NULL",
            "~",
            "",
            "1_000",
            "0x1f",
            "1:30",
            "===",
            "a===\n",
            "- a",
            "a: b",
            "é",
            "a\u{2028}",
        ] {
            let said = written(&[json!(text)]);
            assert!(
                said.starts_with("- \"") && said.lines().count() == 1 && said.is_ascii(),
                "{said}"
            );
            assert_eq!(
                serde_norway::from_str::<Value>(&said).unwrap(),
                json!([text])
            );
        }
        assert_eq!(written(&[json!("node.a-1_b/c")]), "- node.a-1_b/c\n");
    }

    fn values() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            "\\PC{0,12}".prop_map(Value::from),
            "[-=:#\\n \u{85}yn1.~]{0,6}".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 32, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::btree_map("[-a=1 \\n]{0,4}", inner, 0..4)
                    .prop_map(|fields| Value::Object(fields.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn written_values_are_read_back(items in prop::collection::vec(values(), 1..4)) {
            let said = written(&items);
            prop_assert_eq!(
                serde_norway::from_str::<Vec<Value>>(&said).unwrap(),
                items,
                "{}",
                said,
            );
            prop_assert!(!said.contains("===\n"), "{}", said);
        }
    }
}

//! The schema of a Rust type as a *structural schema*, the only form that the API server accepts.
//!
//! The schema that schemars generates is changed in these ways:
//!
//! - A field that may be null, by `"type": ["string", "null"]` or `anyOf`, loses the null, because
//!   the API server drops a null.
//! - An item or a map's value that may be null loses the null too, and gets `"nullable": true`. A
//!   null stands for a free address.
//! - `oneOf` of the variants of an enum becomes `enum`, because no type may be inside `oneOf`.
//! - `additionalProperties` beside `properties` is removed. Our types keep unknown fields, but the
//!   API server drops them.
//! - `default` is removed. It is the value that we read for a missing field, not one that the API
//!   server should store.
//! - `format`, such as `uint8`, is removed. It is the width of a Rust type, and the API server's
//!   numbers are 64 bits wide.
//! - `title` and `$schema` are removed.
//! - A citation such as `(DS-42)` in a description is removed. It is for readers of this code, not
//!   of `kubectl explain`.

use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value};

pub(super) fn structural<T: JsonSchema>() -> Value {
    let settings = SchemaSettings::draft07().with(|settings| {
        settings.inline_subschemas = true;
        settings.meta_schema = None;
    });
    let mut schema = settings
        .into_generator()
        .into_root_schema_for::<T>()
        .to_value();
    convert(&mut schema);
    schema
}

/// Converts a schema and all schemas in it. Returns true if the schema allowed null.
fn convert(schema: &mut Value) -> bool {
    let Some(schema) = schema.as_object_mut() else {
        return false;
    };
    let mut is_nullable = remove_null_branch(schema);
    is_nullable |= remove_null_type(schema);
    variants_as_enum(schema);
    for keyword in ["title", "$schema", "default"] {
        schema.remove(keyword);
    }
    if schema
        .get("format")
        .and_then(Value::as_str)
        .is_some_and(is_integer_width)
    {
        schema.remove("format");
    }
    if let Some(Value::String(description)) = schema.get_mut("description") {
        *description = without_citations(description);
    }
    if let Some(properties) = schema.get_mut("properties").and_then(Value::as_object_mut) {
        properties.values_mut().for_each(|field| _ = convert(field));
        schema.remove("additionalProperties");
    }
    for keyword in ["items", "additionalProperties"] {
        if let Some(item) = schema.get_mut(keyword)
            && convert(item)
        {
            item["nullable"] = true.into();
        }
    }
    is_nullable
}

/// Replaces an `anyOf` of one schema and null by that schema. Returns true if there was a null.
fn remove_null_branch(schema: &mut Map<String, Value>) -> bool {
    let Some(branches) = schema.get("anyOf").and_then(Value::as_array) else {
        return false;
    };
    let is_null = |branch: &&Value| branch["type"] == "null";
    let others: Vec<Value> = branches
        .iter()
        .filter(|branch| !is_null(branch))
        .cloned()
        .collect();
    let [Value::Object(only)] = &others[..] else {
        return false;
    };
    let is_nullable = branches.iter().any(|branch| is_null(&branch));
    schema.remove("anyOf");
    for (keyword, value) in only {
        schema.entry(keyword).or_insert_with(|| value.clone());
    }
    is_nullable
}

/// Removes null from a list of one type and null, and from the values of an enum. Returns true if
/// null was in the list.
fn remove_null_type(schema: &mut Map<String, Value>) -> bool {
    let Some(Value::Array(types)) = schema.get("type") else {
        return false;
    };
    let is_nullable = types.iter().any(|one| one == "null");
    let [only] = &types
        .iter()
        .filter(|one| *one != "null")
        .cloned()
        .collect::<Vec<_>>()[..]
    else {
        return false;
    };
    schema.insert("type".into(), only.clone());
    if let Some(Value::Array(values)) = schema.get_mut("enum") {
        values.retain(|value| !value.is_null());
    }
    is_nullable
}

/// Converts the `oneOf` of an enum's variants to one `enum`, whose description contains those of
/// the variants.
fn variants_as_enum(schema: &mut Map<String, Value>) {
    let Some(Value::Array(variants)) = schema.get("oneOf") else {
        return;
    };
    let values: Vec<_> = variants
        .iter()
        .filter_map(|variant| variant.get("const").cloned())
        .collect();
    if values.len() != variants.len() {
        return;
    }
    let mut description = schema
        .get("description")
        .and_then(Value::as_str)
        .unwrap_or_default()
        .to_owned();
    for variant in variants {
        if let (Some(value), Some(about)) =
            (variant["const"].as_str(), variant["description"].as_str())
        {
            description.push_str(&format!(" {value}: {about}"));
        }
    }
    schema.remove("oneOf");
    schema.insert("type".into(), "string".into());
    schema.insert("enum".into(), values.into());
    schema.insert("description".into(), description.into());
}

fn is_integer_width(format: &str) -> bool {
    let width = format
        .strip_prefix('u')
        .unwrap_or(format)
        .strip_prefix("int");
    width.is_some_and(|width| width.bytes().all(|b| b.is_ascii_digit()))
}

fn without_citations(description: &str) -> String {
    let mut text = description.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut from = 0;
    while let Some(open) = text[from..].find(" (").map(|at| from + at) {
        let Some(close) = text[open..].find(')').map(|at| open + at) else {
            break;
        };
        if text[open + 2..close].split(", ").all(is_citation) {
            text.replace_range(open..=close, "");
            from = open;
        } else {
            from = close;
        }
    }
    text
}

fn is_citation(text: &str) -> bool {
    let Some((chapter, number)) = text.split_once('-') else {
        return false;
    };
    let consists_of = |part: &str, is_valid: fn(&u8) -> bool| {
        !part.is_empty() && part.bytes().all(|b| is_valid(&b))
    };
    consists_of(chapter, u8::is_ascii_uppercase) && consists_of(number, u8::is_ascii_digit)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::json;

    use super::*;

    // Test data: the test below compares these descriptions, without the citations.
    /// Of no use (DS-42).
    #[derive(JsonSchema)]
    #[schemars(title = "Sample", rename_all = "camelCase")]
    #[allow(dead_code, reason = "only the schema is used")]
    struct Sample {
        /// Text (of a kind)
        /// on two lines (DS-42, IPAM-101).
        some_text: String,
        #[schemars(range(max = 9))]
        number: Option<u8>,
        free: Vec<Option<i64>>,
        choice: Option<Choice>,
        #[schemars(extend("enum" = ["a", "b"]))]
        letter: Option<String>,
        counts: BTreeMap<String, u64>,
        #[schemars(flatten)]
        unknown: Map<String, Value>,
    }

    // Test data: the test below compares these descriptions.
    /// One of two.
    #[derive(JsonSchema)]
    #[allow(dead_code, reason = "only the schema is used")]
    enum Choice {
        /// This.
        One,
        /// That.
        Other,
    }

    #[test]
    fn structural_conversion_applies_every_rule() {
        let expected = json!({
            "type": "object",
            "description": "Of no use.",
            "properties": {
                "someText": { "type": "string", "description": "Text (of a kind) on two lines." },
                "number": { "type": "integer", "minimum": 0, "maximum": 9 },
                "free": { "type": "array", "items": { "type": "integer", "nullable": true } },
                "choice": {
                    "type": "string",
                    "enum": ["One", "Other"],
                    "description": "One of two. One: This. Other: That.",
                },
                "letter": { "type": "string", "enum": ["a", "b"] },
                "counts": {
                    "type": "object", "additionalProperties": { "type": "integer", "minimum": 0 },
                },
            },
            "required": ["someText", "free", "counts"],
        });
        assert_eq!(structural::<Sample>(), expected);
    }
}

//! Simulates some of the checks of an object against its structural schema by the API server, but
//! no CEL rules.

use std::collections::BTreeSet;

use regex::Regex;
use serde_json::{Map, Value};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::net::Cidr;

/// Returns the paths of the fields that the API server drops because the schema does not have them.
pub(super) fn dropped(schema: &Value, object: &Value) -> Vec<String> {
    let mut found = Vec::new();
    walk(schema, object, String::new(), &mut |schema, value, path| {
        let (Value::Object(fields), Some(known)) = (value, schema.get("properties")) else {
            return;
        };
        let unknown = fields
            .keys()
            .filter(|key| known.get(key.as_str()).is_none());
        found.extend(unknown.map(|key| format!("{path}.{key}")));
    });
    found
}

pub(super) fn refusals(schema: &Value, object: &Value) -> Vec<String> {
    let mut found = Vec::new();
    walk(schema, object, String::new(), &mut |schema, value, path| {
        for (keyword, limit) in schema.as_object().unwrap() {
            if !keeps(schema, keyword, limit, value) {
                found.push(format!("{path}: {keyword}"));
            }
        }
    });
    found
}

fn walk(schema: &Value, value: &Value, path: String, visit: &mut impl FnMut(&Value, &Value, &str)) {
    visit(schema, value, &path);
    match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                let field = schema["properties"]
                    .get(key)
                    .or_else(|| schema.get("additionalProperties"));
                // The API server has a schema of its own for metadata.
                let is_known = path.is_empty() && key == "metadata";
                if let Some(field) = field.filter(|_| !is_known && !value.is_null()) {
                    walk(field, value, format!("{path}.{key}"), visit);
                }
            }
        }
        Value::Array(items) => {
            items
                .iter()
                .enumerate()
                .for_each(|(i, item)| walk(&schema["items"], item, format!("{path}[{i}]"), visit));
        }
        _ => {}
    }
}

fn keeps(schema: &Value, keyword: &str, limit: &Value, value: &Value) -> bool {
    if value.is_null() {
        return keyword != "type" || schema["nullable"] == true;
    }
    match (keyword, value) {
        ("type", _) => is_of_type(limit.as_str().unwrap(), value),
        ("enum", _) => limit.as_array().unwrap().contains(value),
        ("required", Value::Object(fields)) => limit
            .as_array()
            .unwrap()
            .iter()
            .all(|name| is_there(schema, fields, name.as_str().unwrap())),
        ("minimum", Value::Number(number)) => number.as_f64() >= limit.as_f64(),
        ("maximum", Value::Number(number)) => number.as_f64() <= limit.as_f64(),
        ("minLength", Value::String(text)) => {
            text.chars().count() as u64 >= limit.as_u64().unwrap()
        }
        ("maxLength", Value::String(text)) => {
            text.chars().count() as u64 <= limit.as_u64().unwrap()
        }
        ("maxItems", Value::Array(items)) => items.len() as u64 <= limit.as_u64().unwrap(),
        ("pattern", Value::String(text)) => {
            Regex::new(limit.as_str().unwrap()).unwrap().is_match(text)
        }
        ("x-kubernetes-list-type", Value::Array(items)) => {
            items
                .iter()
                .map(Value::to_string)
                .collect::<BTreeSet<_>>()
                .len()
                == items.len()
        }
        ("format", Value::String(text)) => match limit.as_str().unwrap() {
            "cidr" => text.contains('/') && text.parse::<Cidr>().is_ok(),
            "date-time" => OffsetDateTime::parse(text, &Rfc3339).is_ok(),
            "int32" | "int64" => true,
            other => panic!("no format: {other}"),
        },
        _ => true,
    }
}

/// Returns true also for a default, because the API server applies defaults first.
fn is_there(schema: &Value, fields: &Map<String, Value>, name: &str) -> bool {
    fields.get(name).is_some_and(|value| !value.is_null())
        || schema["properties"][name].get("default").is_some()
}

fn is_of_type(kind: &str, value: &Value) -> bool {
    match kind {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        other => panic!("no type: {other}"),
    }
}

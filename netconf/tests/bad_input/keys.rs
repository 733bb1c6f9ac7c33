//! The keys of the configuration, taken from its schema, and a configuration that sets all of them.

use netconf::schema;
use serde_json::{Map, Value, json};

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Step {
    Key(String),
    Item,
}

#[derive(Debug)]
pub(crate) struct Key {
    pub(crate) steps: Vec<Step>,
    pub(crate) kind: String,
    schema: Value,
}

impl Key {
    pub(crate) fn takes(&self, value: &Value) -> bool {
        match self.kind.as_str() {
            "string" => value.is_string(),
            "boolean" => value.is_boolean(),
            "integer" => value.is_i64() || value.is_u64(),
            "array" => value.is_array(),
            "object" => value.is_object(),
            other => panic!("{other}"),
        }
    }

    /// Returns the values of `which` (`minimum` or `maximum`) in the schema of the key and of its
    /// alternative ranges.
    pub(crate) fn limits(&self, which: &str) -> Vec<i128> {
        let ranges = self.schema["anyOf"].as_array().into_iter().flatten();
        let limits = ranges
            .chain([&self.schema])
            .filter_map(|range| range.get(which));
        limits
            .map(|limit| {
                limit
                    .as_i64()
                    .map_or_else(|| limit.as_u64().unwrap().into(), i128::from)
            })
            .collect()
    }

    /// Returns the allowed strings, or no strings if every string is allowed.
    pub(crate) fn words(&self) -> Vec<String> {
        words(&self.schema)
    }

    pub(crate) fn is_item(&self) -> bool {
        self.steps.last() == Some(&Step::Item)
    }

    pub(crate) fn name(&self) -> &str {
        match self.steps.last() {
            Some(Step::Key(key)) => key,
            _ => "",
        }
    }
}

pub(crate) fn keys() -> Vec<Key> {
    let mut found = Vec::new();
    collect(&schema::netconf(), &[], &mut found);
    assert!(found.len() > 90);
    found
}

fn collect(schema: &Value, at: &[Step], found: &mut Vec<Key>) {
    let children = schema["properties"].as_object().into_iter().flatten();
    let mut children: Vec<_> = children
        .map(|(key, child)| (Step::Key(key.clone()), child))
        .collect();
    if let Some(items) = schema.get("items") {
        children.push((Step::Item, items));
    }
    for (step, child) in children {
        let steps = [at, &[step]].concat();
        collect(child, &steps, found);
        found.push(Key {
            kind: kind(child),
            steps,
            schema: child.clone(),
        });
    }
}

/// A schema without `type` is an enumeration of strings.
fn kind(schema: &Value) -> String {
    match &schema["type"] {
        Value::String(kind) => kind.clone(),
        Value::Array(kinds) => kinds
            .iter()
            .filter_map(Value::as_str)
            .find(|kind| *kind != "null")
            .unwrap()
            .to_owned(),
        _ => "string".to_owned(),
    }
}

fn words(schema: &Value) -> Vec<String> {
    let mut words: Vec<String> = schema["enum"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(text)
        .collect();
    words.extend(schema.get("const").and_then(text));
    for list in ["anyOf", "oneOf"] {
        words.extend(
            schema[list]
                .as_array()
                .into_iter()
                .flatten()
                .flat_map(self::words),
        );
    }
    words
}

fn text(value: &Value) -> Option<String> {
    value.as_str().map(str::to_owned)
}

pub(crate) fn full() -> Value {
    let mut value = legal(&schema::netconf(), "");
    value["name"] = json!("net");
    value["cniVersion"] = json!("1.1.0");
    // The decoder reads ranges and routes only for host-local.
    value["ipam"]["type"] = json!("host-local");
    value
}

fn legal(schema: &Value, name: &str) -> Value {
    match name {
        "readiness_gates" => return json!(["http://gate/"]),
        "ipv4_pools" | "ipv6_pools" => return json!(["a-pool"]),
        "dst" => return json!("10.0.0.0/8"),
        "prevResult" => return json!({}),
        _ => {}
    }
    if let Some(word) = words(schema).first() {
        return json!(word);
    }
    match kind(schema).as_str() {
        "string" => json!("text"),
        "boolean" => json!(true),
        "integer" => schema.get("maximum").cloned().unwrap_or(json!(1)),
        "array" => json!([legal(&schema["items"], "")]),
        _ => {
            let properties = schema["properties"].as_object().into_iter().flatten();
            Value::Object(
                properties
                    .map(|(key, child)| (key.clone(), legal(child, key)))
                    .collect::<Map<_, _>>(),
            )
        }
    }
}

/// An item step selects the first item.
pub(crate) fn with(document: &Value, steps: &[Step], value: &Value) -> Value {
    let mut changed = document.clone();
    let place = steps.iter().fold(&mut changed, |place, step| match step {
        Step::Key(key) => &mut place[key.as_str()],
        Step::Item => &mut place[0],
    });
    *place = value.clone();
    changed
}

pub(crate) fn path(steps: &[Step]) -> String {
    steps.iter().fold("$".to_owned(), |path, step| match step {
        Step::Item => path + "[0]",
        Step::Key(key) if key.contains(['.', '/', '-']) => format!("{path}[{key:?}]"),
        Step::Key(key) => format!("{path}.{key}"),
    })
}

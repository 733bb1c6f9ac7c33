//! [`Schemas`]: the schemas of the shipped definitions, as far as they change stored objects.

use std::collections::BTreeMap;

use libcalico::crd::definitions;
use libcalico::kubernetes::{ApiGroup, Resource};
use serde_json::{Map, Value};

/// The schemas of an API group.
#[derive(Debug)]
pub(super) struct Schemas {
    api_version: &'static str,
    by_plural: BTreeMap<String, Schema>,
}

/// The schema of a kind.
#[derive(Debug)]
pub(super) struct Schema {
    root: Value,
    /// Whether the status is written separately from the other fields.
    pub(super) has_status: bool,
}

impl Schemas {
    pub(super) fn of(group: ApiGroup) -> Self {
        let schema = |definition: Value| {
            let plural = definition["spec"]["names"]["plural"].as_str()?.to_owned();
            let version = &definition["spec"]["versions"][0];
            let schema = Schema {
                root: version["schema"]["openAPIV3Schema"].clone(),
                has_status: version.pointer("/subresources/status").is_some(),
            };
            Some((plural, schema))
        };
        Schemas {
            api_version: group.api_version(),
            by_plural: definitions(group).into_iter().filter_map(schema).collect(),
        }
    }

    /// Returns the schema of a kind; `None` if no definition of this repository has the kind.
    pub(super) fn get(&self, resource: &Resource) -> Option<&Schema> {
        (resource.api_version == self.api_version)
            .then(|| self.by_plural.get(resource.plural))
            .flatten()
    }
}

impl Schema {
    /// Removes the fields that the schema does not have and nulls that it does not allow, and adds
    /// its defaults.
    pub(super) fn conform(&self, object: &mut Value) {
        // The API server has a schema of its own for the metadata.
        let metadata = object.get_mut("metadata").map(Value::take);
        conform(&self.root, object);
        if let Some(metadata) = metadata {
            object["metadata"] = metadata;
        }
    }
}

fn conform(schema: &Value, value: &mut Value) {
    match value {
        Value::Object(fields) => conform_fields(schema, fields),
        Value::Array(items) => {
            let schema = &schema["items"];
            items.iter_mut().for_each(|item| conform(schema, item));
        }
        _ => {}
    }
}

fn conform_fields(schema: &Value, fields: &mut Map<String, Value>) {
    let keeps_unknown = schema["x-kubernetes-preserve-unknown-fields"] == true
        || schema["additionalProperties"] == true;
    let field_schema = |key: &str| {
        let known = schema["properties"].get(key);
        known.or_else(|| {
            schema
                .get("additionalProperties")
                .filter(|any| any.is_object())
        })
    };
    fields.retain(|key, value| match field_schema(key) {
        Some(field) => !value.is_null() || field["nullable"] == true,
        None => keeps_unknown,
    });
    for (key, field) in schema["properties"].as_object().into_iter().flatten() {
        if let Some(default) = field.get("default") {
            fields
                .entry(key.as_str())
                .or_insert_with(|| default.clone());
        }
    }
    for (key, value) in fields {
        if let Some(field) = field_schema(key) {
            conform(field, value);
        }
    }
}

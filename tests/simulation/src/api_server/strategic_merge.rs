//! Merges a strategic merge patch into an object, as far as clients of pods and nodes use patches.

use serde_json::{Map, Value};

/// Merges `patch` into `object`. A null removes a field. Conditions are merged by their type;
/// another list replaces the list of the object.
pub(super) fn merge(object: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *object = patch.clone();
        return;
    };
    if !object.is_object() {
        *object = Value::Object(Map::new());
    }
    let Value::Object(fields) = object else {
        return;
    };
    for (key, value) in patch {
        if value.is_null() {
            fields.remove(key);
            continue;
        }
        let field = fields.entry(key.as_str()).or_insert(Value::Null);
        match (key.as_str(), &mut *field, value) {
            ("conditions", Value::Array(conditions), Value::Array(changed)) => {
                merge_conditions(conditions, changed);
            }
            _ => merge(field, value),
        }
    }
}

fn merge_conditions(conditions: &mut Vec<Value>, changed: &[Value]) {
    for condition in changed {
        let of_type = conditions
            .iter_mut()
            .find(|other| other["type"] == condition["type"]);
        match of_type {
            Some(other) => merge(other, condition),
            None => conditions.push(condition.clone()),
        }
    }
}

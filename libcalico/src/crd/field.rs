//! [`Field`]: constraints of a field beyond its type.

use serde_json::{Value, json};

/// The schema of a field.
pub(super) struct Field<'s> {
    schema: &'s mut Value,
}

impl<'s> Field<'s> {
    pub(super) fn new(schema: &'s mut Value) -> Self {
        Field { schema }
    }

    /// Returns the schema of the field `name` of this object.
    ///
    /// # Panics
    /// If the type has no such field. Generating the definitions finds this mistake at once.
    pub(super) fn at(&mut self, name: &str) -> Field<'_> {
        let field = self.schema["properties"].get_mut(name);
        Field::new(field.unwrap_or_else(|| panic!("the type has a field {name}")))
    }

    /// Returns the schema of each item of this list, or of each value of this map.
    pub(super) fn each(&mut self) -> Field<'_> {
        let key = if self.schema.get("items").is_some() { "items" } else { "additionalProperties" };
        Field::new(&mut self.schema[key])
    }

    /// Makes the API server reject an object without these fields.
    pub(super) fn required(&mut self, names: &[&str]) -> &mut Self {
        self.set("required", names)
    }

    /// Sets the value that the API server stores if the field is missing.
    pub(super) fn default(&mut self, value: impl Into<Value>) -> &mut Self {
        self.set("default", value.into())
    }

    /// Adds a CEL rule that the value must satisfy.
    pub(super) fn rule(&mut self, cel: &str, message: &str) -> &mut Self {
        push(&mut self.schema["x-kubernetes-validations"], rule(cel, message));
        self
    }

    /// Sets any keyword.
    pub(super) fn set(&mut self, keyword: &str, value: impl serde::Serialize) -> &mut Self {
        self.schema[keyword] = json!(value);
        self
    }
}

/// Returns an entry of `x-kubernetes-validations`.
pub(super) fn rule(cel: &str, message: &str) -> Value {
    json!({ "rule": cel, "message": message, "reason": "FieldValueInvalid" })
}

/// Appends an item to a list that may be missing.
pub(super) fn push(list: &mut Value, item: Value) {
    match list {
        Value::Array(items) => items.push(item),
        _ => *list = Value::Array(vec![item]),
    }
}

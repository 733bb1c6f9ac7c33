//! [`compare`]: a stored value, compared with the value in a file.

use serde_json::Value;

/// The value of a missing field.
static MISSING: Value = Value::Null;

/// The difference between a stored value and the value in a file. Fields are named as in
/// `spec.cidr`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Comparison {
    /// A field of the file that has another value in the stored value.
    pub differing: Option<String>,
    /// The fields that only the file has, for example those that the API server's definition of the
    /// kind lacks.
    pub missing: Vec<String>,
    /// The fields that only the stored value has, for example those with the API server's defaults.
    pub added: Vec<String>,
}

/// Compares two values. A missing field equals null and an empty list or object.
pub fn compare(in_file: &Value, stored: &Value) -> Comparison {
    let mut found = Comparison::default();
    found.visit(&mut Vec::new(), in_file, stored);
    found
}

impl Comparison {
    /// `at` is the path of the two values.
    fn visit<'a>(&mut self, at: &mut Vec<&'a str>, in_file: &'a Value, stored: &'a Value) {
        match (in_file, stored) {
            (in_file, stored) if is_empty(in_file) && is_empty(stored) => {}
            (Value::Object(fields), stored) if stored.is_object() || stored.is_null() => {
                for (name, value) in fields {
                    self.visit_part(at, name, value, stored.get(name).unwrap_or(&MISSING));
                }
                let others = stored.as_object().into_iter().flatten();
                for (name, value) in
                    others.filter(|(name, value)| !fields.contains_key(*name) && !is_empty(value))
                {
                    self.visit_part(at, name, &MISSING, value);
                }
            }
            (Value::Array(items), Value::Array(others)) if items.len() == others.len() => {
                for (item, other) in items.iter().zip(others) {
                    self.visit_part(at, "[]", item, other);
                }
            }
            (in_file, _) if is_empty(in_file) => self.added.push(at.join(".")),
            (in_file, stored) if is_same(in_file, stored) => {}
            (_, Value::Null) => self.missing.push(at.join(".")),
            _ => {
                self.differing.get_or_insert_with(|| at.join("."));
            }
        }
    }

    fn visit_part<'a>(
        &mut self,
        at: &mut Vec<&'a str>,
        name: &'a str,
        in_file: &'a Value,
        stored: &'a Value,
    ) {
        at.push(name);
        self.visit(at, in_file, stored);
        at.pop();
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Object(fields) => fields.is_empty(),
        Value::Array(items) => items.is_empty(),
        _ => false,
    }
}

fn is_same(left: &Value, right: &Value) -> bool {
    match (left, right) {
        // YAML may have a whole number with a fraction.
        (Value::Number(left), Value::Number(right)) if left.is_f64() || right.is_f64() => {
            left.as_f64() == right.as_f64()
        }
        _ => left == right,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn fields_of_the_file_must_have_the_same_value() {
        for (in_file, stored, differing) in [
            (
                json!({"a": 1, "b": [{"c": "x"}]}),
                json!({"a": 1.0, "b": [{"c": "x"}]}),
                None,
            ),
            (json!({"a": null, "b": [], "c": {}}), json!({}), None),
            (json!({"a": {"b": null}}), json!({}), None),
            (json!({"a": {"b": 1}}), json!({"a": {"b": 2}}), Some("a.b")),
            (json!({"a": [1]}), json!({"a": [1, 2]}), Some("a")),
            (
                json!({"a": [{"b": 1}]}),
                json!({"a": [{"b": 2}]}),
                Some("a.[].b"),
            ),
            (json!({"a": "1"}), json!({"a": 1}), Some("a")),
            (
                json!({"a": 1_795_409_042_633_985_627_u64}),
                json!({"a": 1_795_409_042_633_985_626_u64}),
                Some("a"),
            ),
        ] {
            let found = compare(&in_file, &stored);
            assert_eq!(found.differing.as_deref(), differing, "{in_file} {stored}");
            assert_eq!(
                (found.missing, found.added),
                (Vec::new(), Vec::new()),
                "{in_file} {stored}"
            );
        }
    }

    #[test]
    fn fields_of_one_value_alone_are_named() {
        let (few, many) = (
            json!({"a": {"b": 1}, "l": [{}]}),
            json!({"a": {"b": 1, "c": 2}, "d": 3, "l": [{"e": 4}]}),
        );
        let alone = |mut found: Vec<String>| {
            found.sort();
            found
        };
        let (added, missing) = (compare(&few, &many), compare(&many, &few));
        assert_eq!((&added.differing, &missing.differing), (&None, &None));
        assert_eq!((&added.missing, &missing.added), (&Vec::new(), &Vec::new()));
        assert_eq!(alone(added.added), ["a.c", "d", "l.[].e"]);
        assert_eq!(alone(missing.missing), ["a.c", "d", "l.[].e"]);
        assert_eq!(
            compare(&json!({"a": {"b": 1}}), &json!({})).missing,
            ["a.b"]
        );
    }
}

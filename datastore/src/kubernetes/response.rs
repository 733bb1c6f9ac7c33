//! Decodes responses of the API server without `managedFields`.

use std::fmt;

use serde::de::{DeserializeSeed, Error, IgnoredAny, MapAccess, SeqAccess, Unexpected, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

/// The record of each field's writer. No code here reads it, and it makes up most of many pods.
const MANAGED_FIELDS: &str = "managedFields";

/// An object, or a list of objects, without the `managedFields` of any object.
#[derive(Debug)]
pub(super) struct PrunedObject(pub(super) Value);

/// The metadata of an object, or `null`.
#[derive(Debug, Default)]
pub(super) struct PrunedMetadata(pub(super) Value);

impl<'de> Deserialize<'de> for PrunedObject {
    fn deserialize<D: Deserializer<'de>>(json: D) -> Result<Self, D::Error> {
        PrunedPart::Object.deserialize(json).map(PrunedObject)
    }
}

impl<'de> Deserialize<'de> for PrunedMetadata {
    fn deserialize<D: Deserializer<'de>>(json: D) -> Result<Self, D::Error> {
        PrunedPart::Metadata.deserialize(json).map(PrunedMetadata)
    }
}

/// The part of a response that is being decoded.
#[derive(Debug, Clone, Copy)]
enum PrunedPart {
    Object,
    Metadata,
    Items,
}

impl<'de> DeserializeSeed<'de> for PrunedPart {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<Value, D::Error> {
        json.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for PrunedPart {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PrunedPart::Object => "an object",
            PrunedPart::Metadata => "an object's metadata",
            PrunedPart::Items => "a list of objects",
        })
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        if let PrunedPart::Items = self {
            return Err(A::Error::invalid_type(Unexpected::Map, &self));
        }
        let mut fields = Map::new();
        while let Some(key) = map.next_key::<String>()? {
            let value = match (self, key.as_str()) {
                (PrunedPart::Metadata, MANAGED_FIELDS) => {
                    map.next_value::<IgnoredAny>()?;
                    continue;
                }
                (PrunedPart::Object, "metadata") => map.next_value_seed(PrunedPart::Metadata)?,
                (PrunedPart::Object, "items") => map.next_value_seed(PrunedPart::Items)?,
                _ => map.next_value()?,
            };
            fields.insert(key, value);
        }
        Ok(Value::Object(fields))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let PrunedPart::Items = self else { return Err(A::Error::invalid_type(Unexpected::Seq, &self)) };
        let mut items = Vec::new();
        while let Some(item) = seq.next_element_seed(PrunedPart::Object)? {
            items.push(item);
        }
        Ok(Value::Array(items))
    }

    /// Accepts `null`, as Go encodes an empty list.
    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(json: &str) -> Result<Value, String> {
        serde_json::from_str(json).map(|PrunedObject(value)| value).map_err(|error| error.to_string())
    }

    #[test]
    fn managed_fields_are_left_out_of_objects_and_of_lists() {
        let object = json!({
            "kind": "Pod", "metadata": {"name": "p", "managedFields": [{"fieldsV1": {"f:spec": {}}}], "uid": "u"},
            "spec": {"nodeName": "n"},
        });
        let without = json!({"kind": "Pod", "metadata": {"name": "p", "uid": "u"}, "spec": {"nodeName": "n"}});
        assert_eq!(read(&object.to_string()).unwrap(), without);
        let list = json!({"kind": "PodList", "metadata": {"continue": "c"}, "items": [object, object]});
        let expected = json!({"kind": "PodList", "metadata": {"continue": "c"}, "items": [without, without]});
        assert_eq!(read(&list.to_string()).unwrap(), expected);
        let PrunedMetadata(metadata) = serde_json::from_value(object["metadata"].clone()).unwrap();
        assert_eq!(metadata, without["metadata"]);
    }

    /// A label, or a field of a `spec`, may have the same name.
    #[test]
    fn what_only_has_its_name_stays() {
        let object = json!({
            "metadata": {"labels": {"managedFields": "x", "metadata": "y"}, "annotations": {"items": "z"}},
            "spec": {"managedFields": [1], "metadata": {"managedFields": 2}, "items": [3]},
        });
        assert_eq!(read(&object.to_string()).unwrap(), object);
    }

    #[test]
    fn nothing_is_nothing() {
        for object in [json!({"metadata": null, "items": null}), json!({"items": []}), json!({}), Value::Null] {
            assert_eq!(read(&object.to_string()).unwrap(), object);
        }
    }

    #[test]
    fn what_is_no_object_is_refused() {
        for (json, reason) in [
            ("[]", "expected an object"),
            ("1", "expected an object"),
            (r#"{"metadata":[]}"#, "expected an object's metadata"),
            (r#"{"items":{"a":1}}"#, "expected a list of objects"),
            (r#"{"items":{}}"#, "expected a list of objects"),
            (r#"{"items":["a"]}"#, "expected an object"),
        ] {
            let told = read(json).unwrap_err();
            assert!(told.contains(reason), "{json}: {told}");
        }
    }
}

//! [`ApiRequest`]: a request to the API server, and the decoder of its response.

use std::fmt;
use std::time::Duration;

use hyper::body::Bytes;
use hyper::header::{ACCEPT, CONTENT_TYPE};
use hyper::{Method, Request};
use kube::client::Body;
use libcalico::kubernetes::json_bytes;
use serde::de::{DeserializeSeed, Error, IgnoredAny, MapAccess, SeqAccess, Unexpected, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

use super::error::RequestError;
use super::media_type::{JSON, METADATA};

#[derive(Debug, Clone)]
pub(super) struct ApiRequest {
    pub(super) method: Method,
    /// Path and query, such as `/api/v1/nodes/n1`.
    pub(super) target: String,
    /// The media type of the response; `None` means the default of the method.
    pub(super) accept: Option<&'static str>,
    pub(super) body: Option<(&'static str, Bytes)>,
    pub(super) cache: Option<Cache>,
}

/// Permission to serve a read from the server's cache. If that fails, the read is sent again
/// without this permission.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cache {
    /// The `resourceVersion` that the cache must have reached; 0 for any.
    pub(super) version: u64,
    pub(super) time_limit: Duration,
}

#[derive(Deserialize)]
struct WriteResponse {
    #[serde(default)]
    kind: String,
    /// A text if the response is a `Status`.
    #[serde(default)]
    status: Value,
    #[serde(default)]
    metadata: PrunedMetadata,
}

impl ApiRequest {
    pub(super) fn get(target: impl Into<String>) -> Self {
        ApiRequest {
            method: Method::GET,
            target: target.into(),
            accept: None,
            body: None,
            cache: None,
        }
    }

    /// Creates a read of an object's metadata only, if the server supports that.
    pub(super) fn get_metadata(target: impl Into<String>) -> Self {
        ApiRequest {
            accept: Some(METADATA),
            ..ApiRequest::get(target)
        }
    }

    pub(super) fn with_json(method: Method, target: impl Into<String>, object: &Value) -> Self {
        let body = Some((JSON, json_bytes(object).into()));
        ApiRequest {
            method,
            target: target.into(),
            accept: None,
            body,
            cache: None,
        }
    }

    /// Allows the server's cache to serve the read, or forbids it if `cache` is `None`.
    pub(super) fn with_cache(self, cache: Option<Cache>) -> Self {
        ApiRequest { cache, ..self }
    }

    pub(super) fn url(&self) -> String {
        let Some(Cache { version, .. }) = self.cache else {
            return self.target.clone();
        };
        let separator = if self.target.contains('?') { '&' } else { '?' };
        format!("{}{separator}resourceVersion={version}", self.target)
    }

    pub(super) fn is_read(&self) -> bool {
        self.method == Method::GET
    }

    /// Returns the requested media type. A write requests only the metadata of the object, to
    /// reduce the server's work. A DELETE requests JSON, because the response may not be an object.
    fn accept(&self) -> &'static str {
        match (self.accept, &self.method) {
            (Some(media_type), _) => media_type,
            (None, &Method::POST | &Method::PUT | &Method::PATCH) => METADATA,
            _ => JSON,
        }
    }

    /// Decodes a successful response. Returns the object or list of a read, and only the metadata
    /// of a written object. Fails if the response to a write is neither the written object nor, for
    /// a DELETE, a `Status` of success.
    pub(super) fn parse(&self, answer: &[u8]) -> serde_json::Result<Value> {
        if self.is_read() {
            return serde_json::from_slice(answer).map(|PrunedObject(object)| object);
        }
        let WriteResponse {
            kind,
            status,
            metadata: PrunedMetadata(metadata),
        } = serde_json::from_slice(answer)?;
        let is_status = kind == "Status" && status == "Success";
        let is_expected =
            self.is_written_object(&metadata) || (self.method == Method::DELETE && is_status);
        if !is_expected {
            return Err(serde_json::Error::custom("expected the written object"));
        }
        Ok(Value::Object(Map::from_iter([(
            "metadata".to_owned(),
            metadata,
        )])))
    }

    /// Returns true if `metadata` can belong to the object of the request. A proxy between this
    /// process and the API server may send another successful response.
    fn is_written_object(&self, metadata: &Value) -> bool {
        let field = |key: &str| metadata[key].as_str().filter(|text| !text.is_empty());
        let path = self.target.split('?').next().unwrap_or_default();
        let is_last = |path: &str, name: &str| path.rsplit('/').next() == Some(name);
        let is_named = |name: &str| {
            self.method == Method::POST
                || is_last(path, name)
                || path
                    .strip_suffix("/status")
                    .is_some_and(|object| is_last(object, name))
        };
        field("resourceVersion").is_some() && field("name").is_some_and(is_named)
    }

    pub(super) fn build(&self) -> Result<Request<Body>, RequestError> {
        let mut request = Request::builder()
            .method(&self.method)
            .uri(self.url())
            .header(ACCEPT, self.accept());
        if let Some((content_type, _)) = &self.body {
            request = request.header(CONTENT_TYPE, *content_type);
        }
        let body = self
            .body
            .as_ref()
            .map_or_else(Body::empty, |(_, bytes)| Body::from(bytes.clone()));
        request
            .body(body)
            .map_err(|e| RequestError::NotSent(e.to_string()))
    }
}

/// The key of the record of each field's writer, which makes up most of many pods.
const MANAGED_FIELDS: &str = "managedFields";

/// An object, or a list of objects, without the `managedFields` of any object.
#[derive(Debug)]
pub(super) struct PrunedObject(pub(super) Value);

/// The metadata of an object without its `managedFields`, or `null`.
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
        let PrunedPart::Items = self else {
            return Err(A::Error::invalid_type(Unexpected::Seq, &self));
        };
        let mut items = Vec::new();
        while let Some(item) = seq.next_element_seed(PrunedPart::Object)? {
            items.push(item);
        }
        Ok(Value::Array(items))
    }

    /// Accepts `null`, as which Go may encode an empty list.
    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(json: &str) -> Result<Value, String> {
        serde_json::from_str(json)
            .map(|PrunedObject(value)| value)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn managed_fields_are_pruned_from_objects_and_lists() {
        let object = json!({
            "kind": "Pod",
            "metadata": {"name": "p", "managedFields": [{"fieldsV1": {"f:spec": {}}}], "uid": "u"},
            "spec": {"nodeName": "n"},
        });
        let without = json!({
            "kind": "Pod", "metadata": {"name": "p", "uid": "u"}, "spec": {"nodeName": "n"},
        });
        assert_eq!(read(&object.to_string()).unwrap(), without);
        let list =
            json!({"kind": "PodList", "metadata": {"continue": "c"}, "items": [object, object]});
        let expected =
            json!({"kind": "PodList", "metadata": {"continue": "c"}, "items": [without, without]});
        assert_eq!(read(&list.to_string()).unwrap(), expected);
        let PrunedMetadata(metadata) = serde_json::from_value(object["metadata"].clone()).unwrap();
        assert_eq!(metadata, without["metadata"]);
    }

    /// A label, or a field of a `spec`, may have the same name.
    #[test]
    fn fields_named_like_pruned_fields_elsewhere_are_preserved() {
        let object = json!({
            "metadata": {
                "labels": {"managedFields": "x", "metadata": "y"}, "annotations": {"items": "z"},
            },
            "spec": {"managedFields": [1], "metadata": {"managedFields": 2}, "items": [3]},
        });
        assert_eq!(read(&object.to_string()).unwrap(), object);
    }

    #[test]
    fn empty_and_null_fields_are_preserved() {
        for object in [
            json!({"metadata": null, "items": null}),
            json!({"items": []}),
            json!({}),
            Value::Null,
        ] {
            assert_eq!(read(&object.to_string()).unwrap(), object);
        }
    }

    #[test]
    fn response_other_than_an_object_is_rejected() {
        for (json, reason) in [
            ("[]", "expected an object"),
            ("1", "expected an object"),
            (r#"{"metadata":[]}"#, "expected an object's metadata"),
            (r#"{"items":{"a":1}}"#, "expected a list of objects"),
            (r#"{"items":{}}"#, "expected a list of objects"),
            (r#"{"items":["a"]}"#, "expected an object"),
        ] {
            let error = read(json).unwrap_err();
            assert!(error.contains(reason), "{json}: {error}");
        }
    }
}

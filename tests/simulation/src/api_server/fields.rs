//! Fields of stored objects.

use libcalico::kubernetes::Location;
use serde_json::Value;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// Returns a time as the metadata of objects contains it: in whole seconds.
pub(super) fn timestamp(time: OffsetDateTime) -> Value {
    let seconds = time.replace_nanosecond(0).unwrap_or(time);
    seconds.format(&Rfc3339).unwrap_or_default().into()
}

/// Returns a text of the metadata; empty if the metadata lacks it.
pub(super) fn text<'o>(object: &'o Value, field: &str) -> &'o str {
    object["metadata"][field].as_str().unwrap_or_default()
}

/// Removes a field of an object.
pub(super) fn remove(object: &mut Value, field: &str) {
    if let Some(fields) = object.as_object_mut() {
        fields.remove(field);
    }
}

/// Gives a field of `to` the value that it has in `from`, or removes it.
pub(super) fn copy(to: &mut Value, from: &Value, field: &str) {
    match from.get(field) {
        Some(value) => to[field] = value.clone(),
        None => remove(to, field),
    }
}

/// Returns the object with the type and the name of its location.
pub(super) fn with_identity(location: &Location, mut object: Value) -> Value {
    object["apiVersion"] = location.resource.api_version.into();
    object["kind"] = location.resource.kind.into();
    object["metadata"]["name"] = location.name.as_str().into();
    if let Some(namespace) = &location.namespace {
        object["metadata"]["namespace"] = namespace.as_str().into();
    }
    object
}

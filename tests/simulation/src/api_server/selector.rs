//! Label selectors and field selectors, as far as the codec uses them.

use libcalico::kubernetes::List;
use serde_json::Value;

use super::{Refusal, refusal};

/// Returns true if the selectors of `list` select the object.
///
/// # Errors
/// If a selector has a form that this module does not know.
pub(super) fn is_selected(list: &List, object: &Value) -> Result<bool, Refusal> {
    for requirement in requirements(list.label_selector.as_deref()) {
        if !has_labels(requirement, &object["metadata"]["labels"])? {
            return Ok(false);
        }
    }
    for requirement in requirements(list.field_selector.as_deref()) {
        if !has_field(requirement, object)? {
            return Ok(false);
        }
    }
    Ok(true)
}

fn requirements(selector: Option<&str>) -> impl Iterator<Item = &str> {
    selector
        .unwrap_or_default()
        .split(',')
        .filter(|requirement| !requirement.is_empty())
}

fn has_labels(requirement: &str, labels: &Value) -> Result<bool, Refusal> {
    if requirement.contains([' ', '(']) {
        let message = format!("the simulation knows no label selector like {requirement:?}");
        return Err(refusal::bad_request(message));
    }
    if let Some(key) = requirement.strip_prefix('!') {
        return Ok(labels.get(key).is_none());
    }
    if let Some((key, value)) = requirement.split_once("!=") {
        return Ok(labels.get(key).is_none_or(|found| *found != value));
    }
    Ok(match requirement.split_once('=') {
        Some((key, value)) => labels
            .get(key)
            .is_some_and(|found| *found == value.trim_start_matches('=')),
        None => labels.get(requirement).is_some(),
    })
}

fn has_field(requirement: &str, object: &Value) -> Result<bool, Refusal> {
    let known = |field: &str| match field {
        "metadata.name" => Some("/metadata/name"),
        "metadata.namespace" => Some("/metadata/namespace"),
        "spec.nodeName" if object["kind"] == "Pod" => Some("/spec/nodeName"),
        _ => None,
    };
    let parts = requirement
        .split_once('=')
        .and_then(|(field, value)| Some((known(field)?, value)));
    let Some((pointer, value)) = parts else {
        let message = format!("field label not supported: {requirement}");
        return Err(refusal::bad_request(message));
    };
    let found = object.pointer(pointer).and_then(Value::as_str);
    Ok(found.unwrap_or_default() == value)
}

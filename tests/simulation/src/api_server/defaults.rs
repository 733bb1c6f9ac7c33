//! The fields that the server sets in pods and namespaces.

use libcalico::kubernetes::{Location, NAMESPACES, PODS};
use serde_json::{Value, json};

/// The reason why the deletion of a namespace waits.
const NAMESPACE_CONTROLLER: &str = "kubernetes";

/// Adds the fields that the server and its admission add to a new object.
pub(super) fn set_defaults(location: &Location, object: &mut Value) {
    if location.resource == PODS {
        set_pod_defaults(object);
    }
    if location.resource == NAMESPACES {
        object["metadata"]["labels"]["kubernetes.io/metadata.name"] = location.name.as_str().into();
        object["spec"]["finalizers"] = json!([NAMESPACE_CONTROLLER]);
        object["status"] = json!({ "phase": "Active" });
    }
}

fn set_pod_defaults(pod: &mut Value) {
    let spec = &mut pod["spec"];
    for (field, default) in [
        ("serviceAccountName", json!("default")),
        ("terminationGracePeriodSeconds", json!(30)),
    ] {
        if spec[field].is_null() {
            spec[field] = default;
        }
    }
    pod["status"] = json!({ "phase": "Pending" });
}

/// Makes the two fields of a status with addresses agree.
pub(super) fn conform_addresses(status: &mut Value) {
    let first = status["podIPs"][0]["ip"].as_str().unwrap_or_default();
    let address = status["podIP"].as_str().unwrap_or_default();
    match (address, first) {
        ("", "") => {}
        ("", first) => status["podIP"] = first.into(),
        (address, first) if address != first => {
            status["podIPs"] = json!([{ "ip": address }]);
        }
        _ => {}
    }
    if let Some(status) = status.as_object_mut() {
        status.retain(|field, value| !(field.starts_with("podIP") && is_empty(value)));
    }
}

fn is_empty(value: &Value) -> bool {
    value.is_null() || *value == "" || value.as_array().is_some_and(Vec::is_empty)
}

//! The fields that the server sets in pods.

use serde_json::{Value, json};

/// Adds the fields that the server and its admission add to a new pod.
pub(super) fn set_defaults(pod: &mut Value) {
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

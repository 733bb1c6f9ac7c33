//! The parts of the objects that must be equal after every run.

use std::collections::BTreeMap;

use serde_json::Value;

/// Fields whose values differ from run to run.
const VARYING: [&str; 15] = [
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
    "managedFields",
    "lastTransitionTime",
    "timestamp",
    "affinityClaimTime",
    "affinity_claim_time",
    "clusterGUID",
    "sequenceNumber",
    "sequenceNumberForAllocation",
    "environmentVars",
    "namespaceUID",
];
/// Prefix of a Service's handle, whose ID contains the UID of the Service.
const OF_SERVICE: &str = "lb-";

/// Returns the objects without the fields that differ from run to run.
pub(crate) fn comparable(all: BTreeMap<String, Value>) -> Value {
    let objects = all
        .into_iter()
        .map(|(key, object)| (without_uid(&key), without_varying(object)));
    Value::Object(objects.collect())
}

fn without_varying(value: Value) -> Value {
    match value {
        Value::Object(fields) => {
            let fields = fields
                .into_iter()
                .filter(|(name, _)| !VARYING.contains(&name.as_str()));
            Value::Object(
                fields
                    .map(|(name, value)| match name.as_str() {
                        // The order of free addresses differs from run to run.
                        "unallocated" => (name, sorted(value)),
                        _ => (without_uid(&name), without_varying(value)),
                    })
                    .collect(),
            )
        }
        Value::Array(items) => Value::Array(items.into_iter().map(without_varying).collect()),
        Value::String(text) => Value::String(without_uid(&text)),
        other => other,
    }
}

fn sorted(value: Value) -> Value {
    let mut ordinals: Vec<u64> = value
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_u64)
        .collect();
    ordinals.sort_unstable();
    ordinals.into()
}

fn without_uid(text: &str) -> String {
    match text.find(OF_SERVICE) {
        Some(at) if at == 0 || text[..at].ends_with('/') => format!("{}{OF_SERVICE}…", &text[..at]),
        _ => text.to_owned(),
    }
}

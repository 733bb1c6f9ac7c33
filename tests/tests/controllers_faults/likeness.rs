//! The parts of the objects that must be equal after every run.

use std::collections::BTreeMap;

use serde_json::Value;

/// Fields whose values differ from run to run.
const OF_ONE_LIFE: [&str; 15] = [
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

pub(crate) fn likeness(all: BTreeMap<String, Value>) -> Value {
    let alike = all
        .into_iter()
        .map(|(key, object)| (named_alike(&key), alike(object)));
    Value::Object(alike.collect())
}

fn alike(value: Value) -> Value {
    match value {
        Value::Object(fields) => {
            let fields = fields
                .into_iter()
                .filter(|(name, _)| !OF_ONE_LIFE.contains(&name.as_str()));
            Value::Object(
                fields
                    .map(|(name, value)| match name.as_str() {
                        // The order of free addresses differs from run to run.
                        "unallocated" => (name, sorted(value)),
                        _ => (named_alike(&name), alike(value)),
                    })
                    .collect(),
            )
        }
        Value::Array(items) => Value::Array(items.into_iter().map(alike).collect()),
        Value::String(text) => Value::String(named_alike(&text)),
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

fn named_alike(text: &str) -> String {
    match text.find(OF_SERVICE) {
        Some(at) if at == 0 || text[..at].ends_with('/') => format!("{}{OF_SERVICE}…", &text[..at]),
        _ => text.to_owned(),
    }
}

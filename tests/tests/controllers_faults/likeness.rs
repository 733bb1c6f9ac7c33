//! What of the objects must be the same in every life.

use std::collections::BTreeMap;

use serde_json::Value;

/// What is chance, or time, or counts writes.
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
/// The handle of a Service has its uid in it. There is one at the end.
const OF_SERVICE: &str = "lb-";

/// The objects without that.
pub(crate) fn likeness(all: BTreeMap<String, Value>) -> Value {
    let alike = all.into_iter().map(|(key, object)| (named_alike(&key), alike(object)));
    Value::Object(alike.collect())
}

fn alike(value: Value) -> Value {
    match value {
        Value::Object(fields) => {
            let fields = fields.into_iter().filter(|(name, _)| !OF_ONE_LIFE.contains(&name.as_str()));
            Value::Object(
                fields
                    .map(|(name, value)| match name.as_str() {
                        // In the order in which they were freed.
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
    let mut ordinals: Vec<u64> = value.as_array().into_iter().flatten().filter_map(Value::as_u64).collect();
    ordinals.sort_unstable();
    ordinals.into()
}

fn named_alike(text: &str) -> String {
    match text.find(OF_SERVICE) {
        Some(at) if at == 0 || text[..at].ends_with('/') => format!("{}{OF_SERVICE}…", &text[..at]),
        _ => text.to_owned(),
    }
}

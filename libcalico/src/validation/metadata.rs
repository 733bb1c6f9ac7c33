//! Rules for the metadata that all kinds share (DS-93).

use super::syntax::{MAX_NAME, go_map, label_key_problem, label_value_problem};
use crate::api::{Object, Spec};
use crate::names::is_dns_name;
use crate::validation_error::FieldError;

/// The maximum total size of all annotations in bytes.
const MAX_ANNOTATIONS: usize = 256 << 10;

/// The name of the only object of a kind that has only one.
pub(super) const SINGLETON: &str = "default";

/// Returns the invalid fields of the metadata of an object of a kind that has only one. `resource`
/// names the kind with its article.
pub(super) fn check_singleton<S: Spec>(object: &Object<S>, resource: &str) -> Vec<FieldError> {
    let mut findings = check_metadata(object);
    let name = &object.metadata.name;
    if name != SINGLETON {
        let reason =
            format!("Cannot create {resource} resource with a name other than \"{SINGLETON}\"");
        findings.push(FieldError::new("Metadata.Name", name, reason));
    }
    findings
}

pub(super) fn check_metadata<S: Spec>(object: &Object<S>) -> Vec<FieldError> {
    let mut findings = Vec::new();
    let meta = &object.metadata;
    if S::NAMESPACED && meta.namespace.is_empty() {
        findings.push(FieldError::missing(
            "Metadata.Namespace",
            "namespace is not specified on namespaced resource",
        ));
    }
    if !S::NAMESPACED && !meta.namespace.is_empty() {
        let reason = format!("kind {} is not namespaced; remove the namespace", S::KIND);
        findings.push(FieldError::new(
            "Metadata.Namespace",
            &meta.namespace,
            reason,
        ));
    }
    if meta.name.len() > MAX_NAME {
        let reason = format!("name is too long by {} bytes", meta.name.len() - MAX_NAME);
        findings.push(FieldError::new("Metadata.Name", &meta.name, reason));
    }
    if !is_dns_name(&meta.name) {
        let reason = "name must consist of lower case alphanumeric characters, '-' or '.' (regex: \
                      [a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*)";
        findings.push(FieldError::new("Metadata.Name", &meta.name, reason));
    }
    for key in meta.annotations.keys() {
        if let Some(problem) = label_key_problem(&key.to_lowercase()) {
            findings.push(FieldError::new("Metadata.Annotations (key)", key, problem));
        }
    }
    let size: usize = meta
        .annotations
        .iter()
        .map(|(key, value)| key.len() + value.len())
        .sum();
    if size > MAX_ANNOTATIONS {
        let reason = format!(
            "total size of annotations is too large by {} bytes",
            size - MAX_ANNOTATIONS
        );
        findings.push(FieldError::new(
            "Metadata.Annotations (key)",
            go_map(&meta.annotations),
            reason,
        ));
    }
    for (key, value) in &meta.labels {
        if let Some(problem) = label_key_problem(key) {
            findings.push(FieldError::new("Metadata.Labels (label)", key, problem));
        }
        if let Some(problem) = label_value_problem(value) {
            findings.push(FieldError::new("Metadata.Labels (value)", value, problem));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{IpReservation, IpReservationSpec, WorkloadEndpoint, WorkloadEndpointSpec};

    fn named(name: &str) -> IpReservation {
        IpReservation::new(name, IpReservationSpec::default())
    }

    fn fields<S: Spec>(object: &Object<S>) -> Vec<String> {
        check_metadata(object).into_iter().map(|f| f.name).collect()
    }

    #[test]
    fn metadata_names_are_validated() {
        assert_eq!(fields(&named("a.b-c")), [""; 0]);
        assert_eq!(fields(&named("")), ["Metadata.Name"]);
        assert_eq!(fields(&named("Upper")), ["Metadata.Name"]);
        let findings = check_metadata(&named(&"n".repeat(255)));
        assert_eq!(findings[0].reason, "name is too long by 2 bytes");
    }

    #[test]
    fn metadata_namespace_is_required_only_for_namespaced_kinds() {
        let mut global = named("a");
        global.metadata.namespace = "x".into();
        assert_eq!(fields(&global), ["Metadata.Namespace"]);
        assert_eq!(
            fields(&WorkloadEndpoint::new("a", WorkloadEndpointSpec::default())),
            ["Metadata.Namespace"]
        );
    }

    #[test]
    fn metadata_labels_and_annotations_are_validated() {
        let mut object = named("a");
        object
            .metadata
            .annotations
            .insert("Example.com/Key".into(), "any thing".into());
        object.metadata.labels.insert("key".into(), "value".into());
        assert_eq!(fields(&object), [""; 0]);
        object
            .metadata
            .annotations
            .insert("bad key".into(), String::new());
        object
            .metadata
            .labels
            .insert("bad key".into(), "bad value".into());
        let expected = [
            "Metadata.Annotations (key)",
            "Metadata.Labels (label)",
            "Metadata.Labels (value)",
        ];
        assert_eq!(fields(&object), expected);
        let mut object = named("a");
        object
            .metadata
            .annotations
            .insert("k".into(), "v".repeat(MAX_ANNOTATIONS));
        assert!(
            check_metadata(&object)[0]
                .reason
                .ends_with("too large by 1 bytes")
        );
    }
}

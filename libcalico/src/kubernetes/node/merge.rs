//! [`merge_node`]: adds the fields of a node of another datastore to a node of Kubernetes.

use serde_json::Value;

use super::{ANNOTATED_FIELDS, annotation_text, kube_labels, own_annotations, own_labels};

/// A field with another value than expected, such as `spec.bgp.asNumber`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0} differs")]
pub struct DifferingField(pub String);

/// Returns a v3 node with the fields, labels and annotations of `other` that the node lacks, as far
/// as a node of Kubernetes stores them. Returns `None` if the node lacks none. `node` must be as
/// the store read it.
///
/// # Errors
/// If the node has another value for a field, a label or an annotation. Labels of Kubernetes may
/// differ.
pub fn merge_node(node: &Value, other: &Value) -> Result<Option<Value>, DifferingField> {
    let mut merged = node.clone();
    for (_, section, field, form) in ANNOTATED_FIELDS {
        let Some(wanted) = annotation_text(other, section, field, form) else {
            continue;
        };
        match annotation_text(node, section, field, form) {
            Some(found) if found == wanted => {}
            Some(_) => {
                return Err(DifferingField(
                    ["spec", section, field].join(".").replace("..", "."),
                ));
            }
            None if section.is_empty() => merged["spec"][field] = other["spec"][field].clone(),
            None => merged["spec"][section][field] = other["spec"][section][field].clone(),
        }
    }
    let of_kubernetes = kube_labels(node);
    for (part, added) in [
        ("labels", own_labels(other)),
        ("annotations", own_annotations(other)),
    ] {
        for (name, value) in added {
            match node["metadata"][part].get(&name) {
                Some(found) if *found == value => {}
                Some(_) if part == "labels" && of_kubernetes.contains_key(&name) => {}
                Some(_) => return Err(DifferingField(format!("metadata.{part}.{name}"))),
                None => merged["metadata"][part][name.as_str()] = value,
            }
        }
    }
    Ok((merged != *node).then_some(merged))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::{from_kubernetes, update_patch};
    use super::*;
    use crate::kubernetes::ObjectRevision;

    /// Returns the v3 form of a Kubernetes node with these annotations.
    fn read(annotations: &Value) -> Value {
        let node = json!({
            "metadata": {"name": "n", "labels": {"os": "linux"}, "annotations": annotations}
        });
        Value::Object(from_kubernetes(node.as_object().unwrap().clone()))
    }

    /// Returns the annotations of the node after a write of the merged node.
    fn annotations_after(merged: &Value) -> Value {
        let mut patch =
            update_patch(merged, &ObjectRevision::default())["metadata"]["annotations"].take();
        patch
            .as_object_mut()
            .unwrap()
            .retain(|_, value| !value.is_null());
        patch
    }

    #[test]
    fn merged_node_has_the_exported_fields_and_needs_no_second_write() {
        let exported = json!({
            "metadata": {
                "name": "n", "labels": {"zone": "a", "os": "plan9", "arch": "amd64"},
                "annotations": {"projectcalico.org/kube-labels": r#"{"arch":"amd64"}"#, "a": "b"},
            },
            "spec": {
                "bgp": {"ipv4Address": "172.31.0.1/24", "asNumber": "1.10"},
                "vxlanTunnelMACAddr": "66:00:00:00:00:01",
                "orchRefs": [{"nodeName": "n", "orchestrator": "k8s"}],
            },
            "status": {},
        });
        let merged = merge_node(&read(&json!({})), &exported).unwrap().unwrap();
        let written = annotations_after(&merged);
        assert_eq!(
            written,
            json!({
                "projectcalico.org/IPv4Address": "172.31.0.1/24",
                "projectcalico.org/ASNumber": "65546",
                "projectcalico.org/VXLANTunnelMACAddr": "66:00:00:00:00:01",
                "projectcalico.org/labels": r#"{"zone":"a"}"#,
                "projectcalico.org/annotations": r#"{"a":"b"}"#,
            })
        );
        assert_eq!(merge_node(&read(&written), &exported), Ok(None));
    }

    #[test]
    fn fields_of_the_node_alone_stay() {
        let annotations = json!({
            "projectcalico.org/IPv4IPIPTunnelAddr": "10.0.0.1",
            "projectcalico.org/labels": r#"{"rack":"r"}"#,
        });
        let exported = json!({
            "metadata": {"labels": {"zone": "a"}}, "spec": {"bgp": {"ipv4Address": "10.1.0.1/24"}},
        });
        let merged = merge_node(&read(&annotations), &exported).unwrap().unwrap();
        let written = annotations_after(&merged);
        assert_eq!(written["projectcalico.org/IPv4IPIPTunnelAddr"], "10.0.0.1");
        assert_eq!(
            written["projectcalico.org/labels"],
            r#"{"rack":"r","zone":"a"}"#
        );
    }

    #[test]
    fn node_with_another_value_is_refused() {
        let annotations = json!({
            "projectcalico.org/IPv4Address": "10.0.0.1/24",
            "projectcalico.org/VXLANTunnelMACAddr": "66:00:00:00:00:02",
            "projectcalico.org/labels": r#"{"zone":"b"}"#,
        });
        for (exported, field) in [
            (
                json!({"spec": {"bgp": {"ipv4Address": "10.0.0.2/24"}}}),
                "spec.bgp.ipv4Address",
            ),
            (
                json!({"spec": {"vxlanTunnelMACAddr": "66:00:00:00:00:01"}}),
                "spec.vxlanTunnelMACAddr",
            ),
            (
                json!({"metadata": {"labels": {"zone": "a"}}}),
                "metadata.labels.zone",
            ),
        ] {
            assert_eq!(
                merge_node(&read(&annotations), &exported),
                Err(DifferingField(field.into()))
            );
        }
    }
}

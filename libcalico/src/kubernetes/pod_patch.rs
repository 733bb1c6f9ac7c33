//! Writes a WorkloadEndpoint: annotations on its pod, by a strategic merge patch of `pods/status`
//! (DS-80, DS-81).

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::revision::{ObjectRevision, PreservedMetadata};
use crate::store::Revision;

/// The annotation with the container ID of the last sandbox that got the pod's addresses.
pub const CONTAINER_ID: &str = "cni.projectcalico.org/containerID";
/// The annotation with the first address, with its prefix length.
pub const POD_IP: &str = "cni.projectcalico.org/podIP";
/// The annotation with all addresses, separated by commas.
pub const POD_IPS: &str = "cni.projectcalico.org/podIPs";

/// The media type of the patches.
pub const STRATEGIC_MERGE_PATCH: &str = "application/strategic-merge-patch+json";

/// Returns the patch of ADD. With `uid`, the API server rejects the patch for another pod of the
/// same name (CNI-223). The patch contains no resourceVersion, because other clients change the pod
/// frequently.
pub(super) fn attach_patch(container_id: &str, ip_networks: &[String], uid: Option<&str>) -> Value {
    let mut metadata = Map::new();
    if !ip_networks.is_empty() {
        metadata = addresses(ip_networks);
        if !container_id.is_empty() {
            metadata["annotations"][CONTAINER_ID] = container_id.into();
        }
    }
    if let Some(uid) = uid {
        metadata.insert("uid".into(), uid.into());
    }
    json!({ "metadata": metadata })
}

/// Returns the patch that reduces the addresses to `ip_networks`, to none for DEL. It does not
/// write the container ID: the pod may have another sandbox by now, and a late DEL of the same
/// sandbox must still be recognized. With a `revision`, the patch fails if the pod has changed
/// since.
pub(super) fn address_patch(ip_networks: &[String], revision: Option<&ObjectRevision>) -> Value {
    let mut metadata = addresses(ip_networks);
    if let Some(revision) = revision {
        metadata.insert(
            "resourceVersion".into(),
            revision.resource_version.as_str().into(),
        );
        if let Some(uid) = &revision.uid {
            metadata.insert("uid".into(), uid.as_str().into());
        }
    }
    json!({ "metadata": metadata })
}

/// Returns the addresses that the plugin's annotations list, as written there, each text once.
pub fn annotated_addresses(annotations: &BTreeMap<String, String>) -> Vec<String> {
    let mut listed = Vec::<String>::new();
    for text in [POD_IP, POD_IPS]
        .iter()
        .filter_map(|key| annotations.get(*key))
        .flat_map(|list| list.split(','))
    {
        if !text.is_empty() && !listed.iter().any(|other| other == text) {
            listed.push(text.to_owned());
        }
    }
    listed
}

/// Returns true if the two annotations with addresses exist and are empty, as after a DEL.
pub fn has_empty_addresses(annotations: &BTreeMap<String, String>) -> bool {
    [POD_IP, POD_IPS]
        .iter()
        .all(|key| annotations.get(*key).is_some_and(String::is_empty))
}

/// Returns true if the pod's annotations were already empty at `revision`, as after a DEL. The
/// endpoint's addresses do not show this (DS-78).
pub fn is_detached(revision: &Revision) -> bool {
    ObjectRevision::parse(revision).preserved.metadata == addresses(&[])
}

/// Returns the two empty annotations that a DEL writes, if the pod has them, or else nothing.
pub(super) fn preserve_detached(metadata: &Map<String, Value>) -> PreservedMetadata {
    let annotations = metadata.get("annotations");
    let is_empty = |key| annotations.and_then(|all| all.get(key)) == Some(&Value::from(""));
    let is_detached = [POD_IP, POD_IPS].into_iter().all(is_empty);
    let metadata = if is_detached {
        addresses(&[])
    } else {
        Map::new()
    };
    PreservedMetadata {
        metadata,
        ..PreservedMetadata::default()
    }
}

fn addresses(ip_networks: &[String]) -> Map<String, Value> {
    let first = ip_networks.first().map(String::as_str).unwrap_or_default();
    Map::from_iter([(
        "annotations".into(),
        json!({POD_IP: first, POD_IPS: ip_networks.join(",")}),
    )])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pod_patches_match_upstreams_vectors() {
        let networks = [
            "10.244.1.3/32".to_owned(),
            "fd00:10:244:1::3/128".to_owned(),
        ];
        assert_eq!(
            attach_patch("9c1e5b7d", &networks, None),
            json!({"metadata": {"annotations": {
                CONTAINER_ID: "9c1e5b7d", POD_IP: "10.244.1.3/32",
                POD_IPS: "10.244.1.3/32,fd00:10:244:1::3/128",
            }}})
        );
        let revision = ObjectRevision {
            resource_version: "4711".into(),
            uid: Some("u".into()),
            ..ObjectRevision::default()
        };
        let annotations = json!({POD_IP: "", POD_IPS: ""});
        assert_eq!(
            address_patch(&[], Some(&revision)),
            json!({"metadata": {"annotations": annotations, "resourceVersion": "4711", "uid": "u"}})
        );
        assert_eq!(
            address_patch(&[], None),
            json!({"metadata": {"annotations": annotations}})
        );
    }

    #[test]
    fn relisting_patch_retains_other_addresses_and_omits_the_container() {
        let left = [
            "10.244.1.9/32".to_owned(),
            "fd00:10:244:1::3/128".to_owned(),
        ];
        let revision = ObjectRevision {
            resource_version: "4711".into(),
            uid: Some("u".into()),
            ..Default::default()
        };
        let annotations =
            json!({POD_IP: "10.244.1.9/32", POD_IPS: "10.244.1.9/32,fd00:10:244:1::3/128"});
        assert_eq!(
            address_patch(&left, Some(&revision)),
            json!({"metadata": {"annotations": annotations, "resourceVersion": "4711", "uid": "u"}})
        );
    }

    #[test]
    fn listed_addresses_combine_both_pod_annotations() {
        for (pod_ip, pod_ips, expected) in [
            (
                Some("10.0.0.1/32"),
                Some("10.0.0.1/32,fd00::1/128"),
                &["10.0.0.1/32", "fd00::1/128"][..],
            ),
            (
                Some("10.0.0.2/32"),
                Some("10.0.0.1/32"),
                &["10.0.0.2/32", "10.0.0.1/32"],
            ),
            (Some("10.0.0.1"), None, &["10.0.0.1"]),
            (Some(""), Some(""), &[]),
            (None, None, &[]),
        ] {
            let texts = [(POD_IP, pod_ip), (POD_IPS, pod_ips)];
            let annotations: BTreeMap<_, _> = texts
                .iter()
                .filter_map(|(key, text)| Some(((*key).to_owned(), (*text)?.to_owned())))
                .collect();
            assert_eq!(
                annotated_addresses(&annotations),
                expected,
                "{annotations:?}"
            );
            assert_eq!(
                has_empty_addresses(&annotations),
                pod_ip == Some(""),
                "{annotations:?}"
            );
        }
    }

    #[test]
    fn detached_pod_is_recognized_by_its_revision() {
        for (annotations, expected) in [
            (
                json!({POD_IP: "", POD_IPS: "", CONTAINER_ID: "c", "a": "b"}),
                true,
            ),
            (json!({POD_IP: "", POD_IPS: "10.0.0.1/32"}), false),
            (json!({POD_IP: ""}), false),
            (Value::Null, false),
        ] {
            let pod = json!({"annotations": annotations, "resourceVersion": "4711", "uid": "u"});
            let pod = pod.as_object().unwrap();
            let revision = ObjectRevision::of(pod, preserve_detached(pod)).revision();
            assert_eq!(is_detached(&revision), expected, "{annotations}");
        }
    }

    #[test]
    fn unknown_values_are_omitted_from_the_pod_patch() {
        assert_eq!(attach_patch("c", &[], None), json!({"metadata": {}}));
        let networks = ["10.0.0.1/32".to_owned()];
        let patch = attach_patch("", &networks, Some("u"));
        assert_eq!(
            patch["metadata"]["annotations"],
            json!({POD_IP: "10.0.0.1/32", POD_IPS: "10.0.0.1/32"})
        );
        assert_eq!(patch["metadata"]["uid"], "u");
    }
}

use std::borrow::Cow;
use std::collections::BTreeMap;

use libcalico::api::ObjectKey;
use serde::Deserialize;

use super::{Labels, Projection, ProjectionOptions};

/// A pod, with its node, its addresses, and the fields that decide if it still needs the addresses.
/// Upstream's projection drops `deletionTimestamp` and `status.reason` (KC-267).
#[derive(Debug, Clone, PartialEq)]
pub struct Pod {
    /// Namespace and name.
    pub name: ObjectKey,
    /// `metadata.uid`, which distinguishes the pod from an earlier pod with the same name.
    pub uid: String,
    /// Node on which the pod is scheduled; empty before scheduling.
    pub node: String,
    /// `spec.hostNetwork`.
    pub host_network: bool,
    /// `spec.serviceAccountName`; empty unless [`ProjectionOptions::pod_labels`] is set.
    pub service_account: String,
    /// `metadata.labels`; empty unless [`ProjectionOptions::pod_labels`] is set.
    pub labels: Labels,
    /// True if `metadata.deletionTimestamp` is set.
    pub is_deleting: bool,
    /// `status.phase`.
    pub phase: String,
    /// `status.reason`, such as `Evicted`.
    pub reason: String,
    /// `status.podIP`, if it is not empty.
    pub pod_ip: Option<Box<str>>,
    /// `status.podIPs`.
    pub pod_ips: Vec<Box<str>>,
    /// Annotations with addresses.
    pub annotations: AddressAnnotations,
}

/// The annotations that contain a pod's addresses (KC-435). Tenants can write them, so an
/// annotation may keep an address in use, but never causes a release.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
pub struct AddressAnnotations {
    /// `cni.projectcalico.org/podIP`.
    #[serde(rename = "cni.projectcalico.org/podIP", default)]
    pub pod_ip: Option<Box<str>>,
    /// `cni.projectcalico.org/podIPs`.
    #[serde(rename = "cni.projectcalico.org/podIPs", default)]
    pub pod_ips: Option<Box<str>>,
    /// `vpc.amazonaws.com/pod-ips`.
    #[serde(rename = "vpc.amazonaws.com/pod-ips", default)]
    pub aws_pod_ips: Option<Box<str>>,
    /// `k8s.v1.cni.cncf.io/network-status`: the addresses of all interfaces, as Multus publishes
    /// them.
    #[serde(rename = "k8s.v1.cni.cncf.io/network-status", default)]
    pub network_status: Option<Box<str>>,
}

#[derive(Deserialize)]
struct Stored<'a> {
    #[serde(borrow)]
    metadata: Metadata<'a>,
    #[serde(borrow, default)]
    spec: Spec<'a>,
    #[serde(borrow, default)]
    status: Status<'a>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata<'a> {
    name: String,
    namespace: String,
    uid: String,
    #[serde(default)]
    labels: Option<BTreeMap<String, String>>,
    #[serde(default)]
    annotations: Option<AddressAnnotations>,
    #[serde(borrow, default)]
    deletion_timestamp: Option<Cow<'a, str>>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase")]
struct Spec<'a> {
    #[serde(borrow, default)]
    node_name: Cow<'a, str>,
    #[serde(default)]
    host_network: bool,
    #[serde(borrow, default)]
    service_account_name: Cow<'a, str>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase")]
struct Status<'a> {
    #[serde(borrow, default)]
    phase: Cow<'a, str>,
    #[serde(borrow, default)]
    reason: Cow<'a, str>,
    #[serde(rename = "podIP", default)]
    pod_ip: Option<Box<str>>,
    #[serde(rename = "podIPs", default)]
    pod_ips: Option<Vec<PodIp>>,
}

#[derive(Deserialize)]
struct PodIp {
    #[serde(default)]
    ip: Box<str>,
}

impl Projection for Pod {
    const OBJECT: &'static str = "Pod";
    const COLLECTION: &'static str = "/api/v1/pods";

    fn name(&self) -> &ObjectKey {
        &self.name
    }

    fn project(json: &str, parts: ProjectionOptions) -> Result<Self, serde_json::Error> {
        let Stored {
            metadata,
            spec,
            status,
        } = serde_json::from_str(json)?;
        let (labels, service_account) = if parts.pod_labels {
            (
                metadata.labels.unwrap_or_default(),
                spec.service_account_name.into_owned(),
            )
        } else {
            (Labels::default(), String::new())
        };
        Ok(Pod {
            name: ObjectKey::namespaced(metadata.namespace, metadata.name),
            uid: metadata.uid,
            node: spec.node_name.into_owned(),
            host_network: spec.host_network,
            service_account,
            labels,
            is_deleting: metadata.deletion_timestamp.is_some(),
            phase: status.phase.into_owned(),
            reason: status.reason.into_owned(),
            pod_ip: status.pod_ip.filter(|ip| !ip.is_empty()),
            pod_ips: status
                .pod_ips
                .into_iter()
                .flatten()
                .map(|PodIp { ip }| ip)
                .collect(),
            annotations: metadata.annotations.unwrap_or_default(),
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod() -> Value {
        json!({
            "metadata": {
                "name": "web-0", "namespace": "shop", "uid": "u1", "resourceVersion": "7",
                "labels": {"app": "web"},
                "annotations": {"cni.projectcalico.org/podIP": "", "other": "x".repeat(100)},
                "managedFields": [{"manager": "kubelet", "fieldsV1": {"f:spec": {}}}],
            },
            "spec": {
                "nodeName": "n1", "serviceAccountName": "sa",
                "containers": [{"name": "c", "env": [{"a": 1}]}],
            },
            "status": {
                "phase": "Running", "podIP": "10.0.0.1",
                "podIPs": [{"ip": "10.0.0.1"}, {"ip": "fd00::1"}],
            },
        })
    }

    fn read(pod: &Value, pod_labels: bool) -> Pod {
        Pod::project(&pod.to_string(), ProjectionOptions { pod_labels }).unwrap()
    }

    #[test]
    fn pod_projection_retains_the_fields_that_controllers_read() {
        let expected = Pod {
            name: ObjectKey::namespaced("shop", "web-0"),
            uid: "u1".into(),
            node: "n1".into(),
            host_network: false,
            service_account: "".into(),
            labels: Labels::new(),
            is_deleting: false,
            phase: "Running".into(),
            reason: "".into(),
            pod_ip: Some("10.0.0.1".into()),
            pod_ips: vec!["10.0.0.1".into(), "fd00::1".into()],
            annotations: AddressAnnotations {
                pod_ip: Some("".into()),
                ..AddressAnnotations::default()
            },
        };
        assert_eq!(read(&pod(), false), expected);
        let labels = Labels::from([("app".into(), "web".into())]);
        assert_eq!(
            read(&pod(), true),
            Pod {
                labels,
                service_account: "sa".into(),
                ..expected
            }
        );
    }

    #[test]
    fn projection_of_an_ended_pod_has_its_phase_and_deletion() {
        let mut pod = pod();
        pod["metadata"]["deletionTimestamp"] = "2026-11-21T21:00:00Z".into();
        pod["status"] =
            json!({"phase": "Failed", "reason": "Evicted", "podIP": "", "podIPs": null});
        let pod = read(&pod, false);
        assert!(pod.is_deleting);
        assert_eq!((&*pod.phase, &*pod.reason), ("Failed", "Evicted"));
        assert_eq!((pod.pod_ip, pod.pod_ips), (None, vec![]));
    }

    #[test]
    fn projection_of_an_unscheduled_pod_has_no_node_or_address() {
        let pod = read(
            &json!({"metadata": {"name": "p", "namespace": "n", "uid": "u", "labels": null}}),
            true,
        );
        assert_eq!((&*pod.node, &*pod.phase, pod.pod_ip), ("", "", None));
    }
}

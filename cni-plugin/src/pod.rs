//! A pod and its namespace, as read from the Kubernetes API.

use libcalico::kubernetes::{Namespace, Pod};
use netconf::{Call, CniError, Code};

/// The annotation of mirror pods. A mirror pod has another uid in the API than on the node.
const MIRROR: &str = "kubernetes.io/config.mirror";

/// A pod and its namespace.
#[derive(Debug, Clone)]
pub struct PodWithNamespace {
    /// The pod.
    pub pod: Pod,
    /// The pod's namespace; its name is empty if the namespace no longer exists.
    pub namespace: Namespace,
}

impl PodWithNamespace {
    /// Returns the node of the pod if it is not `node`, which the configuration or a file names.
    pub fn other_node(&self, node: &str) -> Option<&str> {
        Some(self.pod.spec.node_name.as_str()).filter(|name| !name.is_empty() && *name != node)
    }

    /// Fails unless the pod is assigned to a node, has an existing namespace, and has the uid that
    /// CNI_ARGS contains. The uid does not matter for a mirror pod, or if CNI_ARGS contains none.
    pub fn ensure_is_pod_of(&self, call: &Call) -> Result<(), CniError> {
        let meta = &self.pod.metadata;
        if self.namespace.metadata.name.is_empty() {
            return Err(no_such_namespace(&meta.namespace));
        }
        if self.pod.spec.node_name.is_empty() {
            // Upstream's text. The name of the WorkloadEndpoint contains the name of the node.
            return Err(CniError::new(
                Code::TRY_AGAIN,
                "error with field node (field should be assigned)",
            )
            .with_details(format!(
                "pod {}/{} is not assigned to a node yet",
                meta.namespace, meta.name
            )));
        }
        match call.args.pod().and_then(|pod| pod.uid) {
            Some(uid) if uid != meta.uid && !meta.annotations.contains_key(MIRROR) => {
                let msg = format!(
                    "pod {}/{} is not the pod of this call",
                    meta.namespace, meta.name
                );
                Err(CniError::new(Code::TRY_AGAIN, msg).with_details(format!(
                    "the pod has uid {}, and K8S_POD_UID in CNI_ARGS is {uid}: the pod was deleted \
                     and created again",
                    meta.uid
                )))
            }
            _ => Ok(()),
        }
    }
}

/// Returns the error for a missing namespace.
pub fn no_such_namespace(name: &str) -> CniError {
    CniError::new(Code::TRY_AGAIN, format!("namespaces \"{name}\" not found"))
}

#[cfg(test)]
mod tests {
    use libcalico::variables::Variables;
    use serde_json::{Value, json};

    use super::*;

    fn refusal(pod: Value, namespace: Value, args: &str) -> Option<CniError> {
        let mut whole = json!({
            "metadata": {"name": "p", "namespace": "ns", "uid": "u-1"}, "spec": {"nodeName": "n"},
        });
        for (part, fields) in pod.as_object().unwrap() {
            whole[part]
                .as_object_mut()
                .unwrap()
                .extend(fields.as_object().unwrap().clone());
        }
        let described = PodWithNamespace {
            pod: serde_json::from_value(whole).unwrap(),
            namespace: serde_json::from_value(json!({"metadata": namespace})).unwrap(),
        };
        let env = |name: &str| {
            let value = match name {
                "CNI_COMMAND" => "ADD",
                "CNI_CONTAINERID" | "CNI_IFNAME" => "c1",
                "CNI_ARGS" => args,
                "CNI_NETNS" | "CNI_PATH" => "/x",
                _ => return None,
            };
            Some(value.to_owned())
        };
        let conf = br#"{"cniVersion":"1.0.0","name":"net","type":"calico"}"#;
        let call = netconf::read_call(Variables::new(&env), || Ok(conf.to_vec())).unwrap();
        described.ensure_is_pod_of(&call).err()
    }

    const ARGS: &str = "K8S_POD_NAMESPACE=ns;K8S_POD_NAME=p";

    #[test]
    fn pod_with_another_uid_is_rejected_unless_a_mirror_pod() {
        let namespace = json!({"name": "ns"});
        assert_eq!(refusal(json!({}), namespace.clone(), ARGS), None);
        assert_eq!(
            refusal(
                json!({}),
                namespace.clone(),
                &format!("{ARGS};K8S_POD_UID=u-1")
            ),
            None
        );
        let successor = refusal(
            json!({}),
            namespace.clone(),
            &format!("{ARGS};K8S_POD_UID=u-0"),
        )
        .unwrap();
        assert!(
            successor.msg.contains("ns/p") && successor.details.contains("u-0"),
            "{successor}"
        );
        let mirror = json!({"metadata": {"annotations": {MIRROR: "1f00"}}});
        assert_eq!(
            refusal(mirror, namespace, &format!("{ARGS};K8S_POD_UID=1f00")),
            None
        );
    }

    #[test]
    fn pod_of_another_node_than_the_configured_one_is_noticed() {
        let of = |node: &str| PodWithNamespace {
            pod: serde_json::from_value(
                json!({ "metadata": {"name": "p"}, "spec": {"nodeName": node} }),
            )
            .unwrap(),
            namespace: Namespace::default(),
        };
        assert_eq!(of("node2").other_node("node1"), Some("node2"));
        assert_eq!(
            (of("node1").other_node("node1"), of("").other_node("node1")),
            (None, None)
        );
    }

    #[test]
    fn pod_without_a_node_or_namespace_is_rejected() {
        assert_eq!(
            refusal(json!({}), json!({}), ARGS).unwrap().msg,
            "namespaces \"ns\" not found"
        );
        let unscheduled = refusal(
            json!({"spec": {"nodeName": ""}}),
            json!({"name": "ns"}),
            ARGS,
        )
        .unwrap();
        assert_eq!(
            unscheduled.msg,
            "error with field node (field should be assigned)"
        );
    }
}

//! The kind of policy, and access to the API server.

use super::datastore::Secret;
use crate::decode::{DecodeError, FromNode, Node};

/// Kind of policy, and access to the API server for it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "schema", derive(serde::Serialize, schemars::JsonSchema), serde(default), schemars(inline))]
pub struct Policy {
    /// `k8s`: labels, annotations, ports and profiles come from the pod. Empty: the plugin creates a profile with the
    /// network's name. Any other value: that profile is expected to exist. Read by ADD, DEL.
    #[cfg_attr(feature = "schema", serde(rename = "type"))]
    pub policy_type: String,

    /// URL of the API server; `kubernetes.k8s_api_root` takes precedence. Read by ADD, `-t`.
    pub k8s_api_root: String,

    /// Bearer token for the API server. Read by ADD, `-t`.
    pub k8s_auth_token: Secret,

    /// File with the client certificate for the API server. Read by ADD, `-t`.
    pub k8s_client_certificate: String,

    /// File with the key of the client certificate. Read by ADD, `-t`.
    pub k8s_client_key: String,

    /// File with the CA certificates that verify the API server. Read by ADD, `-t`.
    pub k8s_certificate_authority: String,
}

/// Access to the API server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "schema", derive(serde::Serialize, schemars::JsonSchema), serde(default), schemars(inline))]
pub struct Kubernetes {
    /// Path of a kubeconfig. Read by ADD, DEL, CHECK, STATUS, GC, `-t`.
    pub kubeconfig: String,

    /// URL of the API server. Read by ADD, DEL, CHECK, STATUS, GC, `-t`.
    pub k8s_api_root: String,

    /// Node whose pod CIDRs replace `usePodCidr`. Read by ADD with host-local.
    pub node_name: String,
}

impl FromNode for Policy {
    fn from_node(node: &Node<'_>) -> Result<Policy, DecodeError> {
        let object = node.object()?;
        Ok(Policy {
            policy_type: object.read_or_default("type")?,
            k8s_api_root: object.read_or_default("k8s_api_root")?,
            k8s_auth_token: object.read_or_default("k8s_auth_token")?,
            k8s_client_certificate: object.read_or_default("k8s_client_certificate")?,
            k8s_client_key: object.read_or_default("k8s_client_key")?,
            k8s_certificate_authority: object.read_or_default("k8s_certificate_authority")?,
        })
    }
}

impl FromNode for Kubernetes {
    fn from_node(node: &Node<'_>) -> Result<Kubernetes, DecodeError> {
        let object = node.object()?;
        Ok(Kubernetes {
            kubeconfig: object.read_or_default("kubeconfig")?,
            k8s_api_root: object.read_or_default("k8s_api_root")?,
            node_name: object.read_or_default("node_name")?,
        })
    }
}

//! ClusterInformation: the object that says whether the datastore is ready, and data about the
//! cluster.

use serde::{Deserialize, Serialize};

use super::{Object, Unknown};

/// The object that says whether the datastore is ready, and data about the cluster. While the
/// datastore is not ready, such as during an upgrade, the plugins and kube-controllers change no
/// addresses, endpoints or policies.
pub type ClusterInformation = Object<ClusterInformationSpec>;

/// `spec` of ClusterInformation.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct ClusterInformationSpec {
    /// Identifier of the cluster, 32 hexadecimal digits.
    #[serde(rename = "clusterGUID", skip_serializing_if = "String::is_empty")]
    pub cluster_guid: String,
    /// Comma-separated list of the platforms that run the cluster.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub cluster_type: String,
    /// Version of the calico-node that wrote this object.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub calico_version: String,
    /// True if programs may change addresses, endpoints and policies. The plugins treat a missing
    /// value as false (CNI-76).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub datastore_ready: Option<bool>,
    /// The active variant of Calico.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub variant: String,
    /// All other fields.
    #[serde(flatten)]
    pub unknown: Unknown,
}

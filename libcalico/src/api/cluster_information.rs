//! ClusterInformation: the cluster-wide switch that stops all plugins during an upgrade (CNI-75, DS-52).

use serde::{Deserialize, Serialize};

use super::{Object, Spec, Unknown};

/// the cluster-wide switch that stops all plugins during an upgrade (CNI-75, DS-52).
pub type ClusterInformation = Object<ClusterInformationSpec>;

/// `spec` of ClusterInformation.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct ClusterInformationSpec {
    /// 32 hex digits that name the cluster.
    #[serde(rename = "clusterGUID", skip_serializing_if = "String::is_empty")]
    pub cluster_guid: String,
    /// Comma list of what runs the cluster.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub cluster_type: String,
    /// Version of the calico-node that wrote this.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub calico_version: String,
    /// Whether plugins may work. Absent is read as not ready (CNI-76).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub datastore_ready: Option<bool>,
    /// Which variant of Calico is active.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub variant: String,
    /// Everything else.
    #[serde(flatten)]
    pub unknown: Unknown,
}

impl Spec for ClusterInformationSpec {
    const KIND: &'static str = "ClusterInformation";
    const PLURAL: &'static str = "clusterinformations";
}

//! Arguments from the orchestrator, which are labels of Mesos tasks.

use crate::decode::{DecodeError, FromNode, Node};

/// Arguments from the orchestrator.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "schema", derive(serde::Serialize, schemars::JsonSchema), serde(default), schemars(inline))]
pub struct Args {
    /// Arguments from Mesos. Read by ADD outside of Kubernetes.
    #[cfg_attr(feature = "schema", serde(rename = "org.apache.mesos"))]
    pub mesos: OrgApacheMesos,
}

/// Arguments from Mesos.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "schema", derive(serde::Serialize, schemars::JsonSchema), serde(default), schemars(inline))]
pub struct OrgApacheMesos {
    /// The network of the task. Read by ADD outside of Kubernetes.
    pub network_info: MesosNetworkInfo,
}

/// The network of a Mesos task.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "schema", derive(serde::Serialize, schemars::JsonSchema), serde(default), schemars(inline))]
pub struct MesosNetworkInfo {
    /// Name of the network. Not read.
    pub name: String,

    /// Labels of the task. Read by ADD outside of Kubernetes.
    pub labels: MesosLabels,
}

/// Labels of a Mesos task.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "schema", derive(serde::Serialize, schemars::JsonSchema), serde(default), schemars(inline))]
pub struct MesosLabels {
    /// The labels, which are copied to the endpoint. Read by ADD outside of Kubernetes.
    pub labels: Vec<MesosLabel>,
}

/// A label of a Mesos task.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "schema", derive(serde::Serialize, schemars::JsonSchema), serde(default), schemars(inline))]
pub struct MesosLabel {
    /// The label's key. Read by ADD outside of Kubernetes.
    pub key: String,

    /// The label's value. Read by ADD outside of Kubernetes.
    pub value: String,
}

impl FromNode for Args {
    fn from_node(node: &Node<'_>) -> Result<Args, DecodeError> {
        Ok(Args { mesos: node.object()?.read_or_default("org.apache.mesos")? })
    }
}

impl FromNode for OrgApacheMesos {
    fn from_node(node: &Node<'_>) -> Result<OrgApacheMesos, DecodeError> {
        Ok(OrgApacheMesos { network_info: node.object()?.read_or_default("network_info")? })
    }
}

impl FromNode for MesosNetworkInfo {
    fn from_node(node: &Node<'_>) -> Result<MesosNetworkInfo, DecodeError> {
        let object = node.object()?;
        Ok(MesosNetworkInfo { name: object.read_or_default("name")?, labels: object.read_or_default("labels")? })
    }
}

impl FromNode for MesosLabels {
    fn from_node(node: &Node<'_>) -> Result<MesosLabels, DecodeError> {
        Ok(MesosLabels { labels: node.object()?.read_or_default("labels")? })
    }
}

impl FromNode for MesosLabel {
    fn from_node(node: &Node<'_>) -> Result<MesosLabel, DecodeError> {
        let object = node.object()?;
        Ok(MesosLabel { key: object.read_or_default("key")?, value: object.read_or_default("value")? })
    }
}

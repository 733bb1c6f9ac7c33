//! [`NetConf`]: all keys of the network configuration.

use std::collections::BTreeMap;

use serde_json::Value;

use super::accepted::{Args, RuntimeConfig, WindowsConf};
use super::datastore::{DatastoreConf, Kubernetes, Policy};
use super::interface::{ContainerSettings, DataplaneOptions, FeatureControl, InterfaceConf};
use super::ipam::Ipam;
use super::log::LogConf;
use super::node::NodeConf;
use super::readiness::ReadinessConf;
use crate::decode::{self, DecodeError, FromNode, FromObject, Node, Object};
use crate::list::{LOAD_CONTEXT, refuse_list};
use crate::{CniError, CniResult, Code, Version};

/// The network configuration: one plugin object of a network configuration list, with the list's
/// `name` and `cniVersion`.
///
/// Keys may be written in any letter case. `null` means the default. Unknown keys are ignored.
#[derive(Clone, Debug, Default, PartialEq)]
#[cfg_attr(
    feature = "schema",
    derive(serde::Serialize, schemars::JsonSchema),
    serde(default)
)]
pub struct NetConf {
    /// Version of the CNI specification: `0.1.0`, `0.2.0`, `0.3.0`, `0.3.1`, `0.4.0`, `1.0.0` or
    /// `1.1.0`. Default `0.1.0`. Read by ADD, DEL, CHECK, STATUS, GC.
    #[cfg_attr(feature = "schema", serde(rename = "cniVersion"))]
    pub cni_version: String,

    /// Name of the network: letters, digits and `_.-`, starting with a letter or digit. Also the
    /// prefix of IPAM handles, and the name of the profile if `policy.type` is not `k8s`. Read by
    /// ADD, DEL, CHECK, STATUS, GC.
    #[cfg_attr(
        feature = "schema",
        schemars(regex(pattern = r"^[a-zA-Z0-9][a-zA-Z0-9_.\-]*$"))
    )]
    pub name: String,

    /// Name of the plugin's binary: `calico`. Read by the runtime, not by the plugin.
    #[cfg_attr(feature = "schema", serde(rename = "type"))]
    pub plugin_type: String,

    /// The IPAM plugin and its settings. Read by ADD, DEL, CHECK, STATUS, GC.
    pub ipam: Ipam,

    /// The interface of the container.
    #[cfg_attr(feature = "schema", serde(flatten))]
    pub interface: InterfaceConf,

    /// The sources of the node's name, and the lock of its IPAM processes.
    #[cfg_attr(feature = "schema", serde(flatten))]
    pub node: NodeConf,

    /// Location and credentials of the datastore.
    #[cfg_attr(feature = "schema", serde(flatten))]
    pub datastore: DatastoreConf,

    /// Logging.
    #[cfg_attr(feature = "schema", serde(flatten))]
    pub log: LogConf,

    /// Conditions that ADD waits for.
    #[cfg_attr(feature = "schema", serde(flatten))]
    pub readiness: ReadinessConf,

    /// Kind of policy, and access to the API server. Read by ADD, DEL, CHECK, STATUS, GC, `-t`.
    pub policy: Policy,

    /// Access to the API server. Read by ADD, DEL, CHECK, STATUS, GC, `-t`.
    pub kubernetes: Kubernetes,

    /// Features that are off by default. Read by ADD, CHECK, GC.
    pub feature_control: FeatureControl,

    /// Settings inside the container. Read by ADD, CHECK.
    pub container_settings: ContainerSettings,

    /// Settings of a dataplane other than the kernel. Read by ADD, DEL, CHECK, GC.
    pub dataplane_options: DataplaneOptions,

    /// Arguments from the orchestrator. For plain containers only. Read by ADD, DEL, CHECK.
    pub args: Args,

    /// Settings from the runtime, for the requested capabilities. Read on Windows only.
    #[cfg_attr(feature = "schema", serde(rename = "runtimeConfig"))]
    pub runtime_config: RuntimeConfig,

    /// Capabilities for which the runtime fills `runtimeConfig`. Read by the runtime, not by the
    /// plugin.
    pub capabilities: BTreeMap<String, bool>,

    /// The result of the previous plugin of the list (ADD), or of the ADD itself (CHECK, DEL),
    /// written by the runtime, in any version of the CNI specification. Read by ADD, DEL, CHECK.
    #[cfg_attr(
        feature = "schema",
        serde(rename = "prevResult"),
        schemars(with = "Option<BTreeMap<String, Value>>")
    )]
    pub prev_result: Option<Value>,

    /// The attachments that exist, written by the runtime. Required for GC. Read by GC.
    #[cfg_attr(feature = "schema", serde(rename = "cni.dev/valid-attachments"))]
    pub valid_attachments: Option<Vec<Attachment>>,

    /// Keys of the Windows dataplane.
    #[cfg_attr(feature = "schema", serde(flatten))]
    pub windows: WindowsConf,
}

/// An attachment that exists.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "schema",
    derive(serde::Serialize, schemars::JsonSchema),
    schemars(inline)
)]
pub struct Attachment {
    /// The container: `CNI_CONTAINERID` of its ADD. Read by GC.
    #[cfg_attr(feature = "schema", serde(rename = "containerID"))]
    pub container_id: String,

    /// The interface: `CNI_IFNAME` of its ADD. Read by GC.
    pub ifname: String,
}

impl FromObject for NetConf {
    fn from_object(object: &Object<'_>) -> Result<NetConf, DecodeError> {
        Ok(NetConf {
            cni_version: object.read_or_default("cniVersion")?,
            name: object.read_or_default("name")?,
            plugin_type: object.read_or_default("type")?,
            ipam: object.read_or_default("ipam")?,
            interface: InterfaceConf::from_object(object)?,
            node: NodeConf::from_object(object)?,
            datastore: DatastoreConf::from_object(object)?,
            log: LogConf::from_object(object)?,
            readiness: ReadinessConf::from_object(object)?,
            policy: object.read_or_default("policy")?,
            kubernetes: object.read_or_default("kubernetes")?,
            feature_control: object.read_or_default("feature_control")?,
            container_settings: object.read_or_default("container_settings")?,
            dataplane_options: object.read_or_default("dataplane_options")?,
            args: object.read_or_default("args")?,
            runtime_config: object.read_or_default("runtimeConfig")?,
            capabilities: object.read_or_default("capabilities")?,
            prev_result: object.read_with("prevResult", |node| {
                node.object().map(|_| node.value.clone())
            })?,
            valid_attachments: object.read("cni.dev/valid-attachments")?,
            windows: WindowsConf::from_object(object)?,
        })
    }
}

impl FromObject for Attachment {
    /// A GC that read a missing key as empty could delete the network of a running container.
    fn from_object(object: &Object<'_>) -> Result<Attachment, DecodeError> {
        Ok(Attachment {
            container_id: object.require("containerID", "the id of a container")?,
            ifname: object.require("ifname", "the name of an interface")?,
        })
    }
}

impl NetConf {
    /// Decodes a configuration, which may lack keys that only CNI calls need.
    ///
    /// # Errors
    /// Code 6 or 7. For a value that is not allowed, the message gives the JSON path and the values
    /// allowed.
    pub fn parse(bytes: &[u8]) -> Result<NetConf, CniError> {
        let document = decode::parse(bytes)
            .map_err(|e| CniError::new(Code::DECODE, format!("{LOAD_CONTEXT}: {e}")))?;
        let root = Node::root("$", &document);
        refuse_list(&root)?;
        NetConf::read(&root)
    }

    pub(crate) fn read(root: &Node<'_>) -> Result<NetConf, CniError> {
        NetConf::from_node(root).map_err(|error| error.with_context(LOAD_CONTEXT))
    }

    /// Decodes `prevResult`, if there is one. `assumed` is the version of a result without
    /// `cniVersion`.
    ///
    /// # Errors
    /// Code 6 or 7, as [`NetConf::parse`].
    pub fn read_prev_result(&self, assumed: Version) -> Result<Option<CniResult>, CniError> {
        let Some(value) = &self.prev_result else {
            return Ok(None);
        };
        let node = Node::root("$.prevResult", value);
        CniResult::from_node(&node, assumed)
            .map(Some)
            .map_err(|error| error.with_context(LOAD_CONTEXT))
    }
}

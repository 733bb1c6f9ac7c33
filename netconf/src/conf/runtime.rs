//! Keys that the runtime adds to the configuration.

use crate::decode::{DecodeError, FromNode, Node};

/// Settings from the runtime.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "schema", derive(serde::Serialize, schemars::JsonSchema), serde(default), schemars(inline))]
pub struct RuntimeConfig {
    /// Resolver settings. Read on Windows only.
    pub dns: RuntimeDns,
}

/// Resolver settings of the runtime.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "schema", derive(serde::Serialize, schemars::JsonSchema), serde(default), schemars(inline))]
pub struct RuntimeDns {
    /// Name servers. Read on Windows only.
    pub servers: Vec<String>,

    /// The local domain. Read on Windows only.
    pub domain: String,

    /// Search domains. Read on Windows only.
    pub searches: Vec<String>,

    /// Resolver options. Read on Windows only.
    pub options: Vec<String>,
}

/// An attachment that exists.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "schema", derive(serde::Serialize, schemars::JsonSchema), schemars(inline))]
pub struct Attachment {
    /// The container: `CNI_CONTAINERID` of its ADD. Read by GC.
    #[cfg_attr(feature = "schema", serde(rename = "containerID"))]
    pub container_id: String,

    /// The interface: `CNI_IFNAME` of its ADD. Read by GC.
    pub ifname: String,
}

impl FromNode for RuntimeConfig {
    fn from_node(node: &Node<'_>) -> Result<RuntimeConfig, DecodeError> {
        Ok(RuntimeConfig { dns: node.object()?.read_or_default("dns")? })
    }
}

impl FromNode for RuntimeDns {
    fn from_node(node: &Node<'_>) -> Result<RuntimeDns, DecodeError> {
        let object = node.object()?;
        Ok(RuntimeDns {
            servers: object.read_or_default("servers")?,
            domain: object.read_or_default("domain")?,
            searches: object.read_or_default("searches")?,
            options: object.read_or_default("options")?,
        })
    }
}

impl FromNode for Attachment {
    /// Requires both keys. A GC that read an attachment as empty would delete the network of a running container.
    fn from_node(node: &Node<'_>) -> Result<Attachment, DecodeError> {
        let object = node.object()?;
        Ok(Attachment {
            container_id: object.require("containerID", "the id of a container")?,
            ifname: object.require("ifname", "the name of an interface")?,
        })
    }
}

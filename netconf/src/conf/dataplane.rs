//! The settings that select a dataplane other than the kernel, optional features, and settings inside the container.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::decode::{DecodeError, FromNode, Node};

/// Settings of a dataplane other than the kernel. Upstream keeps these keys in a map, so they alone are case-sensitive.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "schema", derive(serde::Serialize, schemars::JsonSchema), serde(default), schemars(inline))]
pub struct DataplaneOptions {
    /// `grpc` delegates the interface to a gRPC server. Without it the plugin programs the kernel. Read by ADD, DEL.
    #[cfg_attr(feature = "schema", serde(rename = "type"), schemars(extend("enum" = ["grpc", null])))]
    pub dataplane_type: Option<String>,

    /// Target of the gRPC server, such as `unix:///run/dataplane.sock`; required with `grpc`. Read by ADD, DEL.
    pub socket: Option<String>,

    /// Every option with a string value, including `type` and `socket`. The plugin sends them to the gRPC server
    /// (CNI-234).
    #[cfg_attr(feature = "schema", serde(skip))]
    pub options: BTreeMap<String, String>,
}

impl DataplaneOptions {
    /// Returns the target of the gRPC server, or `None` if the plugin programs the kernel.
    pub fn grpc_socket(&self) -> Option<&str> {
        self.dataplane_type.as_ref().and(self.socket.as_deref())
    }
}

impl FromNode for DataplaneOptions {
    fn from_node(node: &Node<'_>) -> Result<DataplaneOptions, DecodeError> {
        let object = node.object()?;
        let mut conf = DataplaneOptions::default();
        for (key, value) in object.entries() {
            match (key, value.value) {
                (_, Value::Null) => continue,
                ("type", _) => conf.dataplane_type = Some(value.word(&[("grpc", "grpc")], false)?.to_owned()),
                ("socket", _) => conf.socket = Some(String::from_node(&value)?),
                _ => {}
            }
            if let Value::String(text) = value.value {
                conf.options.insert(key.to_owned(), text.clone());
            }
        }
        let socket_given = conf.socket.as_ref().is_some_and(|socket| !socket.is_empty());
        if conf.dataplane_type.is_some() && !socket_given {
            return Err(object.missing("socket", "the target of the gRPC server, as the type is \"grpc\""));
        }
        Ok(conf)
    }
}

/// Features that are off by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "schema", derive(serde::Serialize, schemars::JsonSchema), serde(default), schemars(inline))]
pub struct FeatureControl {
    /// Whether to honor the pod annotation `cni.projectcalico.org/ipAddrsNoIpam`. Read by ADD.
    pub ip_addrs_no_ipam: bool,

    /// Whether to honor the pod annotation `cni.projectcalico.org/floatingIPs`. Read by ADD.
    pub floating_ips: bool,

    /// Whether to restrict the annotations `cni.projectcalico.org/ipAddrs`, `ipv4pools` and `ipv6pools` to pools whose
    /// namespaceSelector selects the pod's namespace, and to addresses that no IPReservation covers. Read by ADD.
    pub restrict_annotations: bool,

    /// Whether to remove the network of running containers that `cni.dev/valid-attachments` does not list. Read by GC.
    pub gc_running_containers: bool,
}

/// Settings inside the container.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "schema", derive(serde::Serialize, schemars::JsonSchema), serde(default), schemars(inline))]
pub struct ContainerSettings {
    /// Whether to enable IP forwarding in the container. Read by ADD, CHECK.
    pub allow_ip_forwarding: bool,
}

impl FromNode for FeatureControl {
    fn from_node(node: &Node<'_>) -> Result<FeatureControl, DecodeError> {
        let object = node.object()?;
        Ok(FeatureControl {
            ip_addrs_no_ipam: object.read_or_default("ip_addrs_no_ipam")?,
            floating_ips: object.read_or_default("floating_ips")?,
            restrict_annotations: object.read_or_default("restrict_annotations")?,
            gc_running_containers: object.read_or_default("gc_running_containers")?,
        })
    }
}

impl FromNode for ContainerSettings {
    fn from_node(node: &Node<'_>) -> Result<ContainerSettings, DecodeError> {
        Ok(ContainerSettings { allow_ip_forwarding: node.object()?.read_or_default("allow_ip_forwarding")? })
    }
}

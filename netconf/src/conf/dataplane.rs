//! The settings that select a dataplane other than the kernel.

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

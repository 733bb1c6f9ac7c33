//! The interface of the container and the dataplane that programs it.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::decode::{DecodeError, FromNode, FromObject, Object, read_fields};

/// Minimum MTU of an Ethernet device in the kernel, in bytes. IPv4 requires this MTU (RFC 791).
pub const MTU_MIN: u32 = 68;

/// Maximum MTU of a veth in the kernel, in bytes.
pub const MTU_MAX: u32 = 65_535;

/// The interface of the container.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(
    feature = "schema",
    derive(serde::Serialize, schemars::JsonSchema),
    serde(default)
)]
pub struct InterfaceConf {
    /// MTU of both ends in bytes, at least 68. 0 uses the file `/var/lib/calico/mtu`, which
    /// calico-node writes, or the kernel's default of 1500 if that file is missing. Read by ADD,
    /// CHECK, STATUS.
    #[cfg_attr(
        feature = "schema",
        schemars(range(max = MTU_MAX), extend("anyOf" = [{ "const": 0 }, { "minimum": MTU_MIN }]))
    )]
    pub mtu: u32,

    /// Whether to fail if the MTU file is missing. Read by ADD, CHECK, STATUS.
    pub require_mtu_file: bool,

    /// Number of transmit and of receive queues of both ends; values below 1 mean 1. Read by ADD.
    #[cfg_attr(feature = "schema", schemars(with = "i64", range(max = 4096)))]
    pub num_queues: u32,

    /// Kind of the device: `veth`, or `netkit`, which falls back to veth if the kernel does not
    /// support it. Default `veth`. Read by ADD.
    pub device_type: DeviceType,

    /// Whether to add 0.0.0.0/0 and ::/0 to the `ipam.routes` of host-local. For pods only. Read by
    /// ADD, CHECK.
    pub include_default_routes: bool,
}

/// Kind of the container's device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "schema",
    derive(serde::Serialize, schemars::JsonSchema),
    serde(rename_all = "lowercase")
)]
pub enum DeviceType {
    /// A veth pair.
    #[default]
    Veth,
    /// A netkit pair in layer 2 mode, or a veth pair if the kernel does not support netkit.
    Netkit,
}

impl DeviceType {
    const WORDS: [(&'static str, DeviceType); 2] =
        [("veth", DeviceType::Veth), ("netkit", DeviceType::Netkit)];
}

impl Default for InterfaceConf {
    fn default() -> InterfaceConf {
        InterfaceConf {
            mtu: 0,
            require_mtu_file: false,
            num_queues: 1,
            device_type: DeviceType::Veth,
            include_default_routes: false,
        }
    }
}

impl FromObject for InterfaceConf {
    fn from_object(object: &Object<'_>) -> Result<InterfaceConf, DecodeError> {
        /// The kernel's limit for `IFLA_NUM_TX_QUEUES`.
        const QUEUES_MAX: i64 = 4096;
        let queues = object.read_with("num_queues", |node| node.integer(i64::MIN..=QUEUES_MAX))?;
        Ok(InterfaceConf {
            mtu: object
                .read_with("mtu", |node| node.zero_or_integer(MTU_MIN..=MTU_MAX))?
                .unwrap_or_default(),
            require_mtu_file: object.read_or_default("require_mtu_file")?,
            num_queues: queues
                .and_then(|queues| u32::try_from(queues).ok())
                .unwrap_or(1)
                .max(1),
            device_type: object
                .read_word("device_type", &DeviceType::WORDS, false)?
                .unwrap_or_default(),
            include_default_routes: object.read_or_default("include_default_routes")?,
        })
    }
}

/// Settings of a dataplane other than the kernel. Upstream keeps these keys in a map, so they alone
/// are case-sensitive.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "schema",
    derive(serde::Serialize, schemars::JsonSchema),
    serde(default),
    schemars(inline)
)]
pub struct DataplaneOptions {
    /// `grpc` delegates the interface to a gRPC server. Without it the plugin programs the kernel.
    /// Read by ADD, DEL, CHECK, GC.
    #[cfg_attr(
        feature = "schema", serde(rename = "type"), schemars(extend("enum" = ["grpc", null]))
    )]
    pub dataplane_type: Option<String>,

    /// Target of the gRPC server, such as `unix:///run/dataplane.sock`; required with `grpc`. Read
    /// by ADD, DEL, CHECK, GC.
    pub socket: Option<String>,

    /// Every option with a string value, including `type` and `socket`. The plugin sends them to
    /// the gRPC server (CNI-234).
    #[cfg_attr(feature = "schema", serde(skip))]
    pub options: BTreeMap<String, String>,
}

impl DataplaneOptions {
    /// Returns the target of the gRPC server, or `None` if the plugin programs the kernel.
    pub fn grpc_socket(&self) -> Option<&str> {
        self.dataplane_type.as_ref().and(self.socket.as_deref())
    }
}

impl FromObject for DataplaneOptions {
    fn from_object(object: &Object<'_>) -> Result<DataplaneOptions, DecodeError> {
        let mut conf = DataplaneOptions::default();
        for (key, value) in object.entries() {
            match (key, value.value) {
                (_, Value::Null) => continue,
                ("type", _) => {
                    conf.dataplane_type = Some(value.word(&[("grpc", "grpc")], false)?.to_owned())
                }
                ("socket", _) => conf.socket = Some(String::from_node(&value)?),
                _ => {}
            }
            if let Value::String(text) = value.value {
                conf.options.insert(key.to_owned(), text.clone());
            }
        }
        let has_socket = conf
            .socket
            .as_ref()
            .is_some_and(|socket| !socket.is_empty());
        if conf.dataplane_type.is_some() && !has_socket {
            return Err(object.missing(
                "socket",
                "the target of the gRPC server, as the type is \"grpc\"",
            ));
        }
        Ok(conf)
    }
}

/// Features that are off by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "schema",
    derive(serde::Serialize, schemars::JsonSchema),
    serde(default),
    schemars(inline)
)]
pub struct FeatureControl {
    /// Whether to honor the pod annotation `cni.projectcalico.org/ipAddrsNoIpam`. Read by ADD,
    /// CHECK.
    pub ip_addrs_no_ipam: bool,

    /// Whether to honor the pod annotation `cni.projectcalico.org/floatingIPs`. Read by ADD.
    pub floating_ips: bool,

    /// Whether to restrict the annotations `cni.projectcalico.org/ipAddrs`, `ipv4pools` and
    /// `ipv6pools` to pools whose namespaceSelector selects the pod's namespace, and to addresses
    /// that no IPReservation covers. The latter also restricts `ipAddrsAnyOf`. Read by ADD.
    pub restrict_annotations: bool,

    /// Whether to restrict the annotations `cni.projectcalico.org/ipv4pools` and `ipv6pools` to
    /// pools whose nodeSelector selects the node. Upstream's plugin ignores the key. Read by ADD.
    pub pools_respect_node_selector: bool,

    /// Whether to remove the network of running containers that `cni.dev/valid-attachments` does
    /// not list. Read by GC.
    pub gc_running_containers: bool,
}

/// Settings inside the container.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "schema",
    derive(serde::Serialize, schemars::JsonSchema),
    serde(default),
    schemars(inline)
)]
pub struct ContainerSettings {
    /// Whether to enable IP forwarding in the container. Read by ADD, CHECK.
    pub allow_ip_forwarding: bool,
}

read_fields!(FeatureControl {
    ip_addrs_no_ipam,
    floating_ips,
    restrict_annotations,
    pools_respect_node_selector,
    gc_running_containers
});
read_fields!(ContainerSettings {
    allow_ip_forwarding
});

//! The interface of the container.

use crate::decode::{DecodeError, FromNode, Node};

/// Minimum MTU of an Ethernet device in the kernel. IPv4 requires it (RFC 791).
const MTU_MIN: u32 = 68;

/// Maximum MTU of a veth in the kernel.
const MTU_MAX: u32 = 65_535;

/// The interface of the container.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "schema", derive(serde::Serialize, schemars::JsonSchema), serde(default))]
pub struct InterfaceConf {
    /// MTU of both ends in bytes, at least 68. 0 uses the file `/var/lib/calico/mtu`, which calico-node writes, or 1500
    /// if that file is missing. Read by ADD, CHECK.
    #[cfg_attr(
        feature = "schema",
        schemars(range(max = MTU_MAX), extend("anyOf" = [{ "const": 0 }, { "minimum": MTU_MIN }]))
    )]
    pub mtu: u32,

    /// Whether to fail if the MTU file is missing. Read by ADD, STATUS.
    pub require_mtu_file: bool,

    /// Number of transmit and of receive queues of both ends; values below 1 mean 1. Read by ADD.
    #[cfg_attr(feature = "schema", schemars(with = "i64", range(max = 4096)))]
    pub num_queues: u32,

    /// Kind of the device: `veth`, or `netkit`, which falls back to veth if the kernel does not support it. Default
    /// `veth`. Read by ADD.
    pub device_type: DeviceType,

    /// Whether to add default routes to the `ipam.routes` of host-local. Read by ADD in Kubernetes with host-local.
    pub include_default_routes: bool,
}

/// Kind of the container's device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "schema", derive(serde::Serialize, schemars::JsonSchema), serde(rename_all = "lowercase"))]
pub enum DeviceType {
    /// A veth pair.
    #[default]
    Veth,
    /// A netkit pair in layer 2 mode, or a veth pair if the kernel does not support netkit.
    Netkit,
}

impl DeviceType {
    /// Values of `device_type`.
    const WORDS: [(&'static str, DeviceType); 2] = [("veth", DeviceType::Veth), ("netkit", DeviceType::Netkit)];
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

impl FromNode for InterfaceConf {
    fn from_node(node: &Node<'_>) -> Result<InterfaceConf, DecodeError> {
        /// The kernel's limit for `IFLA_NUM_TX_QUEUES`.
        const QUEUES_MAX: i64 = 4096;
        let object = node.object()?;
        let queues = object.read_with("num_queues", |node| node.integer(i64::MIN..=QUEUES_MAX))?;
        Ok(InterfaceConf {
            mtu: object.read_with("mtu", |node| node.zero_or_integer(MTU_MIN..=MTU_MAX))?.unwrap_or_default(),
            require_mtu_file: object.read_or_default("require_mtu_file")?,
            num_queues: queues.and_then(|queues| u32::try_from(queues).ok()).unwrap_or(1).max(1),
            device_type: object.read_word("device_type", &DeviceType::WORDS, false)?.unwrap_or_default(),
            include_default_routes: object.read_or_default("include_default_routes")?,
        })
    }
}

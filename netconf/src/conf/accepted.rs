//! Keys that are accepted for compatibility. On Linux, only the labels of a Mesos task and
//! `windows_use_single_network` have an effect.

use crate::decode::{DecodeError, FromObject, Object, read_fields};

/// Arguments from the orchestrator.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "schema",
    derive(serde::Serialize, schemars::JsonSchema),
    serde(default),
    schemars(inline)
)]
pub struct Args {
    /// Arguments from Mesos. For plain containers only. Read by ADD, DEL, CHECK.
    #[cfg_attr(feature = "schema", serde(rename = "org.apache.mesos"))]
    pub mesos: OrgApacheMesos,
}

/// Arguments from Mesos.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "schema",
    derive(serde::Serialize, schemars::JsonSchema),
    serde(default),
    schemars(inline)
)]
pub struct OrgApacheMesos {
    /// The network of the task. For plain containers only. Read by ADD, DEL, CHECK.
    pub network_info: MesosNetworkInfo,
}

/// The network of a Mesos task.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "schema",
    derive(serde::Serialize, schemars::JsonSchema),
    serde(default),
    schemars(inline)
)]
pub struct MesosNetworkInfo {
    /// Name of the network. Not read.
    pub name: String,

    /// Labels of the task. For plain containers only. Read by ADD, DEL, CHECK.
    pub labels: MesosLabels,
}

/// Labels of a Mesos task.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "schema",
    derive(serde::Serialize, schemars::JsonSchema),
    serde(default),
    schemars(inline)
)]
pub struct MesosLabels {
    /// The labels, which are copied to the endpoint. For plain containers only. Read by ADD, DEL,
    /// CHECK.
    pub labels: Vec<MesosLabel>,
}

/// A label of a Mesos task.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "schema",
    derive(serde::Serialize, schemars::JsonSchema),
    serde(default),
    schemars(inline)
)]
pub struct MesosLabel {
    /// The label's key. For plain containers only. Read by ADD, DEL, CHECK.
    pub key: String,

    /// The label's value. For plain containers only. Read by ADD, DEL, CHECK.
    pub value: String,
}

read_fields!(Args {
    mesos: "org.apache.mesos"
});
read_fields!(OrgApacheMesos { network_info });
read_fields!(MesosNetworkInfo { name, labels });
read_fields!(MesosLabels { labels });
read_fields!(MesosLabel { key, value });

/// Keys of the Windows dataplane.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "schema",
    derive(serde::Serialize, schemars::JsonSchema),
    serde(default)
)]
pub struct WindowsConf {
    /// Kind of the overlay network. Read on Windows only.
    pub mode: String,

    /// Prefix of the MAC addresses of the overlay network. Read on Windows only.
    pub vxlan_mac_prefix: String,

    /// Identifier of the overlay network. Read on Windows only.
    pub vxlan_vni: u64,

    /// Seconds for which a deleted pod is remembered; 0 means 600. Read on Windows only.
    pub windows_pod_deletion_timestamp_timeout: i64,

    /// Whether to limit this host to one IPAM block, on every system. Read by ADD of calico-ipam.
    pub windows_use_single_network: bool,

    /// Whether to omit the policy that denies all traffic. Read on Windows only.
    pub windows_disable_default_deny_all_policy: bool,

    /// Whether to return loopback traffic directly. Read on Windows only.
    #[cfg_attr(feature = "schema", serde(rename = "windows_loopback_DSR"))]
    pub windows_loopback_dsr: bool,
}

impl WindowsConf {
    /// Returns the keys that are set but have no effect on this system.
    pub fn ignored(&self) -> impl Iterator<Item = &'static str> {
        [
            ("mode", !self.mode.is_empty()),
            ("vxlan_mac_prefix", !self.vxlan_mac_prefix.is_empty()),
            ("vxlan_vni", self.vxlan_vni != 0),
            (
                "windows_pod_deletion_timestamp_timeout",
                self.windows_pod_deletion_timestamp_timeout != 0,
            ),
            (
                "windows_disable_default_deny_all_policy",
                self.windows_disable_default_deny_all_policy,
            ),
            ("windows_loopback_DSR", self.windows_loopback_dsr),
        ]
        .into_iter()
        .filter_map(|(key, is_set)| is_set.then_some(key))
    }
}

impl FromObject for WindowsConf {
    fn from_object(object: &Object<'_>) -> Result<WindowsConf, DecodeError> {
        Ok(WindowsConf {
            mode: object.read_or_default("mode")?,
            vxlan_mac_prefix: object.read_or_default("vxlan_mac_prefix")?,
            vxlan_vni: object
                .read_with("vxlan_vni", |node| node.integer(0..=u64::MAX))?
                .unwrap_or_default(),
            windows_pod_deletion_timestamp_timeout: object
                .read_with("windows_pod_deletion_timestamp_timeout", |node| {
                    node.integer(i64::MIN..=i64::MAX)
                })?
                .unwrap_or_default(),
            windows_use_single_network: object.read_or_default("windows_use_single_network")?,
            windows_disable_default_deny_all_policy: object
                .read_or_default("windows_disable_default_deny_all_policy")?,
            windows_loopback_dsr: object.read_or_default("windows_loopback_DSR")?,
        })
    }
}

/// Settings from the runtime.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "schema",
    derive(serde::Serialize, schemars::JsonSchema),
    serde(default),
    schemars(inline)
)]
pub struct RuntimeConfig {
    /// Resolver settings. Read on Windows only.
    pub dns: RuntimeDns,
}

/// Resolver settings of the runtime.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "schema",
    derive(serde::Serialize, schemars::JsonSchema),
    serde(default),
    schemars(inline)
)]
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

read_fields!(RuntimeConfig { dns });
read_fields!(RuntimeDns {
    servers,
    domain,
    searches,
    options
});

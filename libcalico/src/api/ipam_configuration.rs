//! IPAMConfiguration: IPAM settings as the v3 API writes them; the etcd engine reads [`crate::ipam::IpamConfig`] instead (DS-26).

use serde::{Deserialize, Serialize};

use super::{Object, Spec, Unknown};

/// IPAM settings as the v3 API writes them; the etcd engine reads [`crate::ipam::IpamConfig`] instead (DS-26).
pub type IpamConfiguration = Object<IpamConfigurationSpec>;

/// `spec` of IPAMConfiguration.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct IpamConfigurationSpec {
    /// Never borrow addresses from another node's block.
    pub strict_affinity: bool,
    /// Most blocks a node may own; 0 is the built-in limit.
    #[serde(skip_serializing_if = "is_zero")]
    #[cfg_attr(feature = "schema", schemars(range(min = 0, max = 1_000_000)))]
    pub max_blocks_per_host: i64,
    /// Whether nodes claim blocks on their own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auto_allocate_blocks: Option<bool>,
    /// Whether a KubeVirt machine keeps its addresses from pod to pod: `Enabled` or `Disabled`.
    #[cfg_attr(feature = "schema", schemars(extend("enum" = ["Enabled", "Disabled"])))]
    #[serde(rename = "kubeVirtVMAddressPersistence", skip_serializing_if = "Option::is_none")]
    pub kube_virt_vm_address_persistence: Option<String>,
    /// Seconds that a released address rests before it is handed out again.
    #[cfg_attr(feature = "schema", schemars(range(min = 0, max = 1200)))]
    #[serde(rename = "ipCooldownSeconds", skip_serializing_if = "is_zero")]
    pub ip_cooldown_seconds: i64,
    /// Everything else.
    #[serde(flatten)]
    pub unknown: Unknown,
}

impl Spec for IpamConfigurationSpec {
    const KIND: &'static str = "IPAMConfiguration";
    const PLURAL: &'static str = "ipamconfigurations";
}

fn is_zero(n: &i64) -> bool {
    *n == 0
}

//! IPAMConfiguration: the IPAM settings of the v3 API. From this object, allocation reads only the
//! persistence of KubeVirt addresses. It reads all other settings as [`crate::ipam::IpamConfig`].
//! On an API server both are the same object; in etcd they are stored under different keys (DS-26).

use serde::{Deserialize, Serialize};

use super::{Object, Unknown};

/// The IPAM settings of the v3 API. Allocation reads only the persistence of KubeVirt addresses in
/// this form, and all other settings as [`crate::ipam::IpamConfig`] (DS-26).
pub type IpamConfiguration = Object<IpamConfigurationSpec>;

/// `spec` of IPAMConfiguration.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct IpamConfigurationSpec {
    /// Whether to forbid borrowing addresses from the blocks of other nodes.
    pub strict_affinity: bool,
    /// Maximum number of blocks with an affinity to one node; 0 is the built-in limit.
    #[serde(skip_serializing_if = "super::meta::is_zero")]
    #[cfg_attr(feature = "schema", schemars(range(min = 0, max = 1_000_000)))]
    pub max_blocks_per_host: i64,
    /// Whether to let nodes claim blocks automatically.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auto_allocate_blocks: Option<bool>,
    /// Persistence of the addresses of a KubeVirt VM from pod to pod: `Enabled` or `Disabled`.
    #[cfg_attr(feature = "schema", schemars(extend("enum" = ["Enabled", "Disabled"])))]
    #[serde(
        rename = "kubeVirtVMAddressPersistence",
        skip_serializing_if = "Option::is_none"
    )]
    pub kube_virt_vm_address_persistence: Option<String>,
    /// Seconds between the release of an address and its next assignment.
    #[cfg_attr(feature = "schema", schemars(range(min = 0, max = 1200)))]
    #[serde(
        rename = "ipCooldownSeconds",
        skip_serializing_if = "super::meta::is_zero"
    )]
    pub ip_cooldown_seconds: i64,
    /// All other fields.
    #[serde(flatten)]
    pub unknown: Unknown,
}

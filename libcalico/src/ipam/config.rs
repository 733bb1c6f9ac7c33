//! [`IpamConfig`]: the cluster-wide settings of the allocator.

use serde::{Deserialize, Serialize};

use crate::api::{IpamConfigurationSpec, Unknown};
use crate::store::Kind;

/// The maximum number of blocks of a node in the pools of one request if the settings name none
/// (IPAM-103).
pub const DEFAULT_BLOCK_LIMIT: usize = 20;

/// Cluster-wide allocator settings. If no object is stored, [`IpamConfig::absent`] applies, which
/// differs from `{}` (IPAM-77).
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct IpamConfig {
    /// Whether to refuse to borrow addresses from blocks that the node does not own.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub strict_affinity: bool,
    /// Whether to claim blocks for nodes automatically.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub auto_allocate_blocks: bool,
    /// The maximum number of blocks per node in the pools of one request; 0 selects
    /// [`DEFAULT_BLOCK_LIMIT`].
    #[serde(
        rename = "maxBlocksPerHost",
        skip_serializing_if = "crate::api::is_zero"
    )]
    pub max_blocks_per_host: i64,
    /// `Enabled` or `None` if a VMI keeps its addresses when its pod is replaced, otherwise
    /// `Disabled`.
    #[serde(
        rename = "kubeVirtVMAddressPersistence",
        skip_serializing_if = "Option::is_none"
    )]
    pub kube_virt_vm_address_persistence: Option<String>,
    /// The time in seconds for which a released address cools down.
    #[serde(
        rename = "ipCooldownSeconds",
        skip_serializing_if = "crate::api::is_zero"
    )]
    pub ip_cooldown_seconds: i64,
    /// Fields that this version does not model.
    #[serde(flatten)]
    pub unknown: Unknown,
}

impl IpamConfig {
    /// Returns the settings that apply if no object is stored.
    pub fn absent() -> Self {
        IpamConfig {
            auto_allocate_blocks: true,
            ..IpamConfig::default()
        }
    }

    /// Returns the settings of the v3 object, without fields that this version does not model.
    pub fn of_v3(spec: &IpamConfigurationSpec) -> Self {
        IpamConfig {
            strict_affinity: spec.strict_affinity,
            auto_allocate_blocks: spec.auto_allocate_blocks.unwrap_or(true),
            max_blocks_per_host: spec.max_blocks_per_host,
            kube_virt_vm_address_persistence: spec.kube_virt_vm_address_persistence.clone(),
            ip_cooldown_seconds: spec.ip_cooldown_seconds,
            ..IpamConfig::default()
        }
    }

    /// Returns the maximum number of blocks of a node (IPAM-103).
    pub fn block_limit(&self) -> u64 {
        match u64::try_from(self.max_blocks_per_host) {
            Ok(0) | Err(_) => DEFAULT_BLOCK_LIMIT as u64,
            Ok(configured) => configured,
        }
    }
}

/// The key of the only [`IpamConfig`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct IpamConfigKey;

impl std::fmt::Display for IpamConfigKey {
    fn fmt(&self, _: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        Ok(())
    }
}

const PATH: &str = "/calico/ipam/v2/config";

impl Kind for IpamConfig {
    const KIND: &'static str = "IPAMConfig";
    type Key = IpamConfigKey;
    type Select = ();

    fn path(_: &IpamConfigKey) -> String {
        PATH.to_owned()
    }

    fn parse_path(path: &str) -> Option<IpamConfigKey> {
        (path == PATH).then_some(IpamConfigKey)
    }

    fn prefix(_: &()) -> String {
        PATH.to_owned()
    }
}

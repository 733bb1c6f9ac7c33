//! [`IpamConfig`]: the settings record that the allocator reads (IPAM-76, IPAM-77).

use serde::{Deserialize, Serialize};

use crate::api::Unknown;
use crate::store::Kind;

/// Cluster-wide allocator settings. An absent record means [`IpamConfig::absent`]; a stored `{}` means all false
/// (DS-34).
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct IpamConfig {
    /// Never borrow from another node's block.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub strict_affinity: bool,
    /// Whether nodes claim blocks on their own.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub auto_allocate_blocks: bool,
    /// Most blocks a node may own in the pools of one request; 0 is the built-in limit of 20 (IPAM-103).
    #[serde(rename = "maxBlocksPerHost", skip_serializing_if = "is_zero")]
    pub max_blocks_per_host: i64,
    /// `Enabled` or `Disabled`.
    #[serde(rename = "kubeVirtVMAddressPersistence", skip_serializing_if = "Option::is_none")]
    pub kube_virt_vm_address_persistence: Option<String>,
    /// Seconds a released address rests; 0 hands it out at once.
    #[serde(rename = "ipCooldownSeconds", skip_serializing_if = "is_zero")]
    pub ip_cooldown_seconds: i64,
    /// Everything else.
    #[serde(flatten)]
    pub unknown: Unknown,
}

impl IpamConfig {
    /// What no record means.
    pub fn absent() -> Self {
        IpamConfig { auto_allocate_blocks: true, ..IpamConfig::default() }
    }
}

fn is_zero(n: &i64) -> bool {
    *n == 0
}

/// The name of the only [`IpamConfig`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct TheConfig;

impl std::fmt::Display for TheConfig {
    fn fmt(&self, _: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        Ok(())
    }
}

const PATH: &str = "/calico/ipam/v2/config";

impl Kind for IpamConfig {
    const KIND: &'static str = "IPAMConfig";
    type Key = TheConfig;
    type Select = ();

    fn path(_: &TheConfig) -> String {
        PATH.to_owned()
    }

    fn parse_path(path: &str) -> Option<TheConfig> {
        (path == PATH).then_some(TheConfig)
    }

    fn prefix(_: &()) -> String {
        PATH.to_owned()
    }
}

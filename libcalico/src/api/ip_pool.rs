//! IPPool: a range that addresses are taken from, and who may take them (DS-47, IPAM-93).

use serde::{Deserialize, Serialize};

use super::{Object, Spec, Unknown};
use crate::net::{Cidr, CidrParseError, IpVersion};

/// A pool of addresses.
pub type IpPool = Object<IpPoolSpec>;

/// `spec` of an IPPool. Fields are as stored; the accessors below give upstream's defaults (IPAM-93).
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct IpPoolSpec {
    /// The range.
    pub cidr: String,
    /// `Never`, `Always` or `CrossSubnet`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub vxlan_mode: String,
    /// `Never`, `Always` or `CrossSubnet`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub ipip_mode: String,
    /// Masquerade traffic that leaves the pools.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub nat_outgoing: bool,
    /// No new addresses from here.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub disabled: bool,
    /// Do not advertise over BGP.
    #[serde(rename = "disableBGPExport", skip_serializing_if = "std::ops::Not::not")]
    pub disable_bgp_export: bool,
    /// Prefix length of a block: 20..=32 or 116..=128 (IPAM-107).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub block_size: Option<u8>,
    /// Which nodes use the pool. Empty selects all.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub node_selector: String,
    /// Which namespaces use the pool. Empty selects all.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub namespace_selector: String,
    /// What addresses may be used for. Empty means workloads and tunnels.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub allowed_uses: Vec<AllowedUse>,
    /// Whether the pool serves requests that do not name it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub assignment_mode: Option<AssignmentMode>,
    /// Everything else.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// What an address is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum AllowedUse {
    /// A pod or container.
    Workload,
    /// A node's tunnel device.
    Tunnel,
    /// A Kubernetes service.
    LoadBalancer,
}

/// Whether a pool serves requests that do not name it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum AssignmentMode {
    /// Yes.
    #[default]
    Automatic,
    /// Only requests that name it.
    Manual,
}

impl Spec for IpPoolSpec {
    const KIND: &'static str = "IPPool";
    const PLURAL: &'static str = "ippools";
}

impl IpPoolSpec {
    /// The range, canonical and masked.
    pub fn range(&self) -> Result<Cidr, CidrParseError> {
        self.cidr.parse()
    }

    /// The block prefix length: 26 or 122 when unset.
    pub fn block_prefix(&self, version: IpVersion) -> u8 {
        match (self.block_size, version) {
            (Some(size), _) if size != 0 => size,
            (_, IpVersion::V4) => 26,
            (_, IpVersion::V6) => 122,
        }
    }

    /// Whether addresses may be used for `purpose`.
    pub fn allows(&self, purpose: AllowedUse) -> bool {
        if self.allowed_uses.is_empty() {
            matches!(purpose, AllowedUse::Workload | AllowedUse::Tunnel)
        } else {
            self.allowed_uses.contains(&purpose)
        }
    }

    /// Whether requests that name no pool may use this one.
    pub fn is_automatic(&self) -> bool {
        self.assignment_mode.unwrap_or_default() == AssignmentMode::Automatic
    }
}

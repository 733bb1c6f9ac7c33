//! IPPool: a range from which addresses are assigned, and the nodes and namespaces that it serves.

use serde::{Deserialize, Serialize};

use super::{Object, StringEnum, Unknown};
use crate::net::{Cidr, CidrParseError, IpVersion};

/// The finalizer by which kube-controllers, in `projectcalico.org/v3`, keeps a deleted pool until
/// its blocks are released.
pub const IP_POOL_FINALIZER: &str = "projectcalico.org/ippool-finalizer";

/// A range from which addresses are assigned.
pub type IpPool = Object<IpPoolSpec>;

/// `spec` of an IPPool. The fields are as stored; `block_prefix`, `allows` and `is_automatic` use
/// upstream's defaults for missing values (IPAM-93).
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct IpPoolSpec {
    /// CIDR of the pool.
    #[cfg_attr(feature = "schema", schemars(length(max = 48), extend("format" = "cidr")))]
    pub cidr: String,
    /// VXLAN between nodes: `Never`, `Always` or `CrossSubnet`.
    #[cfg_attr(feature = "schema", schemars(extend("enum" = ["Never", "Always", "CrossSubnet"])))]
    #[serde(skip_serializing_if = "String::is_empty")]
    pub vxlan_mode: String,
    /// IPIP between nodes: `Never`, `Always` or `CrossSubnet`. IPv4 only.
    #[cfg_attr(feature = "schema", schemars(extend("enum" = ["Never", "Always", "CrossSubnet"])))]
    #[serde(skip_serializing_if = "String::is_empty")]
    pub ipip_mode: String,
    /// Whether to masquerade traffic that leaves the pools.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub nat_outgoing: bool,
    /// Whether to stop assigning new addresses from the pool.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub disabled: bool,
    /// Whether to exclude the pool from BGP advertisements.
    #[serde(
        rename = "disableBGPExport",
        skip_serializing_if = "std::ops::Not::not"
    )]
    pub disable_bgp_export: bool,
    /// Prefix length of a block: 20 to 32 for IPv4, 116 to 128 for IPv6; the default is 26 or 122.
    #[cfg_attr(feature = "schema", schemars(range(min = 0, max = 128)))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub block_size: Option<u8>,
    /// Nodes that use the pool. Empty selects all.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[cfg_attr(feature = "schema", schemars(length(max = 1024)))]
    pub node_selector: String,
    /// Namespaces that use the pool. Empty selects all.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[cfg_attr(feature = "schema", schemars(length(max = 1024)))]
    pub namespace_selector: String,
    /// Purposes for which the pool's addresses may be used. Empty means workloads and tunnels.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(length(max = 10)))]
    pub allowed_uses: Vec<StringEnum<AllowedUse>>,
    /// Mode in which requests use the pool: automatically, or only if they name the pool.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub assignment_mode: Option<StringEnum<AssignmentMode>>,
    /// All other fields.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// Purpose of an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum AllowedUse {
    /// A pod or container.
    Workload,
    /// The tunnel device of a node.
    Tunnel,
    /// A Kubernetes Service.
    LoadBalancer,
}

/// Mode in which requests use a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum AssignmentMode {
    /// Requests that name no pool may use this pool.
    Automatic,
    /// Only requests that name the pool use it.
    Manual,
}

impl IpPoolSpec {
    /// Returns the range, canonical and masked.
    pub fn range(&self) -> Result<Cidr, CidrParseError> {
        self.cidr.parse()
    }

    /// Returns the prefix length of a block. If the pool sets none or 0, this is 26 for IPv4 and
    /// 122 for IPv6.
    pub fn block_prefix(&self, version: IpVersion) -> u8 {
        match (self.block_size, version) {
            (Some(size), _) if size != 0 => size,
            (_, IpVersion::V4) => 26,
            (_, IpVersion::V6) => 122,
        }
    }

    /// Returns true if the pool's addresses may be used for `purpose`: if `allowed_uses` contains
    /// it, or if `allowed_uses` is empty and the purpose is workloads or tunnels.
    pub fn allows(&self, purpose: AllowedUse) -> bool {
        let is_default = matches!(purpose, AllowedUse::Workload | AllowedUse::Tunnel);
        if self.allowed_uses.is_empty() {
            is_default
        } else {
            self.allowed_uses.iter().any(|u| u.is(&purpose))
        }
    }

    /// Returns true if requests that name no pool may use this pool: if the mode is `Automatic` or
    /// missing. Returns false for `Manual` and for a mode that is unknown to this build.
    pub fn is_automatic(&self) -> bool {
        self.assignment_mode
            .as_ref()
            .is_none_or(|mode| mode.is(&AssignmentMode::Automatic))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::net::IpVersion;
    use crate::store::{Answers, Kind, RawEntry, ReadBatch};

    fn stored(uses: serde_json::Value, mode: &str) -> serde_json::Value {
        json!({"cidr": "10.65.0.0/16", "allowedUses": uses, "assignmentMode": mode})
    }

    #[test]
    fn unknown_pool_values_of_a_newer_calico_are_preserved_and_allow_no_use() {
        let value = stored(json!(["Workload", "Gateway"]), "OnDemand");
        let spec: IpPoolSpec = serde_json::from_value(value.clone()).unwrap();
        assert!(spec.allows(AllowedUse::Workload));
        assert!(!spec.allows(AllowedUse::Tunnel) && !spec.allows(AllowedUse::LoadBalancer));
        assert!(!spec.is_automatic());
        assert_eq!(serde_json::to_value(&spec).unwrap(), value);
        let spec: IpPoolSpec =
            serde_json::from_value(stored(json!(["Gateway"]), "Automatic")).unwrap();
        assert!(
            !spec.allows(AllowedUse::Workload),
            "only the use that is not known"
        );
        assert!(spec.is_automatic());
        assert!(
            serde_json::from_value::<IpPoolSpec>(stored(json!([1]), "Manual")).is_err(),
            "no text"
        );
    }

    #[test]
    fn pool_of_a_newer_calico_is_listed() {
        let pool = json!({"apiVersion": "projectcalico.org/v3", "kind": "IPPool",
                "metadata": {"name": "newer"},
            "spec": stored(json!(["Gateway"]), "OnDemand")});
        let mut batch = ReadBatch::new();
        let ticket = batch.list::<IpPool>(&Default::default());
        let path = IpPool::path(&crate::api::ObjectKey::global("newer"));
        let entry = RawEntry {
            path,
            value: pool.to_string().into(),
            revision: crate::store::Revision("1".into()),
        };
        let listed = Answers::new(vec![vec![entry]]).list(&ticket);
        assert_eq!(
            listed
                .iter()
                .map(|entry| entry.value.metadata.name.as_str())
                .collect::<Vec<_>>(),
            ["newer"]
        );
        assert_eq!(
            listed[0].value.spec.range().unwrap().version(),
            IpVersion::V4
        );
    }
}

//! IPAMBlock. Only v3 checks the range and the affinity (DS-54).

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde_json::Value;

use super::custom_resource::CustomResource;
use crate::kubernetes::ApiGroup;

/// `spec` of an IPAMBlock as the API server stores it, with other names than in etcd and with an unused field.
#[derive(JsonSchema)]
#[schemars(rename_all = "camelCase")]
pub struct IpamBlockSpec {
    /// Range of the block.
    pub cidr: String,
    /// Affinity of the block, such as `host:node-1`. Absent in a block without an affinity.
    pub affinity: Option<String>,
    /// Time at which the affinity was created.
    #[schemars(extend("format" = "date-time"))]
    pub affinity_claim_time: Option<String>,
    /// For each address, the index of its entry in the attributes; null for a free address.
    pub allocations: Vec<Option<i64>>,
    /// Positions of the free addresses in the block, in the order of their assignment.
    pub unallocated: Vec<i64>,
    /// Owners of addresses.
    pub attributes: Vec<AllocationAttribute>,
    /// Counter that increases with each write of the block.
    pub sequence_number: Option<i64>,
    /// Sequence number of the write that assigned an address, by the position of the address in the block.
    pub sequence_number_for_allocation: Option<BTreeMap<String, i64>>,
    /// Set just before the block is deleted. Do not set it by hand.
    pub deleted: Option<bool>,
    /// Without effect, but required.
    pub strict_affinity: bool,
}

/// Owner of an address.
#[derive(JsonSchema)]
pub struct AllocationAttribute {
    /// ID of the owner's handle.
    pub handle_id: Option<String>,
    /// Properties of the owner, such as pod and namespace.
    pub secondary: Option<BTreeMap<String, String>>,
    /// Properties of the second owner to which the address is about to move.
    #[schemars(rename = "alternateOwnerAttrs")]
    pub alternate_owner_attrs: Option<BTreeMap<String, String>>,
    /// Time at which the address was released; the address is not assigned again for a while.
    #[schemars(rename = "releasedAt", extend("format" = "date-time"))]
    pub released_at: Option<String>,
}

pub(super) fn definition(group: ApiGroup) -> Value {
    let about = "A block of addresses and who holds them. Kept by address management.";
    CustomResource::new::<IpamBlockSpec>(group, "IPAMBlock", "ipamblocks", about)
        .column("CIDR", "string", ".spec.cidr", "Range of the block")
        .column("Affinity", "string", ".spec.affinity", "Owner of the block")
        .column("ClaimTime", "date", ".spec.affinityClaimTime", "When the owner claimed the block")
        .spec(|spec| {
            spec.at("sequenceNumber").default(0).set("format", "int64");
            spec.at("sequenceNumberForAllocation").each().set("format", "int64");
            if group == ApiGroup::V3 {
                spec.at("cidr").set("format", "cidr");
                spec.at("affinity").set("pattern", r"^(host|virtual):[a-zA-Z0-9\.\-_]+$");
            }
        })
        .definition()
}

//! IPAMBlock (DS-69). Only v3 checks the range and the owner (DS-54).

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde_json::Value;

use super::custom_resource::CustomResource;
use crate::kubernetes::ApiGroup;

/// `spec` of an IPAMBlock as Kubernetes stores it: under names of its own, and with a dead field.
#[derive(JsonSchema)]
#[schemars(rename_all = "camelCase")]
pub struct IpamBlockSpec {
    /// Range of the block.
    pub cidr: String,
    /// Owner of the block, such as `host:node-1`. Absent in a block that nobody owns.
    pub affinity: Option<String>,
    /// When the owner claimed the block.
    #[schemars(extend("format" = "date-time"))]
    pub affinity_claim_time: Option<String>,
    /// For each address in turn, which of the attributes is its own; null where the address is free.
    pub allocations: Vec<Option<i64>>,
    /// The free addresses, by their place in the block, the next one first.
    pub unallocated: Vec<i64>,
    /// Who holds addresses.
    pub attributes: Vec<AllocationAttribute>,
    /// Grows with each write of the block.
    pub sequence_number: Option<i64>,
    /// The number of the write that gave an address away, by the place of the address in the block.
    pub sequence_number_for_allocation: Option<BTreeMap<String, i64>>,
    /// Set just before the block is deleted. Not for people to set.
    pub deleted: Option<bool>,
    /// Of no effect, but required.
    pub strict_affinity: bool,
}

/// Who holds an address.
#[derive(JsonSchema)]
pub struct AllocationAttribute {
    /// Id of the holder's handle.
    pub handle_id: Option<String>,
    /// What is known of the holder, such as pod and namespace.
    pub secondary: Option<BTreeMap<String, String>>,
    /// The same of a second holder, to which the address is about to move.
    #[schemars(rename = "alternateOwnerAttrs")]
    pub alternate_owner_attrs: Option<BTreeMap<String, String>>,
    /// When the address was given back; it rests for a while.
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

//! The kinds of address management: IPAMBlock, BlockAffinity, IPAMHandle, and the settings.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde_json::Value;

use super::custom_resource::CustomResource;
use crate::api::IpamConfigurationSpec;
use crate::kubernetes::ApiGroup;

/// `spec` of an IPAMBlock as the API server stores it, with some other names than in etcd and with
/// an unused field.
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
    /// Sequence number of the block before the write that assigned an address, by the position of
    /// the address.
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

/// Returns the definition of IPAMBlock. Only v3 checks the range and the affinity (DS-54).
pub(super) fn block(group: ApiGroup) -> Value {
    let about = "A block of addresses with the owner of each allocation. Written by IPAM.";
    CustomResource::new::<IpamBlockSpec>(group, "IPAMBlock", "ipamblocks", about)
        .column("CIDR", "string", ".spec.cidr", "Range of the block")
        .column("Affinity", "string", ".spec.affinity", "Owner of the block")
        .column(
            "ClaimTime",
            "date",
            ".spec.affinityClaimTime",
            "Time at which the owner claimed the block",
        )
        .spec(|spec| {
            spec.at("sequenceNumber").default(0).set("format", "int64");
            spec.at("sequenceNumberForAllocation")
                .each()
                .set("format", "int64");
            if group == ApiGroup::V3 {
                spec.at("cidr").set("format", "cidr");
                spec.at("affinity")
                    .set("pattern", r"^(host|virtual):[a-zA-Z0-9\.\-_]+$");
            }
        })
        .definition
}

/// `spec` of a BlockAffinity as the API server stores it, including the data that etcd has in the
/// path.
#[derive(JsonSchema)]
pub struct BlockAffinitySpec {
    /// State of the affinity: `pending`, `confirmed` or `pendingDeletion`.
    pub state: String,
    /// Name of the owner of the block.
    pub node: String,
    /// Type of the owner: `host` or `virtual`. Empty means `host`.
    #[schemars(rename = "type")]
    pub kind: Option<String>,
    /// Range of the block.
    pub cidr: String,
    /// Set just before the affinity is deleted. Do not set it by hand.
    pub deleted: bool,
}

/// Returns the definition. In v1 the mark for deletion is text, and neither the state nor the range
/// is checked (DS-54).
pub(super) fn affinity(group: ApiGroup) -> Value {
    let about = "Assignment of a block of addresses to a node. Written by IPAM.";
    CustomResource::new::<BlockAffinitySpec>(group, "BlockAffinity", "blockaffinities", about)
        .short_names(&["affinity", "affinities"])
        .column("CIDR", "string", ".spec.cidr", "Range of the block")
        .column("Node", "string", ".spec.node", "Owner of the block")
        .column("Type", "string", ".spec.type", "Type of the owner")
        .spec(|spec| match group {
            ApiGroup::CrdV1 => _ = spec.at("deleted").set("type", "string"),
            ApiGroup::V3 => {
                spec.at("cidr").set("format", "cidr");
                spec.at("deleted").default(false);
                spec.at("state")
                    .set("enum", ["", "confirmed", "pending", "pendingDeletion"]);
            }
        })
        .definition
}

/// `spec` of an IPAMHandle as the API server stores it, including the ID from which the name is
/// derived.
#[derive(JsonSchema)]
pub struct IpamHandleSpec {
    /// ID of the handle, in its original case.
    #[schemars(rename = "handleID")]
    pub handle_id: String,
    /// Maximum number of addresses that the owner has in each block.
    pub block: BTreeMap<String, i64>,
    /// Set just before the handle is deleted. Do not set it by hand.
    pub deleted: Option<bool>,
}

pub(super) fn handle(group: ApiGroup) -> Value {
    let about = "Number of addresses that one owner, such as a container, has in each block. \
                 Written by IPAM.";
    CustomResource::new::<IpamHandleSpec>(group, "IPAMHandle", "ipamhandles", about)
        .column("ID", "string", ".spec.handleID", "ID of the handle")
        .definition
}

/// Returns the definition. The kind is IPAMConfig in v1. Only v3 has defaults (DS-46).
pub(super) fn settings(group: ApiGroup) -> Value {
    let about = "Settings of IPAM. The only object is named default.";
    let (kind, plural) = match group {
        ApiGroup::CrdV1 => ("IPAMConfig", "ipamconfigs"),
        ApiGroup::V3 => ("IPAMConfiguration", "ipamconfigurations"),
    };
    let strict = "Whether nodes assign addresses only from their own blocks";
    CustomResource::new::<IpamConfigurationSpec>(group, kind, plural, about)
        .short_names(&["ipamconfig", "ipamconfigs"])
        .column("StrictAffinity", "boolean", ".spec.strictAffinity", strict)
        .column(
            "MaxBlocksPerHost",
            "integer",
            ".spec.maxBlocksPerHost",
            "Maximum number of blocks of a node",
        )
        .column(
            "AutoAllocateBlocks",
            "boolean",
            ".spec.autoAllocateBlocks",
            "Whether nodes claim blocks",
        )
        .spec(|spec| {
            spec.required(&["autoAllocateBlocks", "strictAffinity"]);
            match group {
                ApiGroup::CrdV1 => _ = spec.at("maxBlocksPerHost").set("maximum", i32::MAX),
                ApiGroup::V3 => {
                    spec.at("autoAllocateBlocks").default(true);
                    spec.at("maxBlocksPerHost")
                        .default(0)
                        .set("format", "int32");
                    spec.at("strictAffinity").default(false);
                }
            }
        })
        .definition
}

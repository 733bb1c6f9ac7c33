//! BlockAffinity. In v1 the mark for deletion is text, and neither the state nor the range is checked (DS-54).

use schemars::JsonSchema;
use serde_json::Value;

use super::custom_resource::CustomResource;
use crate::kubernetes::ApiGroup;

/// `spec` of a BlockAffinity as the API server stores it, including the data that etcd has in the path.
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

pub(super) fn definition(group: ApiGroup) -> Value {
    let about = "Which node a block of addresses belongs to. Kept by address management.";
    CustomResource::new::<BlockAffinitySpec>(group, "BlockAffinity", "blockaffinities", about)
        .short_names(&["affinity", "affinities"])
        .column("CIDR", "string", ".spec.cidr", "Range of the block")
        .column("Node", "string", ".spec.node", "Who owns the block")
        .column("Type", "string", ".spec.type", "What the owner is")
        .spec(|spec| match group {
            ApiGroup::CrdV1 => _ = spec.at("deleted").set("type", "string"),
            ApiGroup::V3 => {
                spec.at("cidr").set("format", "cidr");
                spec.at("deleted").default(false);
                spec.at("state").set("enum", ["", "confirmed", "pending", "pendingDeletion"]);
            }
        })
        .definition()
}

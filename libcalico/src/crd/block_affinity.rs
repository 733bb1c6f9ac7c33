//! BlockAffinity (DS-70). In v1 the tombstone is text, and neither state nor range is checked (DS-54).

use schemars::JsonSchema;
use serde_json::Value;

use super::custom_resource::CustomResource;
use crate::kubernetes::ApiGroup;

/// `spec` of a BlockAffinity as Kubernetes stores it: with what etcd has in the path.
#[derive(JsonSchema)]
pub struct BlockAffinitySpec {
    /// How far the claim is: `pending`, `confirmed` or `pendingDeletion`.
    pub state: String,
    /// Who owns the block.
    pub node: String,
    /// What the owner is: `host` or `virtual`. Empty is `host`.
    #[schemars(rename = "type")]
    pub kind: Option<String>,
    /// Range of the block.
    pub cidr: String,
    /// Set just before the affinity is deleted. Not for people to set.
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

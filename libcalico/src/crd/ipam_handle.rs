//! IPAMHandle (DS-71).

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde_json::Value;

use super::custom_resource::CustomResource;
use crate::kubernetes::ApiGroup;

/// `spec` of an IPAMHandle as Kubernetes stores it: with its id, of which the name is made.
#[derive(JsonSchema)]
pub struct IpamHandleSpec {
    /// Id of the handle, in the case that its owner gave it.
    #[schemars(rename = "handleID")]
    pub handle_id: String,
    /// How many addresses the owner holds in each block, at most.
    pub block: BTreeMap<String, i64>,
    /// Set just before the handle is deleted. Not for people to set.
    pub deleted: Option<bool>,
}

pub(super) fn definition(group: ApiGroup) -> Value {
    let about = "In which blocks one owner, such as a container, holds addresses. Kept by address management.";
    CustomResource::new::<IpamHandleSpec>(group, "IPAMHandle", "ipamhandles", about)
        .column("ID", "string", ".spec.handleID", "Id of the handle")
        .definition()
}

//! The definition of IPAMHandle.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde_json::Value;

use super::custom_resource::CustomResource;
use crate::kubernetes::ApiGroup;

/// `spec` of an IPAMHandle as the API server stores it, including the ID from which the name is derived.
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

pub(super) fn definition(group: ApiGroup) -> Value {
    let about = "In which blocks one owner, such as a container, holds addresses. Kept by address management.";
    CustomResource::new::<IpamHandleSpec>(group, "IPAMHandle", "ipamhandles", about)
        .column("ID", "string", ".spec.handleID", "Id of the handle")
        .definition()
}

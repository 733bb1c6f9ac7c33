//! The definition of ClusterInformation.

use serde_json::Value;

use super::custom_resource::CustomResource;
use crate::api::ClusterInformationSpec;
use crate::kubernetes::ApiGroup;

pub(super) fn definition(group: ApiGroup) -> Value {
    let about = "What is true of the cluster as a whole. There is one, called default.";
    CustomResource::new::<ClusterInformationSpec>(group, "ClusterInformation", "clusterinformations", about)
        .short_names(&["clusterinfo", "clusterinfos"])
        .definition()
}

//! IPAMConfig in v1, IPAMConfiguration in v3. Only v3 has defaults (DS-46).

use serde_json::Value;

use super::custom_resource::CustomResource;
use crate::api::IpamConfigurationSpec;
use crate::kubernetes::ApiGroup;

pub(super) fn definition(group: ApiGroup) -> Value {
    let about = "Settings of address management. There is one, called default.";
    let (kind, plural) = match group {
        ApiGroup::CrdV1 => ("IPAMConfig", "ipamconfigs"),
        ApiGroup::V3 => ("IPAMConfiguration", "ipamconfigurations"),
    };
    CustomResource::new::<IpamConfigurationSpec>(group, kind, plural, about)
        .short_names(&["ipamconfig", "ipamconfigs"])
        .column("StrictAffinity", "boolean", ".spec.strictAffinity", "Whether nodes keep to their own blocks")
        .column("MaxBlocksPerHost", "integer", ".spec.maxBlocksPerHost", "Most blocks of a node")
        .column("AutoAllocateBlocks", "boolean", ".spec.autoAllocateBlocks", "Whether nodes claim blocks")
        .spec(|spec| {
            spec.required(&["autoAllocateBlocks", "strictAffinity"]);
            match group {
                ApiGroup::CrdV1 => _ = spec.at("maxBlocksPerHost").set("maximum", i32::MAX),
                ApiGroup::V3 => {
                    spec.at("autoAllocateBlocks").default(true);
                    spec.at("maxBlocksPerHost").default(0).set("format", "int32");
                    spec.at("strictAffinity").default(false);
                }
            }
        })
        .definition()
}

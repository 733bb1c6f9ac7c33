//! IPReservation. Its entries must be CIDRs, although readers also accept single addresses (DS-96).

use serde_json::Value;

use super::custom_resource::CustomResource;
use crate::api::IpReservationSpec;
use crate::kubernetes::ApiGroup;

pub(super) fn definition(group: ApiGroup) -> Value {
    let about = "Ranges from which no address is handed out unasked. Addresses in use stay in use.";
    CustomResource::new::<IpReservationSpec>(group, "IPReservation", "ipreservations", about)
        .spec(|spec| {
            spec.at("reservedCIDRs").set("x-kubernetes-list-type", "set").each().set("format", "cidr");
        })
        .definition()
}

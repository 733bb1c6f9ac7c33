//! HostEndpoint: its required fields, and its lists without duplicates.

use serde_json::{Value, json};

use super::custom_resource::CustomResource;
use crate::api::HostEndpointSpec;
use crate::kubernetes::ApiGroup;

pub(super) fn definition(group: ApiGroup) -> Value {
    let about = "An interface of a host, which policies may select.";
    CustomResource::new::<HostEndpointSpec>(group, "HostEndpoint", "hostendpoints", about)
        .column("Node", "string", ".spec.node", "The host")
        .column("Interface", "string", ".spec.interfaceName", "The interface")
        .spec(|spec| {
            spec.at("expectedIPs").set("x-kubernetes-list-type", "set");
            spec.at("profiles").set("x-kubernetes-list-type", "set");
            let mut ports = spec.at("ports");
            let mut port = ports.each();
            port.required(&["name", "port", "protocol"]);
            port.at("protocol").set("anyOf", json!([{ "type": "integer" }, { "type": "string" }]));
            spec.rule("has(self.node) && self.node != ''", "node must be set").rule(
                "has(self.interfaceName) && self.interfaceName != '' || \
                 has(self.expectedIPs) && self.expectedIPs.size() > 0",
                "interfaceName or expectedIPs must be set",
            );
        })
        .definition()
}

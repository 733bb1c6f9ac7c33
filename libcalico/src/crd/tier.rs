//! Tier. The three built-in tiers must keep their order and default action (DS-97).

use serde_json::Value;

use super::custom_resource::CustomResource;
use crate::api::TierSpec;
use crate::kubernetes::ApiGroup;

/// Name, default action and order of the built-in tiers.
const BUILT_IN: [(&str, &str, u32); 3] =
    [("default", "Deny", 1_000_000), ("kube-admin", "Pass", 1_000), ("kube-baseline", "Pass", 10_000_000)];

pub(super) fn definition(group: ApiGroup) -> Value {
    let about = "A rank of network policies.";
    let mut tier = CustomResource::new::<TierSpec>(group, "Tier", "tiers", about)
        .column("Order", "integer", ".spec.order", "Rank; lower comes first")
        .column("DefaultAction", "string", ".spec.defaultAction", "What becomes of traffic that no rule matches")
        .column("Status", "string", ".status.conditions[?(@.type=='Ready')].reason", "Why the tier is not ready")
        .conditions()
        .spec(|spec| {
            spec.at("defaultAction").default("Deny");
        });
    for (name, action, order) in BUILT_IN {
        let is_kept = |field: &str, value: &str| {
            format!("self.metadata.name != '{name}' || (has(self.spec.{field}) && self.spec.{field} == {value})")
        };
        tier = tier
            .rule(
                &is_kept("defaultAction", &format!("'{action}'")),
                &format!("the tier {name} must have the default action {action}"),
            )
            .rule(&is_kept("order", &format!("{order}.0")), &format!("the tier {name} must have the order {order}"));
    }
    tier.definition()
}

//! [`incorrect`]: the built-in tiers, whose orders and default actions the definition of v3 prescribes (MIG-58).

use libcalico::api::BUILT_IN_TIERS;
use libcalico::kubernetes::{Location, Resource};
use serde_json::Value;

use super::super::requests::{Problem, Requests};

const TIERS: Resource =
    Resource { api_version: "crd.projectcalico.org/v1", kind: "Tier", plural: "tiers", namespaced: false };

/// Returns the reason to wait if v3 would refuse a built-in tier of v1.
pub(super) async fn incorrect(requests: &Requests) -> Result<Option<String>, Problem> {
    let mut corrections = Vec::new();
    for (name, action, order) in BUILT_IN_TIERS {
        if let Some(tier) = requests.get(&Location::global(TIERS, name)).await? {
            corrections.extend(corrections_of(name, action, order, &tier["spec"]));
        }
    }
    corrections.sort();
    // Upstream's text.
    let text = || format!("Correct the following v1 tiers before migration can start: {}", corrections.join("; "));
    Ok((!corrections.is_empty()).then(text))
}

fn corrections_of(name: &str, action: &str, order: u32, spec: &Value) -> Vec<String> {
    let mut corrections = Vec::new();
    if spec["order"].as_f64() != Some(f64::from(order)) {
        corrections.push(format!("tier \"{name}\" must have order {order}"));
    }
    // A tier without an action has the default of the definition.
    let present = spec["defaultAction"].as_str().filter(|action| !action.is_empty()).unwrap_or("Deny");
    if present != action {
        corrections.push(format!("tier \"{name}\" must have defaultAction \"{action}\""));
    }
    corrections
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn order_and_action_must_be_those_of_the_definition_of_v3() {
        let [order, action] =
            ["tier \"t\" must have order 1000", "tier \"t\" must have defaultAction \"Pass\""].map(str::to_owned);
        for (spec, expected) in [
            (json!({ "order": 1000, "defaultAction": "Pass" }), vec![]),
            (json!({ "order": 1000.0, "defaultAction": "Pass" }), vec![]),
            (json!({ "order": 1000.5, "defaultAction": "Pass" }), vec![order.clone()]),
            (json!({ "defaultAction": "Pass" }), vec![order.clone()]),
            (json!({ "order": 1000, "defaultAction": "Deny" }), vec![action.clone()]),
            (json!({ "order": null, "defaultAction": "" }), vec![order, action]),
        ] {
            assert_eq!(corrections_of("t", "Pass", 1000, &spec), expected, "{spec}");
        }
        assert_eq!(corrections_of("default", "Deny", 5, &json!({ "order": 5 })), Vec::<String>::new());
    }
}

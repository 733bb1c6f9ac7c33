//! [`Definitions`]: the CustomResourceDefinitions of both groups, and the built-in tiers, whose
//! orders and default actions the definition of v3 prescribes (MIG-57, MIG-58).

use std::collections::BTreeSet;

use libcalico::api::BUILT_IN_TIERS;
use libcalico::kubernetes::{ApiGroup, Location, Resource};
use libcalico::migration::{MovedKind, cluster_information, definition_name, moved_kinds};
use serde_json::Value;

use super::super::listing;
use super::super::requests::{Problem, Requests};
use super::Checked;

/// Definitions of custom resources.
pub(crate) const DEFINITIONS: Resource = Resource {
    api_version: "apiextensions.k8s.io/v1",
    kind: "CustomResourceDefinition",
    plural: "customresourcedefinitions",
    namespaced: false,
};

const TIERS: Resource = Resource {
    api_version: "crd.projectcalico.org/v1",
    kind: "Tier",
    plural: "tiers",
    namespaced: false,
};

/// Upstream's texts.
const PRE_GA: &str = "cluster serves the pre-GA DatastoreMigration API (v1beta1); apply the v1 CRD \
                      before starting a migration";
const NO_V1: &str = "no v1 CRDs (crd.projectcalico.org) found - nothing to migrate";
const NO_V3: &str =
    "v3 CRDs (projectcalico.org) not installed — apply them before starting migration";

/// The names of the definitions that the API server has.
pub(super) struct Definitions {
    names: BTreeSet<String>,
}

impl Definitions {
    pub(super) async fn read(requests: &Requests) -> Result<Self, Problem> {
        let name = |object: &Value| object["metadata"]["name"].as_str().map(str::to_owned);
        let (names, _) = listing::metadata(requests, &DEFINITIONS, name).await?;
        Ok(Definitions {
            names: names.into_iter().collect(),
        })
    }

    fn has(&self, resource: &Resource) -> bool {
        self.names.contains(&definition_name(resource))
    }

    /// Returns the reason why no migration may begin. A migration that has a finalizer has begun.
    pub(super) fn reason_to_end(&self, context: &Checked<'_>) -> Option<&'static str> {
        let suffix = format!(".{}", ApiGroup::CrdV1.name());
        if context.control.is_pre_ga() && !context.marks.finalizer {
            Some(PRE_GA)
        } else if self.names.iter().any(|name| name.ends_with(&suffix)) {
            None
        } else {
            Some(NO_V1)
        }
    }

    /// Returns the reason to wait if v3 does not define a kind of which v1 has objects.
    pub(super) async fn missing_in_v3(
        &self,
        requests: &Requests,
    ) -> Result<Option<String>, Problem> {
        let information = cluster_information(ApiGroup::V3).resource;
        let mut missing = Vec::new();
        if !self.has(&information) {
            missing.push(information.plural.to_owned());
        }
        for MovedKind { v1, v3, .. } in moved_kinds() {
            if self.has(&v3) || !self.has(&v1) {
                continue;
            }
            let count = listing::metadata(requests, &v1, |_| Some(()))
                .await?
                .0
                .len();
            if count > 0 {
                missing.push(format!("{} ({})", v3.plural, listing::counted(count)));
            }
        }
        let named = missing.join(", ");
        Ok((!missing.is_empty()).then(|| format!("{NO_V3}: {named}")))
    }
}

/// Returns the reason to wait if v3 would refuse a built-in tier of v1.
pub(super) async fn incorrect_tiers(requests: &Requests) -> Result<Option<String>, Problem> {
    let mut corrections = Vec::new();
    for (name, action, order) in BUILT_IN_TIERS {
        if let Some(tier) = requests.get(&Location::global(TIERS, name)).await? {
            corrections.extend(corrections_of(name, action, order, &tier["spec"]));
        }
    }
    corrections.sort();
    // Upstream's text.
    let text = || {
        format!(
            "Correct the following v1 tiers before migration can start: {}",
            corrections.join("; ")
        )
    };
    Ok((!corrections.is_empty()).then(text))
}

fn corrections_of(name: &str, action: &str, order: u32, spec: &Value) -> Vec<String> {
    let mut corrections = Vec::new();
    if spec["order"].as_f64() != Some(f64::from(order)) {
        corrections.push(format!("tier \"{name}\" must have order {order}"));
    }
    // A tier without an action has the default of the definition.
    let present = spec["defaultAction"]
        .as_str()
        .filter(|action| !action.is_empty())
        .unwrap_or("Deny");
    if present != action {
        corrections.push(format!(
            "tier \"{name}\" must have defaultAction \"{action}\""
        ));
    }
    corrections
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn order_and_action_must_be_those_of_the_definition_of_v3() {
        let [order, action] = [
            "tier \"t\" must have order 1000",
            "tier \"t\" must have defaultAction \"Pass\"",
        ]
        .map(str::to_owned);
        for (spec, expected) in [
            (json!({ "order": 1000, "defaultAction": "Pass" }), vec![]),
            (json!({ "order": 1000.0, "defaultAction": "Pass" }), vec![]),
            (
                json!({ "order": 1000.5, "defaultAction": "Pass" }),
                vec![order.clone()],
            ),
            (json!({ "defaultAction": "Pass" }), vec![order.clone()]),
            (
                json!({ "order": 1000, "defaultAction": "Deny" }),
                vec![action.clone()],
            ),
            (
                json!({ "order": null, "defaultAction": "" }),
                vec![order, action],
            ),
        ] {
            assert_eq!(corrections_of("t", "Pass", 1000, &spec), expected, "{spec}");
        }
        assert_eq!(
            corrections_of("default", "Deny", 5, &json!({ "order": 5 })),
            Vec::<String>::new()
        );
    }
}

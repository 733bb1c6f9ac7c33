//! Counts the policies of a tier.

use std::fmt;

use kube::Api;
use kube::api::{ApiResource, DynamicObject, ListParams};
use libcalico::api::{DEFAULT_TIER, Global, InNamespace, PolicyKind, StagedGlobal, StagedInNamespace};

use crate::api_reads;
use crate::controllers::custom_resource::{reconcile_error, resource};
use crate::runtime::ReconcileError;

/// Size of a page of policies.
const PAGE: u32 = 500;

/// Numbers of policies by kind, in upstream's order: global, namespaced, staged global, staged namespaced.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Counts([usize; 4]);

/// Kind, plural for messages, and plural in URLs.
const KINDS: [(&str, &str, &str); 4] = [
    (Global::KIND, "GlobalNetworkPolicies", Global::PLURAL),
    (InNamespace::KIND, "NetworkPolicies", InNamespace::PLURAL),
    (StagedGlobal::KIND, "StagedGlobalNetworkPolicies", StagedGlobal::PLURAL),
    (StagedInNamespace::KIND, "StagedNetworkPolicies", StagedInNamespace::PLURAL),
];

impl Counts {
    /// Returns true if there are no policies.
    pub(super) fn is_empty(&self) -> bool {
        *self == Counts::default()
    }
}

/// Formats the counts, as in `2 GlobalNetworkPolicies, 1 NetworkPolicy`.
impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counted = KINDS.iter().zip(self.0).filter(|(_, count)| *count > 0);
        for (i, ((kind, plural, _), count)) in counted.enumerate() {
            let separator = if i == 0 { "" } else { ", " };
            write!(f, "{separator}{count} {}", if count == 1 { kind } else { plural })?;
        }
        Ok(())
    }
}

/// Counts the stored policies of `tier`. A kind that the API server does not serve has none.
pub(super) async fn count(client: &kube::Client, tier: &str) -> Result<Counts, ReconcileError> {
    let mut counts = Counts::default();
    for (count, (kind, _, plural)) in counts.0.iter_mut().zip(KINDS) {
        *count = count_kind(client.clone(), &resource(kind, plural), tier).await?;
    }
    Ok(counts)
}

async fn count_kind(client: kube::Client, kind: &ApiResource, tier: &str) -> Result<usize, ReconcileError> {
    let policies = Api::<DynamicObject>::all_with(client.clone(), kind);
    let mut page = ListParams::default().limit(PAGE);
    let mut count = 0;
    loop {
        let listed = match policies.list(&page).await {
            Err(kube::Error::Api(status))
                if status.code == 404 && !api_reads::serves(&client, &kind.group, &[&kind.plural]).await? =>
            {
                return Ok(0);
            }
            listed => listed.map_err(|error| reconcile_error(&format!("list {}", kind.plural), &error))?,
        };
        count += listed.items.iter().filter(|policy| tier_of(policy) == tier).count();
        match listed.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => page.continue_token = Some(token),
            None => return Ok(count),
        }
    }
}

/// Returns the tier of a policy: `default` if the policy names none.
fn tier_of(policy: &DynamicObject) -> &str {
    policy.data["spec"]["tier"].as_str().filter(|tier| !tier.is_empty()).unwrap_or(DEFAULT_TIER)
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use serde_json::json;

    use super::*;
    use crate::controllers::testing::refusing_kubernetes;

    /// The policies are on three pages. The last page is refused once, because its position in the list has expired.
    #[tokio::test]
    async fn policies_are_counted_page_by_page_and_never_in_part() {
        let (asked, times) = (Arc::<Mutex<Vec<String>>>::default(), Arc::new(Mutex::new(1)));
        let notes = asked.clone();
        let kubernetes = refusing_kubernetes(move |uri| {
            let policies = |token: &str| {
                let items = ["t", "t", "other"].map(|tier| json!({"metadata": {"name": "p"}, "spec": {"tier": tier}}));
                Ok(json!({"kind": "PolicyList", "metadata": {"continue": token}, "items": items}))
            };
            match uri.path() {
                path if path.ends_with("/globalnetworkpolicies") => {}
                "/apis" => {
                    let groups =
                        json!([{"name": "projectcalico.org", "versions": [{"groupVersion": "projectcalico.org/v3"}]}]);
                    return Ok(json!({"kind": "APIGroupList", "groups": groups}));
                }
                "/apis/projectcalico.org/v3" => {
                    let kinds = json!([{"name": "globalnetworkpolicies"}]);
                    let version = "projectcalico.org/v3";
                    return Ok(json!({"kind": "APIResourceList", "groupVersion": version, "resources": kinds}));
                }
                _ => return Err(404),
            }
            let query = uri.query().unwrap_or_default();
            notes.lock().unwrap().push(query.to_owned());
            match query.split("continue=").nth(1) {
                None => policies("two"),
                Some("two") => policies("three"),
                Some(_) if std::mem::take(&mut *times.lock().unwrap()) > 0 => Err(410),
                Some(_) => policies(""),
            }
        });
        assert!(matches!(count(&kubernetes, "t").await, Err(ReconcileError::Retry(_))));
        assert_eq!(count(&kubernetes, "t").await.unwrap(), Counts([6, 0, 0, 0]));
        let begun = asked.lock().unwrap().iter().filter(|query| !query.contains("continue")).count();
        assert_eq!(begun, 2, "it is begun anew");
        assert!(asked.lock().unwrap().iter().all(|query| query.contains("limit=500")), "{asked:?}");
    }

    /// The cases of upstream's TestPolicyCounts_Summary.
    #[test]
    fn counts_in_words() {
        for (counts, text) in [
            ([2, 1, 0, 0], "2 GlobalNetworkPolicies, 1 NetworkPolicy"),
            (
                [1, 2, 1, 2],
                "1 GlobalNetworkPolicy, 2 NetworkPolicies, 1 StagedGlobalNetworkPolicy, 2 StagedNetworkPolicies",
            ),
            ([0, 0, 2, 1], "2 StagedGlobalNetworkPolicies, 1 StagedNetworkPolicy"),
            ([0, 0, 0, 0], ""),
        ] {
            assert_eq!(Counts(counts).to_string(), text);
            assert_eq!(Counts(counts).is_empty(), text.is_empty());
        }
    }

    #[test]
    fn a_policy_without_tier_is_of_the_default_one() {
        let policy = |spec: serde_json::Value| DynamicObject {
            types: None,
            metadata: Default::default(),
            data: serde_json::json!({ "spec": spec }),
        };
        for (spec, tier) in
            [("{}", "default"), (r#"{"tier":""}"#, "default"), (r#"{"tier":"t"}"#, "t"), ("null", "default")]
        {
            assert_eq!(tier_of(&policy(serde_json::from_str(spec).unwrap())), tier);
        }
    }
}

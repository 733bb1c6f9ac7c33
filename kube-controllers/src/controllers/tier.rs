//! Finalizers of tiers, for `projectcalico.org/v3` only: they keep a tier that is being deleted
//! until its policies are gone.
//!
//! Policies are listed when a tier is being deleted, and not watched: policies are many, and tiers
//! are rarely deleted.

use std::fmt;
use std::time::Duration;

use datastore::kubernetes::{ListPage, ObjectRequest};
use libcalico::api::{
    DEFAULT_TIER, Global, InNamespace, ObjectKey, PolicyKind, StagedGlobal, StagedInNamespace,
    Tier, TierSpec,
};
use libcalico::kubernetes::{ContinueTokens, Resource};
use libcalico::store::Entry;
use serde_json::Value;
use time::OffsetDateTime;

use super::cached::{CachedController, CachedReconcile, SharedCache};
use super::custom_resource::{
    CustomResources, StatusCondition, reconcile_error, resource, with_finalizer, without_finalizer,
};
use crate::api_reads;
use crate::context::Context;
use crate::runtime::{NextReconcile, Reconcile, ReconcileError};
use crate::settings::ControllerName;
use crate::watches::{Cache, Watches};

/// Finalizer that keeps a tier while it has policies.
const FINALIZER: &str = "projectcalico.org/tier-controller";

/// Delay before the policies of a tier that is being deleted are counted again.
const RECHECK_INTERVAL: Duration = Duration::from_secs(5);

/// The controller. Its keys are names of tiers.
pub type Tiers = CachedController<TierReconciler>;

/// The reconciler of one tier.
pub struct TierReconciler {
    kubernetes: kube::Client,
    objects: CustomResources,
    tiers: SharedCache<Cache<ObjectKey, Entry<Tier>>>,
}

impl CachedReconcile for TierReconciler {
    type Cache = Cache<ObjectKey, Entry<Tier>>;
    const CONTROLLER: Option<ControllerName> = None;

    fn subscribe(controller: &Tiers, watches: &mut Watches) {
        controller.subscribe(&mut watches.tiers, |tiers, event| {
            tiers.apply(event, |entry| Some(entry.clone()))
        });
    }

    fn new(context: &Context, controller: &Tiers) -> Self {
        let objects = CustomResources::new::<TierSpec>(context.kubernetes.clone());
        TierReconciler {
            kubernetes: context.kubernetes.clone(),
            objects,
            tiers: controller.cache.clone(),
        }
    }

    fn all_keys(tiers: &Self::Cache) -> Vec<ObjectKey> {
        tiers.iter().map(|(key, _)| key.clone()).collect()
    }
}

impl Reconcile for TierReconciler {
    const NAME: &'static str = "tier";
    type Key = ObjectKey;

    async fn reconcile(&self, key: &ObjectKey) -> Result<NextReconcile, ReconcileError> {
        let cached = self.tiers.lock().get(key).cloned();
        let Some(Entry {
            value: tier,
            revision,
            ..
        }) = cached
        else {
            return Ok(NextReconcile::AwaitChange);
        };
        let version = revision.resource_version();
        if tier.metadata.deletion_timestamp.is_none() {
            if let Some(finalizers) = with_finalizer(&tier, FINALIZER) {
                self.objects
                    .write_finalizers(&key.name, version, &finalizers)
                    .await?;
            }
            return Ok(NextReconcile::AwaitChange);
        }
        let Some(others) = without_finalizer(&tier, FINALIZER) else {
            return Ok(NextReconcile::AwaitChange);
        };
        let counts = count_policies(&self.kubernetes, &key.name).await?;
        if counts.is_empty() {
            self.objects
                .write_finalizers(&key.name, version, &others)
                .await?;
            return Ok(NextReconcile::AwaitChange);
        }
        let message = format!("Waiting for policies to be removed: {counts}");
        let waiting = StatusCondition {
            kind: "Ready",
            is_true: false,
            reason: "Terminating",
            message,
        };
        // The condition is compared with the object that the watch delivered, so that a failed
        // write is retried. Upstream changes its cached object before the write, and so never
        // retries (KC-542).
        if let Some(conditions) =
            waiting.merged_into(tier.status.as_ref(), OffsetDateTime::now_utc())
        {
            self.objects
                .write_conditions(&key.name, version, &conditions)
                .await?;
        }
        Ok(NextReconcile::After(RECHECK_INTERVAL))
    }
}

const PAGE_SIZE: &str = "500";
/// The group of the policies.
const GROUP: &str = "projectcalico.org";

/// Numbers of policies by kind, in upstream's order: global, namespaced, staged global, staged
/// namespaced.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct PolicyCounts([usize; 4]);

/// Kind, plural for messages, and plural in URLs.
const KINDS: [(&str, &str, &str); 4] = [
    (Global::KIND, "GlobalNetworkPolicies", Global::PLURAL),
    (InNamespace::KIND, "NetworkPolicies", InNamespace::PLURAL),
    (
        StagedGlobal::KIND,
        "StagedGlobalNetworkPolicies",
        StagedGlobal::PLURAL,
    ),
    (
        StagedInNamespace::KIND,
        "StagedNetworkPolicies",
        StagedInNamespace::PLURAL,
    ),
];

impl PolicyCounts {
    fn is_empty(&self) -> bool {
        *self == PolicyCounts::default()
    }
}

/// Formats the counts, as in `2 GlobalNetworkPolicies, 1 NetworkPolicy`.
impl fmt::Display for PolicyCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counted = KINDS.iter().zip(self.0).filter(|(_, count)| *count > 0);
        for (i, ((kind, plural, _), count)) in counted.enumerate() {
            let separator = if i == 0 { "" } else { ", " };
            write!(
                f,
                "{separator}{count} {}",
                if count == 1 { kind } else { plural }
            )?;
        }
        Ok(())
    }
}

/// Counts the stored policies of `tier`. A kind that the API server does not serve has none.
async fn count_policies(client: &kube::Client, tier: &str) -> Result<PolicyCounts, ReconcileError> {
    let mut counts = PolicyCounts::default();
    for (count, (kind, _, plural)) in counts.0.iter_mut().zip(KINDS) {
        *count = count_kind(client, resource(kind, plural), tier).await?;
    }
    Ok(counts)
}

async fn count_kind(
    client: &kube::Client,
    kind: Resource,
    tier: &str,
) -> Result<usize, ReconcileError> {
    let first = ObjectRequest::list(&kind, None).query("limit", PAGE_SIZE);
    let (mut request, mut tokens) = (first.clone(), ContinueTokens::default());
    let mut count = 0;
    loop {
        let page: ListPage<Value> = match request.page(client).await {
            Err(error)
                if error.code() == Some(404)
                    && !api_reads::serves(client, GROUP, &[kind.plural]).await? =>
            {
                return Ok(0);
            }
            listed => {
                listed.map_err(|error| reconcile_error(&format!("list {}", kind.plural), &error))?
            }
        };
        count += page
            .items
            .iter()
            .filter(|policy| tier_of(policy) == tier)
            .count();
        let repeated =
            |error| ReconcileError::Retry(format!("cannot list {}: {error}", kind.plural));
        match tokens.record(page.next).map_err(repeated)? {
            Some(token) => request = first.clone().query("continue", &token),
            None => return Ok(count),
        }
    }
}

/// Returns the tier of a policy: `default` if the policy names none.
fn tier_of(policy: &Value) -> &str {
    policy["spec"]["tier"]
        .as_str()
        .filter(|tier| !tier.is_empty())
        .unwrap_or(DEFAULT_TIER)
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use serde_json::json;

    use super::*;
    use crate::controllers::testing::refusing_kubernetes;

    #[tokio::test]
    async fn page_of_policies_that_names_an_earlier_page_as_the_next_one_is_a_failure() {
        let kubernetes = refusing_kubernetes(|uri| {
            let next = if uri.query().unwrap_or_default().contains("continue=x") {
                "y"
            } else {
                "x"
            };
            Ok(
                json!({"kind": "GlobalNetworkPolicyList", "metadata": {"continue": next}, "items": []}),
            )
        });
        assert!(matches!(
            count_policies(&kubernetes, "t").await,
            Err(ReconcileError::Retry(_))
        ));
    }

    /// The policies are on three pages. The last page is refused once, because its position in the
    /// list has expired.
    #[tokio::test]
    async fn policies_are_counted_over_all_pages_or_not_at_all() {
        let (asked, times) = (
            Arc::<Mutex<Vec<String>>>::default(),
            Arc::new(Mutex::new(1)),
        );
        let notes = asked.clone();
        let kubernetes = refusing_kubernetes(move |uri| {
            let policies = |token: &str| {
                let items = ["t", "t", "other"]
                    .map(|tier| json!({"metadata": {"name": "p"}, "spec": {"tier": tier}}));
                Ok(
                    json!({"kind": "GlobalNetworkPolicyList", "metadata": {"continue": token}, "items": items}),
                )
            };
            match uri.path() {
                path if path.ends_with("/globalnetworkpolicies") => {}
                "/apis" => {
                    let groups = json!([{
                        "name": "projectcalico.org",
                        "versions": [{"groupVersion": "projectcalico.org/v3"}],
                    }]);
                    return Ok(json!({"kind": "APIGroupList", "groups": groups}));
                }
                "/apis/projectcalico.org/v3" => {
                    let kinds = json!([{"name": "globalnetworkpolicies"}]);
                    let version = "projectcalico.org/v3";
                    return Ok(json!({
                        "kind": "APIResourceList", "groupVersion": version, "resources": kinds,
                    }));
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
        assert!(matches!(
            count_policies(&kubernetes, "t").await,
            Err(ReconcileError::Retry(_))
        ));
        assert_eq!(
            count_policies(&kubernetes, "t").await.unwrap(),
            PolicyCounts([6, 0, 0, 0])
        );
        let begun = asked
            .lock()
            .unwrap()
            .iter()
            .filter(|query| !query.contains("continue"))
            .count();
        assert_eq!(begun, 2, "it is begun anew");
        assert!(
            asked
                .lock()
                .unwrap()
                .iter()
                .all(|query| query.contains("limit=500")),
            "{asked:?}"
        );
    }

    /// The cases of upstream's TestPolicyCounts_Summary.
    #[test]
    fn policy_counts_print_as_upstreams_summary() {
        for (counts, text) in [
            ([2, 1, 0, 0], "2 GlobalNetworkPolicies, 1 NetworkPolicy"),
            (
                [1, 2, 1, 2],
                "1 GlobalNetworkPolicy, 2 NetworkPolicies, 1 StagedGlobalNetworkPolicy, 2 \
                 StagedNetworkPolicies",
            ),
            (
                [0, 0, 2, 1],
                "2 StagedGlobalNetworkPolicies, 1 StagedNetworkPolicy",
            ),
            ([0, 0, 0, 0], ""),
        ] {
            assert_eq!(PolicyCounts(counts).to_string(), text);
            assert_eq!(PolicyCounts(counts).is_empty(), text.is_empty());
        }
    }

    #[test]
    fn policy_without_a_tier_belongs_to_the_default_tier() {
        let policy = |spec: Value| json!({ "spec": spec });
        for (spec, tier) in [
            ("{}", "default"),
            (r#"{"tier":""}"#, "default"),
            (r#"{"tier":"t"}"#, "t"),
            ("null", "default"),
        ] {
            assert_eq!(tier_of(&policy(serde_json::from_str(spec).unwrap())), tier);
        }
    }
}

//! [`MisnamedPolicies`]: lists the policies to rename.

use datastore::Datastore;
use datastore::watch::{ObjectChange, WatchFailure};
use libcalico::api::{
    DEFAULT_TIER, Global, InNamespace, Object, ObjectKey, ObjectSelect, PolicyKind, PolicySpec, Spec, StagedGlobal,
    StagedInNamespace,
};
use libcalico::store::Entry;

/// The controller's name in logs and metrics.
pub(super) const NAME: &str = "policy-names";

/// Policies of the default tier whose stored names differ from their own names (KC-281).
pub(super) struct MisnamedPolicies {
    pub(super) policies: Vec<StoredPolicy<InNamespace>>,
    pub(super) global: Vec<StoredPolicy<Global>>,
    pub(super) staged: Vec<StoredPolicy<StagedInNamespace>>,
    pub(super) staged_global: Vec<StoredPolicy<StagedGlobal>>,
}

pub(super) type StoredPolicy<K> = Entry<Object<PolicySpec<K>>>;

impl MisnamedPolicies {
    pub(super) async fn read(calico: &Datastore) -> Result<Self, WatchFailure> {
        Ok(MisnamedPolicies {
            policies: list_misnamed(calico).await?,
            global: list_misnamed(calico).await?,
            staged: list_misnamed(calico).await?,
            staged_global: list_misnamed(calico).await?,
        })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.policies.is_empty() && self.global.is_empty() && self.staged.is_empty() && self.staged_global.is_empty()
    }
}

/// Lists the misnamed policies of one kind, page by page. A kind that the API server does not serve has none.
/// Unreadable policies are skipped.
async fn list_misnamed<K: PolicyKind>(calico: &Datastore) -> Result<Vec<StoredPolicy<K>>, WatchFailure> {
    let mut pages = calico.pages::<Object<PolicySpec<K>>>(ObjectSelect::default());
    let mut found = Vec::new();
    loop {
        match pages.next().await {
            Ok(Some(page)) => found.extend(page.into_iter().filter_map(readable).filter(is_misnamed)),
            Ok(None) | Err(WatchFailure::Missing(_)) => return Ok(found),
            Err(failure) => return Err(failure),
        }
    }
}

fn readable<K: PolicyKind>(change: ObjectChange<StoredPolicy<K>, ObjectKey>) -> Option<StoredPolicy<K>> {
    match change {
        ObjectChange::Upsert(entry) => Some(entry),
        ObjectChange::Unreadable { name, reason, .. } => {
            tracing::warn!(controller = NAME, kind = K::KIND, name, "cannot be read: {reason}");
            None
        }
        ObjectChange::Delete(_) => None,
    }
}

/// Returns true if the policy has to be renamed. A policy that is being deleted is left alone, so that it is not
/// created again.
pub(super) fn is_misnamed<K: PolicyKind>(policy: &StoredPolicy<K>) -> bool {
    policy.value.spec.tier() == Some(DEFAULT_TIER)
        && policy.key.name != policy.value.metadata.name
        && policy.value.metadata.deletion_timestamp.is_none()
}

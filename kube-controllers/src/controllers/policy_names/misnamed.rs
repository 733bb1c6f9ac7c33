//! [`MisnamedPolicies`]: lists the policies to rename. [`DuplicatePolicy`]: a policy that exists
//! twice, under its old name and its own (`metadata.name` of the policy).
//!
//! An interrupted rename leaves both policies, and users may change either. Upstream keeps the new
//! policy whatever its content (KC-282). Here the policy that was written last, by the order of the
//! revisions, is kept; both stay if the order is unknown.

use std::collections::BTreeMap;

use datastore::Datastore;
use datastore::watch::{ObjectChange, WatchFailure};
use libcalico::api::{
    DEFAULT_TIER, Global, InNamespace, Object, ObjectKey, ObjectMeta, ObjectSelect, PolicyKind,
    PolicySpec, Spec, StagedGlobal, StagedInNamespace,
};
use libcalico::store::{Entry, Revision};

pub(super) const NAME: &str = "policy-names";

/// Policies of the default tier whose stored names differ from their own names (KC-281), except
/// those that are being deleted.
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
        self.policies.is_empty()
            && self.global.is_empty()
            && self.staged.is_empty()
            && self.staged_global.is_empty()
    }
}

/// Lists the misnamed policies of one kind. A kind that the API server does not serve has none.
/// Unreadable policies are skipped.
async fn list_misnamed<K: PolicyKind>(
    calico: &Datastore,
) -> Result<Vec<StoredPolicy<K>>, WatchFailure> {
    let mut pages = calico.pages::<Object<PolicySpec<K>>>(ObjectSelect::default());
    let mut misnamed = Vec::new();
    loop {
        match pages.next().await {
            Ok(Some(page)) => {
                misnamed.extend(page.into_iter().filter_map(readable).filter(is_misnamed))
            }
            Ok(None) | Err(WatchFailure::Missing(_)) => return Ok(misnamed),
            Err(failure) => return Err(failure),
        }
    }
}

fn readable<K: PolicyKind>(
    change: ObjectChange<StoredPolicy<K>, ObjectKey>,
) -> Option<StoredPolicy<K>> {
    match change {
        ObjectChange::Upsert(entry) => Some(entry),
        ObjectChange::Unreadable { name, reason, .. } => {
            tracing::warn!(
                controller = NAME,
                kind = K::KIND,
                name,
                "not checking the name of an unreadable policy: {reason}"
            );
            None
        }
        ObjectChange::Delete(_) => None,
    }
}

/// Returns true if the policy has to be renamed. A policy that is being deleted is left alone, so
/// that it is not created again.
pub(super) fn is_misnamed<K: PolicyKind>(policy: &StoredPolicy<K>) -> bool {
    policy.value.spec.tier() == Some(DEFAULT_TIER)
        && policy.key.name != policy.value.metadata.name
        && policy.value.metadata.deletion_timestamp.is_none()
}

/// The relation of the policy under its own name to the policy under the old name. `V` is a policy.
#[derive(Debug, PartialEq)]
pub(super) enum DuplicatePolicy<V> {
    /// The new policy has the same content, or was written later.
    Current,
    /// The old policy was written later. This value has to replace the new policy.
    Outdated(Box<V>),
    Terminating,
    /// The policies differ, and their revisions cannot be compared.
    Undecidable,
}

impl<K: PolicyKind> DuplicatePolicy<Object<PolicySpec<K>>> {
    pub(super) fn compare(old: &StoredPolicy<K>, new: &StoredPolicy<K>) -> Self {
        if new.value.metadata.deletion_timestamp.is_some() {
            return DuplicatePolicy::Terminating;
        }
        let mut value = old.value.clone();
        // The new policy keeps its identity when it gets the content of the old policy.
        value.metadata.uid = new.value.metadata.uid.clone();
        value.metadata.creation_timestamp = new.value.metadata.creation_timestamp.clone();
        if user_fields(&value) == user_fields(&new.value) {
            return DuplicatePolicy::Current;
        }
        match (
            revision_number(&old.revision),
            revision_number(&new.revision),
        ) {
            (Some(old), Some(new)) if old < new => DuplicatePolicy::Current,
            (Some(_), Some(_)) => DuplicatePolicy::Outdated(Box::new(value)),
            _ => DuplicatePolicy::Undecidable,
        }
    }
}

fn user_fields<K: PolicyKind>(
    policy: &Object<PolicySpec<K>>,
) -> (&PolicySpec<K>, [&BTreeMap<String, String>; 2]) {
    let ObjectMeta {
        labels,
        annotations,
        ..
    } = &policy.metadata;
    (&policy.spec, [labels, annotations])
}

fn revision_number(revision: &Revision) -> Option<u128> {
    revision.resource_version().parse().ok()
}

#[cfg(test)]
mod tests {
    use libcalico::api::{InNamespace, NetworkPolicy, ObjectKey};
    use serde_json::{Value, json};

    use super::*;

    fn stored(revision: &str, change: Value) -> StoredPolicy<InNamespace> {
        let mut policy = json!({
            "metadata": {"name": "a", "namespace": "ns", "uid": revision}, "spec": {"order": 1},
        });
        for (field, value) in change.as_object().unwrap() {
            policy[field]
                .as_object_mut()
                .unwrap()
                .extend(value.as_object().unwrap().clone());
        }
        let value: NetworkPolicy = serde_json::from_value(policy).unwrap();
        StoredPolicy {
            key: ObjectKey::namespaced("ns", "any"),
            value,
            revision: Revision(revision.into()),
        }
    }

    #[test]
    fn duplicate_policy_with_the_newer_revision_wins() {
        let same = json!({});
        for other in [
            json!({"spec": {"order": 2}}),
            json!({"spec": {"yet": {"to": "come"}}}),
            json!({"metadata": {"labels": {"a": "b"}}}),
            json!({"metadata": {"annotations": {"a": "b"}}}),
        ] {
            let of = |old, new| {
                DuplicatePolicy::compare(&stored(old, other.clone()), &stored(new, same.clone()))
            };
            assert_eq!(of("9", "10"), DuplicatePolicy::Current, "{other}");
            assert_eq!(of("9@u", "10@v{}"), DuplicatePolicy::Current, "{other}");
            let DuplicatePolicy::Outdated(value) = of("10", "9") else {
                panic!("{other}")
            };
            assert_eq!(value.metadata.uid, "9", "the object stays who it is");
            let mut expected = stored("9", other.clone()).value;
            expected.metadata.resource_version = value.metadata.resource_version.clone();
            assert_eq!(*value, expected);
            assert_eq!(of("ten", "9"), DuplicatePolicy::Undecidable);
        }
    }

    #[test]
    fn identical_duplicate_policy_is_accepted_in_any_order() {
        for (old, new) in [("9", "10"), ("10", "9"), ("ten", "nine")] {
            assert_eq!(
                DuplicatePolicy::compare(&stored(old, json!({})), &stored(new, json!({}))),
                DuplicatePolicy::Current
            );
        }
    }

    #[test]
    fn duplicate_policy_that_is_being_deleted_is_no_successor() {
        let going = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}});
        assert_eq!(
            DuplicatePolicy::compare(&stored("1", json!({})), &stored("2", going)),
            DuplicatePolicy::Terminating
        );
    }
}

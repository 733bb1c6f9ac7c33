//! [`DuplicatePolicy`]: a policy that exists twice, under its old name and its own.
//!
//! An interrupted rename leaves both, and until it is completed users may change either. Upstream keeps the new policy
//! whatever its content, and a change of the old policy is lost (KC-282). Here the policy that was written last is
//! kept. Revisions show the order: for one kind they increase, in etcd and in an API server.

use std::collections::BTreeMap;

use libcalico::api::{Object, ObjectMeta, PolicyKind, PolicySpec};
use libcalico::store::Revision;

use super::misnamed::StoredPolicy;

/// The relation of the policy under its own name to the policy under the old name. `V` is a policy.
#[derive(Debug, PartialEq)]
pub(super) enum DuplicatePolicy<V> {
    /// The new policy has the same content, or was written later.
    Right,
    /// The old policy was written later. This value has to replace the new policy.
    Outdated(Box<V>),
    /// The new policy is being deleted.
    Going,
    /// The policies differ, and their revisions cannot be compared.
    Unclear,
}

impl<K: PolicyKind> DuplicatePolicy<Object<PolicySpec<K>>> {
    /// Compares `old` with `new`, the policy under its own name.
    pub(super) fn compare(old: &StoredPolicy<K>, new: &StoredPolicy<K>) -> Self {
        if new.value.metadata.deletion_timestamp.is_some() {
            return DuplicatePolicy::Going;
        }
        let mut value = old.value.clone();
        // The object keeps its identity.
        value.metadata.uid = new.value.metadata.uid.clone();
        value.metadata.creation_timestamp = new.value.metadata.creation_timestamp.clone();
        if user_parts(&value) == user_parts(&new.value) {
            return DuplicatePolicy::Right;
        }
        match (version_number(&old.revision), version_number(&new.revision)) {
            (Some(old), Some(new)) if old < new => DuplicatePolicy::Right,
            (Some(_), Some(_)) => DuplicatePolicy::Outdated(Box::new(value)),
            _ => DuplicatePolicy::Unclear,
        }
    }
}

/// Returns the parts of a policy that users write.
fn user_parts<K: PolicyKind>(policy: &Object<PolicySpec<K>>) -> (&PolicySpec<K>, [&BTreeMap<String, String>; 2]) {
    let ObjectMeta { labels, annotations, .. } = &policy.metadata;
    (&policy.spec, [labels, annotations])
}

fn version_number(revision: &Revision) -> Option<u128> {
    revision.resource_version().parse().ok()
}

#[cfg(test)]
mod tests {
    use libcalico::api::{InNamespace, NetworkPolicy, ObjectKey};
    use serde_json::{Value, json};

    use super::*;

    fn stored(revision: &str, change: Value) -> StoredPolicy<InNamespace> {
        let mut policy = json!({"metadata": {"name": "a", "namespace": "ns", "uid": revision}, "spec": {"order": 1}});
        for (field, value) in change.as_object().unwrap() {
            policy[field].as_object_mut().unwrap().extend(value.as_object().unwrap().clone());
        }
        let value: NetworkPolicy = serde_json::from_value(policy).unwrap();
        StoredPolicy { key: ObjectKey::namespaced("ns", "any"), value, revision: Revision(revision.into()) }
    }

    #[test]
    fn the_last_word_counts() {
        let same = json!({});
        for other in [
            json!({"spec": {"order": 2}}),
            json!({"spec": {"yet": {"to": "come"}}}),
            json!({"metadata": {"labels": {"a": "b"}}}),
            json!({"metadata": {"annotations": {"a": "b"}}}),
        ] {
            let of = |old, new| DuplicatePolicy::compare(&stored(old, other.clone()), &stored(new, same.clone()));
            assert_eq!(of("9", "10"), DuplicatePolicy::Right, "{other}");
            assert_eq!(of("9@u", "10@v{}"), DuplicatePolicy::Right, "{other}");
            let DuplicatePolicy::Outdated(value) = of("10", "9") else { panic!("{other}") };
            assert_eq!(value.metadata.uid, "9", "the object stays who it is");
            let mut expected = stored("9", other.clone()).value;
            expected.metadata.resource_version = value.metadata.resource_version.clone();
            assert_eq!(*value, expected);
            assert_eq!(of("ten", "9"), DuplicatePolicy::Unclear);
        }
    }

    #[test]
    fn what_says_the_same_is_right_whoever_it_is() {
        for (old, new) in [("9", "10"), ("10", "9"), ("ten", "nine")] {
            assert_eq!(
                DuplicatePolicy::compare(&stored(old, json!({})), &stored(new, json!({}))),
                DuplicatePolicy::Right
            );
        }
    }

    #[test]
    fn one_that_is_being_deleted_is_nobodys_successor() {
        let going = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}});
        assert_eq!(DuplicatePolicy::compare(&stored("1", json!({})), &stored("2", going)), DuplicatePolicy::Going);
    }
}

//! [`OwnerMap`]: the uids of copies in v3, by the uids of their sources.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::kubernetes::{ApiGroup, Location};

/// The copies to which references to owners can be converted.
#[derive(Debug, Clone, Default)]
pub struct OwnerMap {
    copies: BTreeMap<String, Owner>,
}

/// A copy. Kubernetes' garbage collector finds an owner by these four properties, and deletes the
/// dependent object if one of them differs.
#[derive(Debug, Clone)]
struct Owner {
    kind: &'static str,
    namespace: Option<String>,
    name: String,
    uid: String,
}

impl OwnerMap {
    /// Adds a copy. `v1` is the uid of its [`Source`](crate::kubernetes::Source), `v3` is the uid
    /// of the copy.
    pub fn insert(&mut self, copy: &Location, v1: &str, v3: &str) {
        let Location {
            resource,
            namespace,
            name,
        } = copy;
        let owner = Owner {
            kind: resource.kind,
            namespace: namespace.clone(),
            name: name.clone(),
            uid: v3.to_owned(),
        };
        self.copies.insert(v1.to_owned(), owner);
    }

    /// Converts the references of an object in `namespace`, which are those of
    /// [`Moved::owners`](crate::kubernetes::Moved::owners). Returns the converted references, and
    /// those to leave out: to an object without a copy, of another group, kind or name than the
    /// reference has, or in another namespace.
    pub fn resolve(&self, namespace: Option<&str>, owners: &[Value]) -> (Vec<Value>, Vec<Value>) {
        let (mut kept, mut left_out) = (Vec::new(), Vec::new());
        for owner in owners {
            match self.copy_of(namespace, owner) {
                Some(copy) => {
                    let mut owner = owner.clone();
                    owner["uid"] = copy.uid.as_str().into();
                    kept.push(owner);
                }
                None => left_out.push(owner.clone()),
            }
        }
        (kept, left_out)
    }

    fn copy_of(&self, namespace: Option<&str>, owner: &Value) -> Option<&Owner> {
        let copy = self.copies.get(owner["uid"].as_str()?)?;
        let is_calico = owner["apiVersion"] == ApiGroup::V3.api_version();
        let is_named =
            is_calico && owner["kind"] == copy.kind && owner["name"] == copy.name.as_str();
        let is_reachable = copy.namespace.is_none() || copy.namespace.as_deref() == namespace;
        (is_named && is_reachable).then_some(copy)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::migration::moved_kinds;

    fn location(kind: &str, namespace: Option<&str>, name: &str) -> Location {
        let kind = moved_kinds()
            .into_iter()
            .find(|moved| moved.v3.kind == kind)
            .unwrap();
        Location {
            resource: kind.v3,
            namespace: namespace.map(str::to_owned),
            name: name.into(),
        }
    }

    fn owner(kind: &str, name: &str, uid: &str) -> Value {
        json!({
            "apiVersion": "projectcalico.org/v3", "kind": kind, "name": name, "uid": uid,
            "controller": true,
        })
    }

    fn map() -> OwnerMap {
        let mut map = OwnerMap::default();
        map.insert(&location("Tier", None, "t"), "v1-tier", "v3-tier");
        map.insert(
            &location("NetworkPolicy", Some("shop"), "p"),
            "v1-policy",
            "v3-policy",
        );
        map
    }

    #[test]
    fn owners_are_resolved_to_their_copies() {
        let owners = [
            owner("Tier", "t", "v1-tier"),
            owner("NetworkPolicy", "p", "v1-policy"),
        ];
        let (kept, left_out) = map().resolve(Some("shop"), &owners);
        assert_eq!(
            kept,
            [
                owner("Tier", "t", "v3-tier"),
                owner("NetworkPolicy", "p", "v3-policy")
            ]
        );
        assert!(left_out.is_empty());
    }

    #[test]
    fn owners_without_a_copy_are_left_out() {
        let unresolved = [
            owner("Tier", "t", "unknown"),
            owner("Tier", "other", "v1-tier"),
            owner("IPPool", "t", "v1-tier"),
            json!({"kind": "Tier", "name": "t"}),
            json!({"apiVersion": "example.org/v1", "kind": "Tier", "name": "t", "uid": "v1-tier"}),
            json!("v1-tier"),
        ];
        let (kept, left_out) = map().resolve(Some("shop"), &unresolved);
        assert!(kept.is_empty(), "{kept:?}");
        assert_eq!(left_out, unresolved);
    }

    /// A tenant writes the references of its own policies.
    #[test]
    fn owners_in_another_namespace_are_left_out() {
        let policy = [owner("NetworkPolicy", "p", "v1-policy")];
        for namespace in [Some("other"), None] {
            assert_eq!(
                map().resolve(namespace, &policy),
                (Vec::new(), policy.to_vec()),
                "{namespace:?}"
            );
        }
    }
}

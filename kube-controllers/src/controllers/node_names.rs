//! [`NodeNames`]: maps Calico nodes to Kubernetes nodes and back.

use std::collections::{BTreeMap, BTreeSet};

use libcalico::api::ObjectKey;

/// The names of nodes in both directions. Several Calico nodes may name the same Kubernetes node.
#[derive(Debug, Default)]
pub(super) struct NodeNames {
    kubernetes: BTreeMap<ObjectKey, ObjectKey>,
    calico: BTreeMap<ObjectKey, BTreeSet<ObjectKey>>,
}

impl NodeNames {
    /// Sets the Kubernetes node of a Calico node, or removes the Calico node with `None`.
    pub(super) fn set(&mut self, calico: &ObjectKey, kubernetes: Option<ObjectKey>) {
        if let Some(before) = self.kubernetes.remove(calico)
            && let Some(names) = self.calico.get_mut(&before)
        {
            names.remove(calico);
            if names.is_empty() {
                self.calico.remove(&before);
            }
        }
        if let Some(kubernetes) = kubernetes {
            self.calico.entry(kubernetes.clone()).or_default().insert(calico.clone());
            self.kubernetes.insert(calico.clone(), kubernetes);
        }
    }

    /// Returns the Kubernetes node of a Calico node.
    pub(super) fn kubernetes(&self, calico: &ObjectKey) -> Option<&ObjectKey> {
        self.kubernetes.get(calico)
    }

    /// Returns the Calico nodes of a Kubernetes node.
    pub(super) fn calico(&self, kubernetes: &ObjectKey) -> impl Iterator<Item = &ObjectKey> {
        self.calico.get(kubernetes).into_iter().flatten()
    }

    /// Returns every Calico node that names a Kubernetes node.
    pub(super) fn all(&self) -> impl Iterator<Item = &ObjectKey> {
        self.kubernetes.keys()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_go_both_ways() {
        let [a, b, k, l] = ["a", "b", "k", "l"].map(ObjectKey::global);
        let mut names = NodeNames::default();
        names.set(&a, Some(k.clone()));
        names.set(&b, Some(k.clone()));
        assert_eq!(names.calico(&k).collect::<Vec<_>>(), [&a, &b]);
        names.set(&a, Some(l.clone()));
        assert_eq!((names.kubernetes(&a), names.calico(&k).count()), (Some(&l), 1));
        names.set(&b, None);
        assert_eq!((names.kubernetes(&b), names.calico(&k).count(), names.all().count()), (None, 0, 1));
    }
}

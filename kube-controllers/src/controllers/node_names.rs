use std::borrow::Borrow;
use std::collections::{BTreeMap, BTreeSet};

use libcalico::api::{Node as CalicoNode, ObjectKey};
use libcalico::store::Entry;

use crate::watches::{Cache, Event};

/// A map in both directions. Several members may have the same group.
#[derive(Debug)]
pub(super) struct Grouping<M, G> {
    groups: BTreeMap<M, G>,
    members: BTreeMap<G, BTreeSet<M>>,
}

impl<M, G> Default for Grouping<M, G> {
    fn default() -> Self {
        Grouping {
            groups: BTreeMap::new(),
            members: BTreeMap::new(),
        }
    }
}

impl<M: Clone + Ord, G: Clone + Ord> Grouping<M, G> {
    /// Sets the group of a member, or removes the member with `None`. Returns the member's previous
    /// group.
    pub(super) fn set(&mut self, member: &M, group: Option<G>) -> Option<G> {
        let before = self.groups.remove(member);
        if let Some(before) = &before
            && let Some(members) = self.members.get_mut(before)
        {
            members.remove(member);
            if members.is_empty() {
                self.members.remove(before);
            }
        }
        if let Some(group) = group {
            self.members
                .entry(group.clone())
                .or_default()
                .insert(member.clone());
            self.groups.insert(member.clone(), group);
        }
        before
    }

    pub(super) fn group(&self, member: &M) -> Option<&G> {
        self.groups.get(member)
    }

    pub(super) fn members<Q: Ord + ?Sized>(&self, group: &Q) -> impl Iterator<Item = &M>
    where
        G: Borrow<Q>,
    {
        self.members.get(group).into_iter().flatten()
    }

    pub(super) fn all_members(&self) -> impl Iterator<Item = &M> {
        self.groups.keys()
    }

    pub(super) fn groups(&self) -> impl Iterator<Item = &G> {
        self.members.keys()
    }
}

/// The cached Calico nodes that name a Kubernetes node. The Kubernetes node is their group.
#[derive(Debug, Default)]
pub(super) struct NodeNames {
    nodes: Cache<ObjectKey, ObjectKey>,
    pub(super) names: Grouping<ObjectKey, ObjectKey>,
}

impl NodeNames {
    /// Applies an event. Returns the Calico nodes whose name of a Kubernetes node was added,
    /// changed or removed.
    pub(super) fn apply(&mut self, event: &Event<'_, Entry<CalicoNode>>) -> Vec<ObjectKey> {
        let changed = self.nodes.apply(event, |entry| {
            entry.value.spec.kubernetes_name().map(ObjectKey::global)
        });
        for node in &changed {
            self.names.set(node, self.nodes.get(node).cloned());
        }
        changed
    }

    pub(super) fn is_synced(&self) -> bool {
        self.nodes.is_synced()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_names_map_in_both_directions() {
        let [a, b, k, l] = ["a", "b", "k", "l"].map(ObjectKey::global);
        let mut names = Grouping::default();
        names.set(&a, Some(k.clone()));
        names.set(&b, Some(k.clone()));
        assert_eq!(names.members(&k).collect::<Vec<_>>(), [&a, &b]);
        names.set(&a, Some(l.clone()));
        assert_eq!((names.group(&a), names.members(&k).count()), (Some(&l), 1));
        names.set(&b, None);
        assert_eq!(
            (
                names.group(&b),
                names.members(&k).count(),
                names.all_members().count()
            ),
            (None, 0, 1)
        );
    }
}

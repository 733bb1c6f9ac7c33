//! [`Memory`]: the names of the Kubernetes nodes and the Calico nodes.

use libcalico::api::{Node as CalicoNode, ObjectKey};
use libcalico::store::Entry;

use crate::controllers::orchestrated::NodeNames;
use crate::feed::{Cache, Event};
use crate::watched::Node;

/// The cached names of nodes.
#[derive(Debug, Default)]
pub(super) struct Memory {
    kubernetes: Cache<ObjectKey, ()>,
    calico: Cache<ObjectKey, ObjectKey>,
    names: NodeNames,
}

impl Memory {
    /// Applies an event. Returns the Calico nodes whose Kubernetes nodes are gone.
    pub(super) fn hear_kubernetes(&mut self, event: &Event<'_, Node>) -> Vec<ObjectKey> {
        let was_synced = self.kubernetes.is_synced();
        let changed = self.kubernetes.follow(event, |_| Some(()));
        if !was_synced {
            return if self.kubernetes.is_synced() { self.orphans() } else { Vec::new() };
        }
        let gone = changed.iter().filter(|key| self.kubernetes.get(key).is_none());
        gone.flat_map(|key| self.names.calico(key)).cloned().collect()
    }

    /// Applies an event. Returns the changed Calico nodes whose Kubernetes nodes are known to be missing.
    pub(super) fn hear_calico(&mut self, event: &Event<'_, Entry<CalicoNode>>) -> Vec<ObjectKey> {
        let changed = self.calico.follow(event, |entry| entry.value.spec.kubernetes_name().map(ObjectKey::global));
        for key in &changed {
            self.names.set(key, self.calico.get(key).cloned());
        }
        changed.into_iter().filter(|key| self.orphaned(key).is_some()).collect()
    }

    /// Returns every Calico node whose Kubernetes node is missing; none before all Kubernetes nodes have been listed.
    pub(super) fn orphans(&self) -> Vec<ObjectKey> {
        self.names.all().filter(|key| self.orphaned(key).is_some()).cloned().collect()
    }

    /// Returns the name of a Calico node's Kubernetes node, if that node is known to be missing.
    pub(super) fn orphaned(&self, calico: &ObjectKey) -> Option<ObjectKey> {
        let kubernetes = self.names.kubernetes(calico)?;
        (self.kubernetes.is_synced() && self.kubernetes.get(kubernetes).is_none()).then(|| kubernetes.clone())
    }
}

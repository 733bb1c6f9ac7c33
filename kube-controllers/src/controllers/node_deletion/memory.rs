//! [`Memory`]: the names of nodes on both sides.

use libcalico::api::{Node as CalicoNode, ObjectKey};
use libcalico::store::Entry;

use crate::controllers::orchestrated::NodeNames;
use crate::feed::{Cache, Event};
use crate::watched::Node;

/// What was heard.
#[derive(Debug, Default)]
pub(super) struct Memory {
    kubernetes: Cache<ObjectKey, ()>,
    calico: Cache<ObjectKey, ObjectKey>,
    names: NodeNames,
}

impl Memory {
    /// Takes notice; returns the nodes of Calico that lost theirs.
    pub(super) fn hear_kubernetes(&mut self, event: &Event<'_, Node>) -> Vec<ObjectKey> {
        let was_synced = self.kubernetes.is_synced();
        let changed = self.kubernetes.follow(event, |_| Some(()));
        if !was_synced {
            return if self.kubernetes.is_synced() { self.orphans() } else { Vec::new() };
        }
        let gone = changed.iter().filter(|key| self.kubernetes.get(key).is_none());
        gone.flat_map(|key| self.names.calico(key)).cloned().collect()
    }

    /// Takes notice; returns the nodes that are known by now to have none.
    pub(super) fn hear_calico(&mut self, event: &Event<'_, Entry<CalicoNode>>) -> Vec<ObjectKey> {
        let changed = self.calico.follow(event, |entry| entry.value.spec.kubernetes_name().map(ObjectKey::global));
        for key in &changed {
            self.names.set(key, self.calico.get(key).cloned());
        }
        changed.into_iter().filter(|key| self.orphaned(key).is_some()).collect()
    }

    /// Every node of Calico whose node of Kubernetes is not there; none as long as not all of them were named.
    pub(super) fn orphans(&self) -> Vec<ObjectKey> {
        self.names.all().filter(|key| self.orphaned(key).is_some()).cloned().collect()
    }

    /// The name in Kubernetes of a node that is not there.
    pub(super) fn orphaned(&self, calico: &ObjectKey) -> Option<ObjectKey> {
        let kubernetes = self.names.kubernetes(calico)?;
        (self.kubernetes.is_synced() && self.kubernetes.get(kubernetes).is_none()).then(|| kubernetes.clone())
    }
}

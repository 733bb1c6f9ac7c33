//! [`Memory`]: the labels of Kubernetes nodes and Calico nodes.

use std::collections::BTreeMap;

use libcalico::api::{Node as CalicoNode, ObjectKey};
use libcalico::store::Entry;

use super::labelled;
use super::merge::Labelled;
use crate::controllers::orchestrated::NodeNames;
use crate::feed::{Cache, Event};
use crate::watched::Node;

type Labels = BTreeMap<String, String>;

/// The cached labels.
#[derive(Debug, Default)]
pub(super) struct Memory {
    kubernetes: Cache<ObjectKey, Labels>,
    calico: Cache<ObjectKey, (ObjectKey, Labelled)>,
    names: NodeNames,
}

impl Memory {
    /// Applies an event. Returns the Calico nodes to reconcile. Labels of a deleted Kubernetes node stay on the Calico
    /// node (KC-478).
    pub(super) fn hear_kubernetes(&mut self, event: &Event<'_, Node>) -> Vec<ObjectKey> {
        let changed = self.kubernetes.follow(event, |node| Some(node.labels.clone()));
        changed.iter().flat_map(|key| self.names.calico(key)).cloned().collect()
    }

    /// Applies an event. Returns the nodes to reconcile.
    pub(super) fn hear_calico(&mut self, event: &Event<'_, Entry<CalicoNode>>) -> Vec<ObjectKey> {
        let changed = self.calico.follow(event, |entry| {
            Some((ObjectKey::global(entry.value.spec.kubernetes_name()?), labelled(&entry.value)))
        });
        for key in &changed {
            self.names.set(key, self.calico.get(key).map(|(kubernetes, _)| kubernetes.clone()));
        }
        changed
    }

    /// Returns every Calico node that names a Kubernetes node.
    pub(super) fn all(&self) -> Vec<ObjectKey> {
        self.names.all().cloned().collect()
    }

    /// Returns the node's name and labels in Kubernetes, and its labels in Calico. Returns `None` unless both nodes are
    /// cached.
    pub(super) fn of(&self, calico: &ObjectKey) -> Option<(ObjectKey, Labels, Labelled)> {
        let (kubernetes, labelled) = self.calico.get(calico)?;
        Some((kubernetes.clone(), self.kubernetes.get(kubernetes)?.clone(), labelled.clone()))
    }
}

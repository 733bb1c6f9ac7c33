//! [`Memory`]: the labels on both sides.

use std::collections::BTreeMap;

use libcalico::api::{Node as CalicoNode, ObjectKey};
use libcalico::store::Entry;

use super::labelled;
use super::merge::Labelled;
use crate::controllers::orchestrated::NodeNames;
use crate::feed::{Cache, Event};
use crate::watched::Node;

type Labels = BTreeMap<String, String>;

/// What was heard.
#[derive(Debug, Default)]
pub(super) struct Memory {
    kubernetes: Cache<ObjectKey, Labels>,
    calico: Cache<ObjectKey, (ObjectKey, Labelled)>,
    names: NodeNames,
}

impl Memory {
    /// Takes notice; returns the nodes of Calico to look at. The labels of a node that went stay where they were copied to
    /// (KC-478).
    pub(super) fn hear_kubernetes(&mut self, event: &Event<'_, Node>) -> Vec<ObjectKey> {
        let changed = self.kubernetes.follow(event, |node| Some(node.labels.clone()));
        changed.iter().flat_map(|key| self.names.calico(key)).cloned().collect()
    }

    /// Takes notice; returns the nodes to look at.
    pub(super) fn hear_calico(&mut self, event: &Event<'_, Entry<CalicoNode>>) -> Vec<ObjectKey> {
        let changed = self.calico.follow(event, |entry| {
            Some((ObjectKey::global(entry.value.spec.kubernetes_name()?), labelled(&entry.value)))
        });
        for key in &changed {
            self.names.set(key, self.calico.get(key).map(|(kubernetes, _)| kubernetes.clone()));
        }
        changed
    }

    /// Every node of Calico that Kubernetes is said to have.
    pub(super) fn all(&self) -> Vec<ObjectKey> {
        self.names.all().cloned().collect()
    }

    /// Its name in Kubernetes, its labels there, and what it has; `None` unless it is known on both sides.
    pub(super) fn of(&self, calico: &ObjectKey) -> Option<(ObjectKey, Labels, Labelled)> {
        let (kubernetes, labelled) = self.calico.get(calico)?;
        Some((kubernetes.clone(), self.kubernetes.get(kubernetes)?.clone(), labelled.clone()))
    }
}

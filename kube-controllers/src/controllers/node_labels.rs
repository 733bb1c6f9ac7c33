//! Copies labels of Kubernetes nodes to Calico nodes (etcd only).

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

use allocation::reads::find;
use datastore::Datastore;
use libcalico::api::{Node as CalicoNode, ObjectKey};
use libcalico::store::{Entry, Store};
use tokio::sync::watch;

use super::cached::{CachedController, CachedReconcile, SharedCache};
use super::node_names::Grouping;
use crate::context::Context;
use crate::runtime::{NextReconcile, Reconcile, ReconcileError};
use crate::settings::{ControllerName, Settings};
use crate::watched::Node;
use crate::watches::{Cache, Event, Watches};

/// The controller. Its keys are names of Calico nodes.
pub type NodeLabels = CachedController<NodeLabelReconciler>;

/// The reconciler of the labels of one node.
pub struct NodeLabelReconciler {
    store: Arc<Datastore>,
    settings: watch::Receiver<Arc<Settings>>,
    cache: SharedCache<NodeLabelCache>,
}

impl CachedReconcile for NodeLabelReconciler {
    type Cache = NodeLabelCache;
    const CONTROLLER: Option<ControllerName> = Some(ControllerName::Node);

    fn subscribe(controller: &NodeLabels, watches: &mut Watches) {
        controller.subscribe(&mut watches.nodes, NodeLabelCache::apply_kubernetes_node);
        controller.subscribe(&mut watches.calico_nodes, NodeLabelCache::apply_calico_node);
    }

    fn new(context: &Context, controller: &NodeLabels) -> Self {
        let (store, settings) = (context.calico.clone(), context.settings.clone());
        NodeLabelReconciler {
            store,
            settings,
            cache: controller.cache.clone(),
        }
    }

    fn all_keys(cache: &NodeLabelCache) -> Vec<ObjectKey> {
        cache.nodes()
    }
}

impl Reconcile for NodeLabelReconciler {
    const NAME: &'static str = "node-labels";
    type Key = ObjectKey;

    async fn reconcile(&self, key: &ObjectKey) -> Result<NextReconcile, ReconcileError> {
        if !self.settings.borrow().sync_node_labels {
            return Ok(NextReconcile::AwaitChange);
        }
        let invalid =
            |error: InvalidRecord| ReconcileError::Permanent(format!("Node {key}: {error}"));
        let cached = self.cache.lock().labels_of(key);
        let Some((kubernetes, labels, recorded)) = cached else {
            return Ok(NextReconcile::AwaitChange);
        };
        if merge(&recorded, &labels).map_err(invalid)?.is_none() {
            return Ok(NextReconcile::AwaitChange);
        }
        // The cache may lag behind, so the labels are merged again into the stored node.
        let stored = find::<CalicoNode>(&*self.store, key).await?;
        let Some(mut node) = stored else {
            return Ok(NextReconcile::AwaitChange);
        };
        if node.value.spec.kubernetes_name() != Some(kubernetes.name.as_str()) {
            return Ok(NextReconcile::AwaitChange);
        }
        let merged = merge(&RecordedLabels::new(&node.value), &labels).map_err(invalid)?;
        let Some(RecordedLabels { labels, record }) = merged else {
            return Ok(NextReconcile::AwaitChange);
        };
        node.value.metadata.labels = labels;
        node.value
            .metadata
            .annotations
            .extend(record.map(|record| (RECORD.to_owned(), record)));
        self.store.update(key, &node.value, &node.revision).await?;
        Ok(NextReconcile::AwaitChange)
    }
}

/// Annotation of a Calico node: the labels of the Kubernetes node at the last copy (KC-477).
const RECORD: &str = "projectcalico.org/kube-labels";

type Labels = BTreeMap<String, String>;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct RecordedLabels {
    labels: Labels,
    record: Option<String>,
}

impl RecordedLabels {
    fn new(node: &CalicoNode) -> Self {
        let metadata = &node.metadata;
        RecordedLabels {
            labels: metadata.labels.clone(),
            record: metadata.annotations.get(RECORD).cloned(),
        }
    }
}

/// An unreadable record. Without it, the labels that came from Kubernetes are unknown.
#[derive(Debug, thiserror::Error)]
#[error("the annotation {RECORD} is not a JSON object of labels ({0}); correct it or delete it")]
struct InvalidRecord(serde_json::Error);

/// Returns the desired labels of a Calico node if its Kubernetes node has the labels `kubernetes`,
/// or `None` if the stored labels are as desired. Labels that never came from Kubernetes stay,
/// unless a label of the Kubernetes node has the same key.
fn merge(
    stored: &RecordedLabels,
    kubernetes: &Labels,
) -> Result<Option<RecordedLabels>, InvalidRecord> {
    let recorded = stored
        .record
        .as_deref()
        .map(serde_json::from_str::<Option<Labels>>)
        .transpose();
    let recorded = recorded.map_err(InvalidRecord)?.flatten();
    let mut labels = stored.labels.clone();
    let is_recorded = |key: &String| {
        recorded
            .as_ref()
            .is_some_and(|recorded| recorded.contains_key(key))
    };
    labels.retain(|key, _| kubernetes.contains_key(key) || !is_recorded(key));
    labels.extend(kubernetes.clone());
    if labels == stored.labels {
        return Ok(None);
    }
    // A map of strings can always be serialized.
    let record = serde_json::to_string(kubernetes).map_err(InvalidRecord)?;
    Ok(Some(RecordedLabels {
        labels,
        record: Some(record),
    }))
}

/// The cached labels.
#[derive(Debug, Default)]
pub struct NodeLabelCache {
    kubernetes: Cache<ObjectKey, Labels>,
    calico: Cache<ObjectKey, (ObjectKey, RecordedLabels)>,
    names: Grouping<ObjectKey, ObjectKey>,
}

impl NodeLabelCache {
    /// Applies an event. Returns the Calico nodes to reconcile. Labels of a deleted Kubernetes node
    /// stay on the Calico node (KC-478).
    fn apply_kubernetes_node(&mut self, event: &Event<'_, Node>) -> Vec<ObjectKey> {
        let changed = self
            .kubernetes
            .apply(event, |node| Some(node.labels.clone()));
        changed
            .iter()
            .flat_map(|key| self.names.members(key))
            .cloned()
            .collect()
    }

    fn apply_calico_node(&mut self, event: &Event<'_, Entry<CalicoNode>>) -> Vec<ObjectKey> {
        let changed = self.calico.apply(event, |entry| {
            Some((
                ObjectKey::global(entry.value.spec.kubernetes_name()?),
                RecordedLabels::new(&entry.value),
            ))
        });
        for key in &changed {
            self.names.set(
                key,
                self.calico
                    .get(key)
                    .map(|(kubernetes, _)| kubernetes.clone()),
            );
        }
        changed
    }

    /// Returns every Calico node that names a Kubernetes node.
    fn nodes(&self) -> Vec<ObjectKey> {
        self.names.all_members().cloned().collect()
    }

    /// Returns the node's name and labels in Kubernetes, and its labels in Calico. Returns `None`
    /// unless both nodes are cached.
    fn labels_of(&self, calico: &ObjectKey) -> Option<(ObjectKey, Labels, RecordedLabels)> {
        let (kubernetes, recorded) = self.calico.get(calico)?;
        Some((
            kubernetes.clone(),
            self.kubernetes.get(kubernetes)?.clone(),
            recorded.clone(),
        ))
    }
}

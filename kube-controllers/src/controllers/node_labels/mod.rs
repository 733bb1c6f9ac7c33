//! Copies labels of Kubernetes nodes to Calico nodes (etcd only). On a Kubernetes datastore both are the same object.

mod labels;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use datastore::Datastore;
use libcalico::api::{Node as CalicoNode, ObjectKey};
use libcalico::store::{Store, StoreError};
use tokio::sync::watch;

use self::labels::{InvalidRecord, NodeLabelCache, RECORD, RecordedLabels, merge};
use super::cached::{CachedController, CachedReconcile, SharedCache};
use crate::context::Context;
use crate::runtime::{NextReconcile, Reconcile, ReconcileError};
use crate::settings::{ControllerName, Settings};
use crate::watches::Watches;

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

    fn subscribe(controller: &NodeLabels, _: &Context, watches: &mut Watches) {
        controller.subscribe(&mut watches.nodes, NodeLabelCache::apply_kubernetes_node);
        controller.subscribe(&mut watches.calico_nodes, NodeLabelCache::apply_calico_node);
    }

    fn new(context: &Context, controller: &NodeLabels) -> Self {
        let (store, settings) = (context.calico.clone(), context.settings.clone());
        NodeLabelReconciler { store, settings, cache: controller.cache.clone() }
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
            return Ok(NextReconcile::Done);
        }
        let invalid = |error: InvalidRecord| ReconcileError::Permanent(format!("Node {key}: {error}"));
        let cached = self.cache.lock().labels_of(key);
        let Some((kubernetes, labels, recorded)) = cached else { return Ok(NextReconcile::Done) };
        if merge(&recorded, &labels).map_err(invalid)?.is_none() {
            return Ok(NextReconcile::Done);
        }
        // The cache may lag behind, so the labels are merged again into the stored node.
        let mut node = match self.store.get::<CalicoNode>(key).await {
            Err(StoreError::NotFound { .. }) => return Ok(NextReconcile::Done),
            found => found?,
        };
        if node.value.spec.kubernetes_name() != Some(kubernetes.name.as_str()) {
            return Ok(NextReconcile::Done);
        }
        let Some(RecordedLabels { labels, record }) =
            merge(&RecordedLabels::new(&node.value), &labels).map_err(invalid)?
        else {
            return Ok(NextReconcile::Done);
        };
        node.value.metadata.labels = labels;
        node.value.metadata.annotations.extend(record.map(|record| (RECORD.to_owned(), record)));
        self.store.update(key, &node.value, &node.revision).await?;
        Ok(NextReconcile::Done)
    }
}

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
use super::resync::resync;
use super::shared_cache::SharedCache;
use crate::context::Context;
use crate::runtime::{self, Controller, NextReconcile, Queue, Reconcile, ReconcileError};
use crate::settings::{ControllerName, Settings};
use crate::watches::Watches;

/// The controller. Its keys are names of Calico nodes.
pub struct NodeLabels {
    queue: Queue<ObjectKey>,
    cache: SharedCache<NodeLabelCache>,
}

impl Controller for NodeLabels {
    const NAME: &'static str = "node-labels";

    fn new(_: &Context, watches: &mut Watches) -> Self {
        let (queue, cache) = (Queue::default(), SharedCache::<NodeLabelCache>::default());
        cache.subscribe(&mut watches.nodes, &queue, NodeLabelCache::apply_kubernetes_node);
        cache.subscribe(&mut watches.calico_nodes, &queue, NodeLabelCache::apply_calico_node);
        NodeLabels { queue, cache }
    }

    async fn run(self, context: Context) {
        let queue_all = || self.cache.lock().nodes().into_iter().for_each(|key| self.queue.add(key));
        let reconciler = Arc::new(NodeLabelReconciler {
            store: context.calico.clone(),
            settings: context.settings.clone(),
            cache: self.cache.clone(),
        });
        let workers = context.settings.borrow().workers_of(ControllerName::Node);
        tokio::join!(
            runtime::run(reconciler, self.queue.clone(), workers, context.clone()),
            resync(&context, queue_all)
        );
    }
}

struct NodeLabelReconciler {
    store: Arc<Datastore>,
    settings: watch::Receiver<Arc<Settings>>,
    cache: SharedCache<NodeLabelCache>,
}

impl Reconcile for NodeLabelReconciler {
    const NAME: &'static str = NodeLabels::NAME;
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

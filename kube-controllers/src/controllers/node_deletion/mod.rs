//! Deletes Calico nodes whose Kubernetes nodes are gone, with all their data (etcd only).
//!
//! Each node is a key of its own, and is retried until it is deleted. Upstream runs a full pass for every deletion
//! (KC-470). The nodes that are waiting share one list of all endpoint keys. Nodes that never belonged to Kubernetes
//! are left alone.

mod cache;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use datastore::Datastore;
use ipam_plugin::clock::SystemClock;
use ipam_plugin::node_cleanup::{NodeCleanupError, delete_node};
use libcalico::api::{Node as CalicoNode, ObjectKey};
use libcalico::kubernetes::NODES;
use libcalico::store::{Store, StoreError};

use self::cache::{EndpointKeyCache, NodeNameCache};
use super::cached::{CachedController, CachedReconcile, SharedCache};
use crate::api_reads;
use crate::context::Context;
use crate::runtime::{NextReconcile, Reconcile, ReconcileError};
use crate::settings::ControllerName;
use crate::watches::Watches;

/// Delay before the pods of a missing node are checked again. A kubelet that registers again keeps its pods, and
/// Kubernetes deletes the pods of a missing node after a minute. Upstream releases their addresses at once, although
/// the pods may still run (KC-472).
const PODS_GO: Duration = Duration::from_secs(20);

/// The controller. Its keys are names of Calico nodes.
pub type NodeDeletion = CachedController<DeletedNodeReconciler>;

/// The reconciler of one node.
pub struct DeletedNodeReconciler {
    store: Arc<Datastore>,
    kubernetes: kube::Client,
    endpoints: EndpointKeyCache,
    cache: SharedCache<NodeNameCache>,
}

impl CachedReconcile for DeletedNodeReconciler {
    type Cache = NodeNameCache;
    const CONTROLLER: Option<ControllerName> = Some(ControllerName::Node);

    fn subscribe(controller: &NodeDeletion, _: &Context, watches: &mut Watches) {
        controller.subscribe(&mut watches.nodes, NodeNameCache::apply_kubernetes_node);
        controller.subscribe(&mut watches.calico_nodes, NodeNameCache::apply_calico_node);
    }

    fn new(context: &Context, controller: &NodeDeletion) -> Self {
        let (store, kubernetes) = (context.calico.clone(), context.kubernetes.clone());
        let (endpoints, cache) = (EndpointKeyCache::default(), controller.cache.clone());
        DeletedNodeReconciler { store, kubernetes, endpoints, cache }
    }

    fn all_keys(cache: &NodeNameCache) -> Vec<ObjectKey> {
        cache.orphans()
    }
}

impl Reconcile for DeletedNodeReconciler {
    const NAME: &'static str = "node-deletion";
    type Key = ObjectKey;

    async fn reconcile(&self, key: &ObjectKey) -> Result<NextReconcile, ReconcileError> {
        let orphaned = self.cache.lock().orphaned(key);
        let Some(kubernetes) = orphaned else { return Ok(NextReconcile::Done) };
        let node = match self.store.get::<CalicoNode>(key).await {
            Err(StoreError::NotFound { .. }) => return Ok(NextReconcile::Done),
            found => found?,
        };
        if node.value.spec.kubernetes_name() != Some(kubernetes.name.as_str()) {
            return Ok(NextReconcile::Done);
        }
        // The cache may lag behind, so the node is looked up last, right before the deletion.
        let orphans = || self.cache.lock().orphans();
        let endpoints = self.endpoints.read(&*self.store, key, orphans).await?;
        if api_reads::exists(&self.kubernetes, NODES, &kubernetes).await? {
            return Ok(NextReconcile::Done);
        }
        if api_reads::has_pods(&self.kubernetes, &kubernetes).await? {
            tracing::info!(node = %key, "kept a node that Kubernetes no longer has until its pods are gone");
            return Ok(NextReconcile::After(PODS_GO));
        }
        let forgotten = delete_node(&*self.store, &SystemClock::start(), &node, &endpoints).await;
        let forgotten =
            forgotten.map_err(|error: NodeCleanupError| ReconcileError::Retry(format!("node {key}: {error}")))?;
        tracing::info!(
            node = %key,
            addresses = forgotten.addresses,
            endpoints = forgotten.endpoints,
            blocks = forgotten.blocks,
            attached = forgotten.attached,
            "deleted a node that Kubernetes no longer has"
        );
        Ok(NextReconcile::Done)
    }
}

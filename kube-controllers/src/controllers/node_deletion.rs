//! Deletes Calico nodes whose Kubernetes nodes are gone, with the objects that exist for them (etcd
//! only).
//!
//! Each node is a key of its own, and is retried after a failure. Upstream runs a full pass for
//! every deletion (KC-470). Nodes stay while Kubernetes has none of them
//! ([`SameCluster`](crate::same_cluster::SameCluster)), because the API server may be that of
//! another cluster. With `GC_MODE=report` no node is deleted, because the deletion releases
//! addresses.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use allocation::node_cleanup::{delete_node, endpoint_keys, read_endpoints};
use allocation::reads::find;
use libcalico::api::{Node as CalicoNode, ObjectKey, WorkloadEndpoint};
use libcalico::kubernetes::NODES;
use libcalico::store::{Entry, Store, StoreError};
use os::clock::SystemClock;
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::cached::{CachedController, CachedReconcile, SharedCache};
use super::node_names::NodeNames;
use super::same_cluster::hold_and_report;
use crate::api_reads;
use crate::context::Context;
use crate::runtime::{NextReconcile, Reconcile, ReconcileError};
use crate::settings::{ControllerName, GcMode};
use crate::watched::Node;
use crate::watches::{Cache, Event, Watches};

/// Delay before the pods of a missing node are checked again. Upstream releases their addresses at
/// once, although the pods may still run (KC-472).
const POD_CHECK_INTERVAL: Duration = Duration::from_secs(20);

/// The controller. Its keys are names of Calico nodes.
pub type NodeDeletion = CachedController<DeletedNodeReconciler>;

/// The reconciler of one node.
pub struct DeletedNodeReconciler {
    context: Context,
    endpoints: EndpointKeyCache,
    cache: SharedCache<NodeNameCache>,
}

impl CachedReconcile for DeletedNodeReconciler {
    type Cache = NodeNameCache;
    const CONTROLLER: Option<ControllerName> = Some(ControllerName::Node);

    fn subscribe(controller: &NodeDeletion, watches: &mut Watches) {
        controller.subscribe(&mut watches.nodes, NodeNameCache::apply_kubernetes_node);
        controller.subscribe(&mut watches.calico_nodes, NodeNameCache::apply_calico_node);
    }

    fn new(context: &Context, controller: &NodeDeletion) -> Self {
        let (context, cache) = (context.clone(), controller.cache.clone());
        DeletedNodeReconciler {
            context,
            endpoints: EndpointKeyCache::default(),
            cache,
        }
    }

    fn all_keys(cache: &NodeNameCache) -> Vec<ObjectKey> {
        cache.orphaned_nodes()
    }
}

impl Reconcile for DeletedNodeReconciler {
    const NAME: &'static str = "node-deletion";
    type Key = ObjectKey;

    async fn reconcile(&self, key: &ObjectKey) -> Result<NextReconcile, ReconcileError> {
        let missing_kubernetes_node = self.cache.lock().missing_kubernetes_node(key);
        let Some(kubernetes) = missing_kubernetes_node else {
            return Ok(NextReconcile::AwaitChange);
        };
        let Context {
            kubernetes: api,
            calico: store,
            settings,
            ..
        } = &self.context;
        if let Some(wait) = hold_and_report(&self.context).await {
            return Ok(NextReconcile::After(wait));
        }
        let stored = find::<CalicoNode>(&**store, key).await?;
        let Some(node) = stored else {
            return Ok(NextReconcile::AwaitChange);
        };
        if node.value.spec.kubernetes_name() != Some(kubernetes.name.as_str()) {
            return Ok(NextReconcile::AwaitChange);
        }
        // The cache may lag behind, so the Kubernetes node is looked up in the API, after the
        // endpoints have been read.
        let orphaned_nodes = || self.cache.lock().orphaned_nodes();
        let endpoints = self.endpoints.read(&**store, key, orphaned_nodes).await?;
        if api_reads::exists(api, NODES, &kubernetes).await? {
            return Ok(NextReconcile::AwaitChange);
        }
        if let Some(pod) = api_reads::find_pod_of(api, &kubernetes).await? {
            tracing::warn!(
                node = %key, pod,
                reason = "the pod may have addresses",
                hint = "delete the pod if it does not run",
                "keeping a node that was deleted in Kubernetes"
            );
            return Ok(NextReconcile::After(POD_CHECK_INTERVAL));
        }
        if settings.borrow().gc_mode == GcMode::Report {
            tracing::info!(
                node = %key, endpoints = endpoints.len(),
                "would delete a node deleted in Kubernetes; GC_MODE=report keeps it"
            );
            return Ok(NextReconcile::AwaitChange);
        }
        let cleanup = delete_node(&**store, &SystemClock::start(), &node, &endpoints).await;
        let cleanup =
            cleanup.map_err(|error| ReconcileError::Retry(format!("node {key}: {error}")))?;
        tracing::info!(node = %key, addresses = cleanup.addresses, endpoints = cleanup.endpoints,
            blocks = cleanup.blocks, owned_objects = cleanup.owned_objects,
            "deleted a node that was deleted in Kubernetes");
        Ok(NextReconcile::AwaitChange)
    }
}

/// The cached names of nodes.
#[derive(Debug, Default)]
pub struct NodeNameCache {
    kubernetes: Cache<ObjectKey, ()>,
    calico: NodeNames,
}

impl NodeNameCache {
    /// Applies an event. Returns the Calico nodes whose Kubernetes node was deleted by the event,
    /// and at the end of the first list every Calico node whose Kubernetes node is missing.
    fn apply_kubernetes_node(&mut self, event: &Event<'_, Node>) -> Vec<ObjectKey> {
        let was_synced = self.kubernetes.is_synced();
        let changed = self.kubernetes.apply(event, |_| Some(()));
        if !was_synced {
            return if self.kubernetes.is_synced() {
                self.orphaned_nodes()
            } else {
                Vec::new()
            };
        }
        let deleted = changed
            .iter()
            .filter(|key| self.kubernetes.get(key).is_none());
        deleted
            .flat_map(|key| self.calico.names.members(key))
            .cloned()
            .collect()
    }

    /// Applies an event. Returns the changed Calico nodes whose Kubernetes nodes are known to be
    /// missing.
    fn apply_calico_node(&mut self, event: &Event<'_, Entry<CalicoNode>>) -> Vec<ObjectKey> {
        let changed = self.calico.apply(event);
        changed
            .into_iter()
            .filter(|key| self.missing_kubernetes_node(key).is_some())
            .collect()
    }

    /// Returns every Calico node whose Kubernetes node is missing; none before all Kubernetes nodes
    /// have been listed.
    fn orphaned_nodes(&self) -> Vec<ObjectKey> {
        self.calico
            .names
            .all_members()
            .filter(|key| self.missing_kubernetes_node(key).is_some())
            .cloned()
            .collect()
    }

    /// Returns the name of a Calico node's Kubernetes node, if that node is known to be missing.
    fn missing_kubernetes_node(&self, calico: &ObjectKey) -> Option<ObjectKey> {
        let kubernetes = self.calico.names.group(calico)?;
        (self.kubernetes.is_synced() && self.kubernetes.get(kubernetes).is_none())
            .then(|| kubernetes.clone())
    }
}

/// Time for which a list of endpoint keys is used. A missing node gets few new endpoints, but an
/// endpoint may have been created just before the node was deleted.
const MAX_LIST_AGE: Duration = Duration::from_secs(10);

/// The cached endpoint keys of nodes that wait for their deletion.
#[derive(Debug, Default)]
struct EndpointKeyCache {
    list: Mutex<Option<KeyList>>,
}

#[derive(Debug)]
struct KeyList {
    listed_at: Instant,
    nodes: BTreeSet<String>,
    keys: BTreeMap<String, Vec<ObjectKey>>,
}

impl EndpointKeyCache {
    /// Reads the endpoints of `node`. Their keys come from the cached list or, if it is too old or
    /// does not cover `node`, from a new list, which also covers `orphaned_nodes`.
    async fn read<S: Store>(
        &self,
        store: &S,
        node: &ObjectKey,
        orphaned_nodes: impl FnOnce() -> Vec<ObjectKey>,
    ) -> Result<Vec<Entry<WorkloadEndpoint>>, StoreError> {
        let mut list = self.list.lock().await;
        let is_fresh = |list: &KeyList| {
            list.listed_at.elapsed() < MAX_LIST_AGE && list.nodes.contains(&node.name)
        };
        if !list.as_ref().is_some_and(is_fresh) {
            let mut nodes: BTreeSet<String> =
                orphaned_nodes().into_iter().map(|key| key.name).collect();
            nodes.insert(node.name.clone());
            let listed_at = Instant::now();
            let keys = endpoint_keys(store, |name| nodes.contains(name)).await?;
            *list = Some(KeyList {
                listed_at,
                nodes,
                keys,
            });
        }
        // A node's keys are used once: another attempt makes a new list.
        let keys = list.as_mut().and_then(|list| {
            list.nodes.remove(&node.name);
            list.keys.remove(&node.name)
        });
        drop(list);
        read_endpoints(store, &node.name, &keys.unwrap_or_default()).await
    }
}

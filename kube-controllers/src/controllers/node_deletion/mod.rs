//! Deletes Calico nodes whose Kubernetes nodes are gone, with all their data (etcd only).
//!
//! Each node is a key of its own, and is retried until it is deleted. Upstream runs a full pass for every deletion
//! (KC-470). The nodes that are waiting share one list of all endpoint keys. Nodes that never belonged to Kubernetes
//! are left alone.

mod endpoints;
mod memory;
#[cfg(test)]
mod tests;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use datastore::Datastore;
use ipam_plugin::clock::SystemClock;
use ipam_plugin::forget_node::{ForgetError, forget_node};
use libcalico::api::{Node as CalicoNode, ObjectKey};
use libcalico::kubernetes::NODES;
use libcalico::store::{Entry, Store, StoreError};

use self::endpoints::Endpoints;
use self::memory::Memory;
use super::rounds::rounds;
use crate::context::{Context, Controller};
use crate::feed::{Event, Feeds};
use crate::live;
use crate::runtime::{self, Failure, Next, Queue, Reconcile};
use crate::settings::ControllerName;
use crate::watched::Node;

/// The controller. Its keys are names of Calico nodes.
pub struct NodeDeletion {
    queue: Queue<ObjectKey>,
    memory: Arc<Mutex<Memory>>,
}

impl Controller for NodeDeletion {
    const NAME: &'static str = "node-deletion";

    fn new(_: &Context, feeds: &mut Feeds) -> Self {
        let (queue, memory) = (Queue::default(), Arc::<Mutex<Memory>>::default());
        let nodes = (queue.clone(), memory.clone());
        feeds.nodes.subscribe(move |event: &Event<'_, Node>| {
            let orphans = nodes.1.lock().unwrap_or_else(PoisonError::into_inner).hear_kubernetes(event);
            orphans.into_iter().for_each(|key| nodes.0.add(key));
        });
        let calico_nodes = (queue.clone(), memory.clone());
        feeds.calico_nodes.subscribe(move |event: &Event<'_, Entry<CalicoNode>>| {
            let orphans = calico_nodes.1.lock().unwrap_or_else(PoisonError::into_inner).hear_calico(event);
            orphans.into_iter().for_each(|key| calico_nodes.0.add(key));
        });
        NodeDeletion { queue, memory }
    }

    async fn run(self, context: Context) {
        let all = || {
            let orphans = self.memory.lock().unwrap_or_else(PoisonError::into_inner).orphans();
            orphans.into_iter().for_each(|key| self.queue.add(key));
        };
        let deleter = Arc::new(Deleter {
            store: context.calico.clone(),
            kubernetes: context.kubernetes.clone(),
            endpoints: Endpoints::default(),
            memory: self.memory.clone(),
        });
        let workers = context.settings.borrow().workers_of(ControllerName::Node);
        tokio::join!(runtime::run(deleter, self.queue.clone(), workers, context.clone()), rounds(&context, all));
    }
}

/// Delay before the pods of a missing node are checked again. A kubelet that registers again keeps its pods, and
/// Kubernetes deletes the pods of a missing node after a minute. Upstream releases their addresses at once, although
/// the pods may still run (KC-472).
const PODS_GO: Duration = Duration::from_secs(20);

struct Deleter {
    store: Arc<Datastore>,
    kubernetes: kube::Client,
    endpoints: Endpoints,
    memory: Arc<Mutex<Memory>>,
}

impl Reconcile for Deleter {
    const NAME: &'static str = NodeDeletion::NAME;
    type Key = ObjectKey;

    async fn reconcile(&self, key: &ObjectKey) -> Result<Next, Failure> {
        let orphaned = self.memory.lock().unwrap_or_else(PoisonError::into_inner).orphaned(key);
        let Some(kubernetes) = orphaned else { return Ok(Next::Done) };
        let node = match self.store.get::<CalicoNode>(key).await {
            Err(StoreError::NotFound { .. }) => return Ok(Next::Done),
            found => found?,
        };
        if node.value.spec.kubernetes_name() != Some(kubernetes.name.as_str()) {
            return Ok(Next::Done);
        }
        // The cache may lag behind, so the node is looked up last, right before the deletion.
        let orphans = || self.memory.lock().unwrap_or_else(PoisonError::into_inner).orphans();
        let endpoints = self.endpoints.of(&*self.store, key, orphans).await?;
        if live::exists(&self.kubernetes, NODES, &kubernetes).await? {
            return Ok(Next::Done);
        }
        if live::has_pods(&self.kubernetes, &kubernetes).await? {
            tracing::info!(node = %key, "kept a node that Kubernetes no longer has until its pods are gone");
            return Ok(Next::After(PODS_GO));
        }
        let forgotten = forget_node(&*self.store, &SystemClock::start(), &node, &endpoints).await;
        let forgotten = forgotten.map_err(|error: ForgetError| Failure::Retry(format!("node {key}: {error}")))?;
        tracing::info!(
            node = %key,
            addresses = forgotten.addresses,
            endpoints = forgotten.endpoints,
            blocks = forgotten.blocks,
            attached = forgotten.attached,
            "deleted a node that Kubernetes no longer has"
        );
        Ok(Next::Done)
    }
}

//! Copies labels of Kubernetes nodes to Calico nodes (etcd only). On a Kubernetes datastore both are the same object.

mod memory;
mod merge;
#[cfg(test)]
mod tests;

use std::sync::{Arc, Mutex, PoisonError};

use datastore::Datastore;
use libcalico::api::{Node as CalicoNode, ObjectKey};
use libcalico::store::{Entry, Store, StoreError};
use tokio::sync::watch;

use self::memory::Memory;
use self::merge::{Labelled, RECORD, merged};
use super::rounds::rounds;
use crate::context::{Context, Controller};
use crate::feed::{Event, Feeds};
use crate::runtime::{self, Failure, Next, Queue, Reconcile};
use crate::settings::{ControllerName, Settings};
use crate::watched::Node;

/// The controller. Its keys are names of Calico nodes.
pub struct NodeLabels {
    queue: Queue<ObjectKey>,
    memory: Arc<Mutex<Memory>>,
}

impl Controller for NodeLabels {
    const NAME: &'static str = "node-labels";

    fn new(_: &Context, feeds: &mut Feeds) -> Self {
        let (queue, memory) = (Queue::default(), Arc::<Mutex<Memory>>::default());
        let nodes = (queue.clone(), memory.clone());
        feeds.nodes.subscribe(move |event: &Event<'_, Node>| {
            let touched = nodes.1.lock().unwrap_or_else(PoisonError::into_inner).hear_kubernetes(event);
            touched.into_iter().for_each(|key| nodes.0.add(key));
        });
        let calico_nodes = (queue.clone(), memory.clone());
        feeds.calico_nodes.subscribe(move |event: &Event<'_, Entry<CalicoNode>>| {
            let touched = calico_nodes.1.lock().unwrap_or_else(PoisonError::into_inner).hear_calico(event);
            touched.into_iter().for_each(|key| calico_nodes.0.add(key));
        });
        NodeLabels { queue, memory }
    }

    async fn run(self, context: Context) {
        let all = || {
            let keys = self.memory.lock().unwrap_or_else(PoisonError::into_inner).all();
            keys.into_iter().for_each(|key| self.queue.add(key));
        };
        let syncer = Arc::new(Syncer {
            store: context.calico.clone(),
            settings: context.settings.clone(),
            memory: self.memory.clone(),
        });
        let workers = context.settings.borrow().workers_of(ControllerName::Node);
        tokio::join!(runtime::run(syncer, self.queue.clone(), workers, context.clone()), rounds(&context, all));
    }
}

struct Syncer {
    store: Arc<Datastore>,
    settings: watch::Receiver<Arc<Settings>>,
    memory: Arc<Mutex<Memory>>,
}

impl Reconcile for Syncer {
    const NAME: &'static str = NodeLabels::NAME;
    type Key = ObjectKey;

    async fn reconcile(&self, key: &ObjectKey) -> Result<Next, Failure> {
        if !self.settings.borrow().sync_node_labels {
            return Ok(Next::Done);
        }
        let bad = |error: merge::BadRecord| Failure::Permanent(format!("Node {key}: {error}"));
        let seen = self.memory.lock().unwrap_or_else(PoisonError::into_inner).of(key);
        let Some((kubernetes, labels, remembered)) = seen else { return Ok(Next::Done) };
        if merged(&remembered, &labels).map_err(bad)?.is_none() {
            return Ok(Next::Done);
        }
        // The cache may lag behind, so the labels are merged again into the stored node.
        let mut node = match self.store.get::<CalicoNode>(key).await {
            Err(StoreError::NotFound { .. }) => return Ok(Next::Done),
            found => found?,
        };
        if node.value.spec.kubernetes_name() != Some(kubernetes.name.as_str()) {
            return Ok(Next::Done);
        }
        let Some(Labelled { labels, record }) = merged(&labelled(&node.value), &labels).map_err(bad)? else {
            return Ok(Next::Done);
        };
        node.value.metadata.labels = labels;
        node.value.metadata.annotations.extend(record.map(|record| (RECORD.to_owned(), record)));
        self.store.update(key, &node.value, &node.revision).await?;
        Ok(Next::Done)
    }
}

fn labelled(node: &CalicoNode) -> Labelled {
    let metadata = &node.metadata;
    Labelled { labels: metadata.labels.clone(), record: metadata.annotations.get(RECORD).cloned() }
}

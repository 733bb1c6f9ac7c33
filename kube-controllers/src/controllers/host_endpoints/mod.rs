//! Automatic HostEndpoints of nodes, in either datastore.
//!
//! [`libcalico::host_endpoints`] computes the desired endpoints; this controller compares them with the stored ones.
//! Only endpoints with Calico's own label are changed or deleted. Those of a missing node are deleted only after the
//! datastore has confirmed that the node is missing.

mod cache;
mod reconcile;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use self::cache::HostEndpointCache;
use self::reconcile::HostEndpointReconciler;
use super::resync::resync;
use super::shared_cache::SharedCache;
use crate::context::Context;
use crate::runtime::{self, Controller, Queue, Reconcile};
use crate::settings::ControllerName;
use crate::watches::Watches;

/// The controller. Its keys are names of Calico nodes. A Kubernetes node of the same name is not required.
pub struct HostEndpoints {
    queue: Queue<String>,
    cache: SharedCache<HostEndpointCache>,
}

impl Controller for HostEndpoints {
    const NAME: &'static str = HostEndpointReconciler::NAME;

    fn new(_: &Context, watches: &mut Watches) -> Self {
        let (queue, cache) = (Queue::default(), SharedCache::<HostEndpointCache>::default());
        cache.subscribe(&mut watches.calico_nodes, &queue, HostEndpointCache::apply_node);
        cache.subscribe(&mut watches.host_endpoints, &queue, HostEndpointCache::apply_endpoint);
        HostEndpoints { queue, cache }
    }

    async fn run(self, context: Context) {
        let queue_all = || self.cache.lock().names().into_iter().for_each(|name| self.queue.add(name));
        let reconciler =
            HostEndpointReconciler::new(context.calico.clone(), context.settings.clone(), self.cache.clone());
        let workers = context.settings.borrow().workers_of(ControllerName::Node);
        tokio::join!(
            runtime::run(Arc::new(reconciler), self.queue.clone(), workers, context.clone()),
            resync(&context, queue_all)
        );
    }
}

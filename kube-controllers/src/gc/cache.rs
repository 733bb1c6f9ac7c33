//! Applies the events of all watches to the index, on the tasks of the watches.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use libcalico::api::{IpReservation, Node as CalicoNode, ObjectKey};
use libcalico::ipam::gc::{Feed, Index};
use libcalico::net::Cidr;
use libcalico::store::Entry;
use tokio::sync::Notify;

use super::projections::{is_migrating, put_block, put_pod, put_pool, put_service};
use crate::settings::Mode;
use crate::watched::{Node, Watched, WatchedVm, WatchedVmi};
use crate::watches::{Event, Watches};

/// The index of garbage collection, with a notification of changes. Cheap to clone.
#[derive(Clone)]
pub(super) struct ClusterCache {
    shared: Arc<Shared>,
}

struct Shared {
    index: Mutex<Index>,
    changed: Notify,
    /// Kinds of which a list has been complete.
    listed: Mutex<HashSet<Feed>>,
}

/// The kinds that must have been listed before any address is assessed, with their names for operators. Addresses of
/// Services and virtual machines stay until their kinds are known, and reservations are only counted.
const REQUIRED: [(Feed, &str); 5] = [
    (Feed::Blocks, "IPAMBlock"),
    (Feed::Pods, "Pod"),
    (Feed::KubernetesNodes, "Node of Kubernetes"),
    (Feed::CalicoNodes, "Node of Calico"),
    (Feed::Pools, "IPPool"),
];

impl ClusterCache {
    /// Subscribes the index to all watches.
    pub(super) fn new(mode: Mode, index: Index, watches: &mut Watches) -> Self {
        let shared = Shared { index: Mutex::new(index), changed: Notify::new(), listed: Mutex::default() };
        let cache = ClusterCache { shared: Arc::new(shared) };
        let block_gone = |index: &mut Index, key: &Cidr| index.block_gone(key);
        watches.blocks.subscribe(cache.listener(Feed::Blocks, put_block, block_gone));
        watches.pods.subscribe(cache.listener(Feed::Pods, put_pod, by_names(Index::pod_gone)));
        watches.services.subscribe(cache.listener(Feed::Services, put_service, by_names(Index::service_gone)));
        watches.machines.subscribe(cache.listener(
            Feed::Machines,
            |index, machine: &WatchedVm| by_names(Index::put_machine)(index, &machine.name),
            by_names(Index::machine_gone),
        ));
        watches.machine_instances.subscribe(cache.listener(
            Feed::Instances,
            |index, instance: &WatchedVmi| by_names(Index::put_instance)(index, &instance.name),
            by_names(Index::instance_gone),
        ));
        let pool_gone = |index: &mut Index, key: &ObjectKey| index.pool_gone(&key.name);
        watches.ip_pools.subscribe(cache.listener(Feed::Pools, put_pool, pool_gone));
        watches.ip_reservations.subscribe(cache.listener(
            Feed::Reservations,
            |index, reservation: &Entry<IpReservation>| index.put_reservation(&reservation.value),
            |index, key: &ObjectKey| index.reservation_gone(&key.name),
        ));
        cache.subscribe_to_nodes(mode, watches);
        cache
    }

    /// On a Kubernetes datastore, a Calico node is a Kubernetes node, and one watch delivers both.
    fn subscribe_to_nodes(&self, mode: Mode, watches: &mut Watches) {
        watches.nodes.subscribe(self.listener(
            Feed::KubernetesNodes,
            |index, node: &Node| index.put_kubernetes_node(&node.name.name, is_migrating(node)),
            |index, key: &ObjectKey| index.kubernetes_node_gone(&key.name),
        ));
        let calico_node_gone = |index: &mut Index, key: &ObjectKey| index.calico_node_gone(&key.name);
        match mode {
            Mode::Etcd => watches.calico_nodes.subscribe(self.listener(
                Feed::CalicoNodes,
                |index, node: &Entry<CalicoNode>| {
                    index.put_calico_node(&node.key.name, node.value.spec.kubernetes_name());
                },
                calico_node_gone,
            )),
            Mode::Kubernetes(_) => watches.nodes.subscribe(self.listener(
                Feed::CalicoNodes,
                |index, node: &Node| index.put_calico_node(&node.name.name, Some(&node.name.name)),
                calico_node_gone,
            )),
        }
    }

    fn listener<T: Watched>(
        &self,
        feed: Feed,
        put: impl Fn(&mut Index, &T) + Send + 'static,
        gone: impl Fn(&mut Index, &T::Key) + Send + 'static,
    ) -> impl FnMut(&Event<'_, T>) + Send + 'static {
        let cache = self.clone();
        move |event| {
            let mut index = cache.index();
            match event {
                Event::ListStart => index.list_begins(feed),
                Event::Upsert(object) => put(&mut index, object),
                Event::Delete(key) => gone(&mut index, key),
                Event::ListEnd => index.list_ends(feed),
            }
            drop(index);
            if matches!(event, Event::ListEnd) {
                cache.listed().insert(feed);
            }
            cache.shared.changed.notify_one();
        }
    }

    /// Marks each kind as listed.
    #[cfg(test)]
    pub(super) fn complete_all(&self) {
        self.listed().extend(REQUIRED.map(|(feed, _)| feed));
        self.listed().extend([Feed::Services, Feed::Machines, Feed::Instances, Feed::Reservations]);
    }

    fn listed(&self) -> MutexGuard<'_, HashSet<Feed>> {
        self.shared.listed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns true if all required kinds have been listed.
    pub(super) fn is_complete(&self) -> bool {
        self.required().all(|(_, awaited)| !awaited)
    }

    /// Returns the required kinds, with true for each that has not been listed yet.
    pub(super) fn required(&self) -> impl Iterator<Item = (&'static str, bool)> {
        let listed = self.listed().clone();
        REQUIRED.into_iter().map(move |(feed, name)| (name, !listed.contains(&feed)))
    }

    /// Returns true if all virtual machines are known.
    pub(super) fn knows_machines(&self) -> bool {
        let listed = self.listed();
        listed.contains(&Feed::Machines) && listed.contains(&Feed::Instances)
    }

    /// Returns true if all Services are known.
    pub(super) fn knows_services(&self) -> bool {
        self.listed().contains(&Feed::Services)
    }

    /// Wakes the next pass, as an event of a watch does.
    pub(super) fn wake(&self) {
        self.shared.changed.notify_one();
    }

    /// Waits for a change of the index.
    pub(super) async fn changed(&self) {
        self.shared.changed.notified().await;
    }

    /// Locks the index. A panic during a change may leave the index inconsistent. The next full list repairs most of
    /// that, and every release first checks the current state in the API.
    pub(super) fn index(&self) -> MutexGuard<'_, Index> {
        self.shared.index.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn by_names(gone: fn(&mut Index, &str, &str)) -> impl Fn(&mut Index, &ObjectKey) + Send + 'static {
    move |index, key| gone(index, key.namespace.as_deref().unwrap_or_default(), &key.name)
}

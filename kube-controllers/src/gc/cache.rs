//! Applies the events of all watches to the index, on the tasks of the watches.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use libcalico::api::{IpReservation, Node as CalicoNode, ObjectKey};
use libcalico::ipam::gc::{Feed, Index};
use libcalico::net::Cidr;
use libcalico::store::Entry;
use tokio::sync::Notify;

use super::projections::{is_migrating, put_block, put_instance, put_machine, put_pod, put_pool, put_service};
use crate::settings::Mode;
use crate::watched::{Node, Watched};
use crate::watches::{Event, Watches};

/// The index of garbage collection, with a notification of changes. Cheap to clone.
#[derive(Clone)]
pub(super) struct ClusterCache {
    shared: Arc<Shared>,
}

struct Shared {
    index: Mutex<Index>,
    changed: Notify,
    /// Kinds of which no list has been complete yet.
    awaited: Mutex<BTreeSet<RequiredKind>>,
}

/// The watched kinds. No address is assessed before the required kinds have been listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum RequiredKind {
    Blocks,
    Pods,
    KubernetesNodes,
    CalicoNodes,
    Pools,
    Reservations,
    Services,
    Machines,
    Instances,
}

impl RequiredKind {
    const ALL: [RequiredKind; 9] = [
        RequiredKind::Blocks,
        RequiredKind::Pods,
        RequiredKind::KubernetesNodes,
        RequiredKind::CalicoNodes,
        RequiredKind::Pools,
        RequiredKind::Reservations,
        RequiredKind::Services,
        RequiredKind::Machines,
        RequiredKind::Instances,
    ];

    /// Returns the name for operators.
    fn name(self) -> &'static str {
        match self {
            RequiredKind::Blocks => "IPAMBlock",
            RequiredKind::Pods => "Pod",
            RequiredKind::KubernetesNodes => "Node of Kubernetes",
            RequiredKind::CalicoNodes => "Node of Calico",
            RequiredKind::Pools => "IPPool",
            RequiredKind::Reservations => "IPReservation",
            RequiredKind::Services => "Service",
            RequiredKind::Machines => "VirtualMachine",
            RequiredKind::Instances => "VirtualMachineInstance",
        }
    }

    /// Returns true if the kind is not required. Addresses of Services and virtual machines stay until their kinds are
    /// known.
    fn can_wait(self) -> bool {
        matches!(
            self,
            RequiredKind::Services | RequiredKind::Machines | RequiredKind::Instances | RequiredKind::Reservations
        )
    }
}

impl ClusterCache {
    /// Subscribes the index to all watches.
    pub(super) fn new(mode: Mode, index: Index, watches: &mut Watches) -> Self {
        use RequiredKind::{Blocks, Instances, Machines, Pods, Pools, Reservations, Services};
        let awaited = BTreeSet::from(RequiredKind::ALL);
        let cache = ClusterCache {
            shared: Arc::new(Shared { index: Mutex::new(index), changed: Notify::new(), awaited: Mutex::new(awaited) }),
        };
        watches
            .blocks
            .subscribe(cache.listener(Blocks, Feed::Blocks, put_block, |index, key: &Cidr| index.block_gone(key)));
        watches.pods.subscribe(cache.listener(Pods, Feed::Pods, put_pod, by_names(Index::pod_gone)));
        watches.services.subscribe(cache.listener(
            Services,
            Feed::Services,
            put_service,
            by_names(Index::service_gone),
        ));
        watches.machines.subscribe(cache.listener(
            Machines,
            Feed::Machines,
            put_machine,
            by_names(Index::machine_gone),
        ));
        watches.machine_instances.subscribe(cache.listener(
            Instances,
            Feed::Instances,
            put_instance,
            by_names(Index::instance_gone),
        ));
        watches.ip_pools.subscribe(cache.listener(Pools, Feed::Pools, put_pool, |index, key: &ObjectKey| {
            index.pool_gone(&key.name);
        }));
        watches.ip_reservations.subscribe(cache.listener(
            Reservations,
            Feed::Reservations,
            |index, reservation: &Entry<IpReservation>| index.put_reservation(&reservation.value),
            |index, key: &ObjectKey| index.reservation_gone(&key.name),
        ));
        cache.subscribe_to_nodes(mode, watches);
        cache
    }

    /// On a Kubernetes datastore, a Calico node is a Kubernetes node, and one watch delivers both.
    fn subscribe_to_nodes(&self, mode: Mode, watches: &mut Watches) {
        match mode {
            Mode::Etcd => {
                watches.nodes.subscribe(self.listener(
                    RequiredKind::KubernetesNodes,
                    Feed::KubernetesNodes,
                    |index, node: &Node| index.put_kubernetes_node(&node.name.name, is_migrating(node)),
                    |index, key: &ObjectKey| index.kubernetes_node_gone(&key.name),
                ));
                watches.calico_nodes.subscribe(self.listener(
                    RequiredKind::CalicoNodes,
                    Feed::CalicoNodes,
                    |index, node: &Entry<CalicoNode>| {
                        index.put_calico_node(&node.key.name, node.value.spec.kubernetes_name());
                    },
                    |index, key: &ObjectKey| index.calico_node_gone(&key.name),
                ));
            }
            Mode::Kubernetes(_) => {
                let cache = self.clone();
                watches.nodes.subscribe(move |event: &Event<'_, Node>| cache.apply_node(event));
            }
        }
    }

    fn apply_node(&self, event: &Event<'_, Node>) {
        let mut index = self.index();
        match event {
            Event::ListStart => [Feed::KubernetesNodes, Feed::CalicoNodes].map(|feed| index.list_begins(feed)),
            Event::Upsert(node) => {
                let name = &node.name.name;
                [index.put_kubernetes_node(name, is_migrating(node)), index.put_calico_node(name, Some(name))]
            }
            Event::Delete(key) => [index.kubernetes_node_gone(&key.name), index.calico_node_gone(&key.name)],
            Event::ListEnd => [Feed::KubernetesNodes, Feed::CalicoNodes].map(|feed| index.list_ends(feed)),
        };
        drop(index);
        if matches!(event, Event::ListEnd) {
            self.complete(RequiredKind::KubernetesNodes);
            self.complete(RequiredKind::CalicoNodes);
        }
        self.shared.changed.notify_one();
    }

    fn listener<T: Watched>(
        &self,
        awaited: RequiredKind,
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
                cache.complete(awaited);
            }
            cache.shared.changed.notify_one();
        }
    }

    fn complete(&self, feed: RequiredKind) {
        self.awaited().remove(&feed);
    }

    /// Marks each kind as listed.
    #[cfg(test)]
    pub(super) fn complete_all(&self) {
        self.awaited().clear();
    }

    fn awaited(&self) -> MutexGuard<'_, BTreeSet<RequiredKind>> {
        self.shared.awaited.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns true if all required kinds have been listed.
    pub(super) fn is_complete(&self) -> bool {
        self.awaited().iter().all(|feed| feed.can_wait())
    }

    /// Returns the required kinds, with true for each that has not been listed yet.
    pub(super) fn required(&self) -> impl Iterator<Item = (&'static str, bool)> {
        let awaited = self.awaited().clone();
        let required = RequiredKind::ALL.into_iter().filter(|feed| !feed.can_wait());
        required.map(move |feed| (feed.name(), awaited.contains(&feed)))
    }

    /// Returns true if all virtual machines are known.
    pub(super) fn knows_machines(&self) -> bool {
        let awaited = self.awaited();
        !awaited.contains(&RequiredKind::Machines) && !awaited.contains(&RequiredKind::Instances)
    }

    /// Returns true if all Services are known.
    pub(super) fn knows_services(&self) -> bool {
        !self.awaited().contains(&RequiredKind::Services)
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

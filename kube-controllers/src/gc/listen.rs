//! Applies the events of all watches to the index, on the tasks of the watches.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use libcalico::api::{IpPool, IpReservation, Node as CalicoNode, ObjectKey};
use libcalico::ipam::Block;
use libcalico::ipam::gc::{Feed, Index};
use libcalico::net::Cidr;
use libcalico::store::Entry;
use tokio::sync::Notify;

use super::facts::{is_migrating, pod_facts};
use crate::settings::Mode;
use crate::watched::{Machine, MachineInstance, Node, Pod, Service, Watched};
use crate::watches::{Event, Feeds};

/// The index of garbage collection, with a notification of changes. Cheap to clone.
#[derive(Clone)]
pub(super) struct Known {
    shared: Arc<Shared>,
}

struct Shared {
    index: Mutex<Index>,
    changed: Notify,
    /// Kinds of which no list has been complete yet.
    awaited: Mutex<BTreeSet<Awaited>>,
}

/// The watched kinds. No address is assessed before the required kinds have been listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Awaited {
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

impl Awaited {
    const ALL: [Awaited; 9] = [
        Awaited::Blocks,
        Awaited::Pods,
        Awaited::KubernetesNodes,
        Awaited::CalicoNodes,
        Awaited::Pools,
        Awaited::Reservations,
        Awaited::Services,
        Awaited::Machines,
        Awaited::Instances,
    ];

    /// Returns the name for operators.
    fn name(self) -> &'static str {
        match self {
            Awaited::Blocks => "IPAMBlock",
            Awaited::Pods => "Pod",
            Awaited::KubernetesNodes => "Node of Kubernetes",
            Awaited::CalicoNodes => "Node of Calico",
            Awaited::Pools => "IPPool",
            Awaited::Reservations => "IPReservation",
            Awaited::Services => "Service",
            Awaited::Machines => "VirtualMachine",
            Awaited::Instances => "VirtualMachineInstance",
        }
    }

    /// Returns true if the kind is not required. Addresses of Services and virtual machines stay until their kinds are
    /// known.
    fn can_wait(self) -> bool {
        matches!(self, Awaited::Services | Awaited::Machines | Awaited::Instances | Awaited::Reservations)
    }
}

impl Known {
    /// Subscribes the index to all watches.
    pub(super) fn new(mode: Mode, index: Index, feeds: &mut Feeds) -> Self {
        use Awaited::{Blocks, Instances, Machines, Pods, Pools, Reservations, Services};
        let awaited = BTreeSet::from(Awaited::ALL);
        let known = Known {
            shared: Arc::new(Shared { index: Mutex::new(index), changed: Notify::new(), awaited: Mutex::new(awaited) }),
        };
        feeds
            .blocks
            .subscribe(known.listener(Blocks, Feed::Blocks, put_block, |index, key: &Cidr| index.block_gone(key)));
        feeds.pods.subscribe(known.listener(Pods, Feed::Pods, put_pod, named(Index::pod_gone)));
        feeds.services.subscribe(known.listener(Services, Feed::Services, put_service, named(Index::service_gone)));
        feeds.machines.subscribe(known.listener(Machines, Feed::Machines, put_machine, named(Index::machine_gone)));
        feeds.machine_instances.subscribe(known.listener(
            Instances,
            Feed::Instances,
            put_instance,
            named(Index::instance_gone),
        ));
        feeds.ip_pools.subscribe(known.listener(Pools, Feed::Pools, put_pool, |index, key: &ObjectKey| {
            index.pool_gone(&key.name);
        }));
        feeds.ip_reservations.subscribe(known.listener(
            Reservations,
            Feed::Reservations,
            |index, reservation: &Entry<IpReservation>| index.put_reservation(&reservation.value),
            |index, key: &ObjectKey| index.reservation_gone(&key.name),
        ));
        known.subscribe_to_nodes(mode, feeds);
        known
    }

    /// On a Kubernetes datastore, a Calico node is a Kubernetes node, and one watch delivers both.
    fn subscribe_to_nodes(&self, mode: Mode, feeds: &mut Feeds) {
        match mode {
            Mode::Etcd => {
                feeds.nodes.subscribe(self.listener(
                    Awaited::KubernetesNodes,
                    Feed::KubernetesNodes,
                    |index, node: &Node| index.put_kubernetes_node(&node.name.name, is_migrating(node)),
                    |index, key: &ObjectKey| index.kubernetes_node_gone(&key.name),
                ));
                feeds.calico_nodes.subscribe(self.listener(
                    Awaited::CalicoNodes,
                    Feed::CalicoNodes,
                    |index, node: &Entry<CalicoNode>| {
                        index.put_calico_node(&node.key.name, node.value.spec.kubernetes_name());
                    },
                    |index, key: &ObjectKey| index.calico_node_gone(&key.name),
                ));
            }
            Mode::Kubernetes(_) => {
                let known = self.clone();
                feeds.nodes.subscribe(move |event: &Event<'_, Node>| known.hear_node(event));
            }
        }
    }

    fn hear_node(&self, event: &Event<'_, Node>) {
        let mut index = self.index();
        match event {
            Event::Restarted => [Feed::KubernetesNodes, Feed::CalicoNodes].map(|feed| index.list_begins(feed)),
            Event::Put(node) => {
                let name = &node.name.name;
                [index.put_kubernetes_node(name, is_migrating(node)), index.put_calico_node(name, Some(name))]
            }
            Event::Gone(key) => [index.kubernetes_node_gone(&key.name), index.calico_node_gone(&key.name)],
            Event::Synced => [Feed::KubernetesNodes, Feed::CalicoNodes].map(|feed| index.list_ends(feed)),
        };
        drop(index);
        if matches!(event, Event::Synced) {
            self.complete(Awaited::KubernetesNodes);
            self.complete(Awaited::CalicoNodes);
        }
        self.shared.changed.notify_one();
    }

    fn listener<T: Watched>(
        &self,
        awaited: Awaited,
        feed: Feed,
        put: impl Fn(&mut Index, &T) + Send + 'static,
        gone: impl Fn(&mut Index, &T::Key) + Send + 'static,
    ) -> impl FnMut(&Event<'_, T>) + Send + 'static {
        let known = self.clone();
        move |event| {
            let mut index = known.index();
            match event {
                Event::Restarted => index.list_begins(feed),
                Event::Put(object) => put(&mut index, object),
                Event::Gone(key) => gone(&mut index, key),
                Event::Synced => index.list_ends(feed),
            }
            drop(index);
            if matches!(event, Event::Synced) {
                known.complete(awaited);
            }
            known.shared.changed.notify_one();
        }
    }

    fn complete(&self, feed: Awaited) {
        self.awaited().remove(&feed);
    }

    /// Marks each kind as listed.
    #[cfg(test)]
    pub(super) fn complete_all(&self) {
        self.awaited().clear();
    }

    fn awaited(&self) -> MutexGuard<'_, BTreeSet<Awaited>> {
        self.shared.awaited.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns true if all required kinds have been listed.
    pub(super) fn is_complete(&self) -> bool {
        self.awaited().iter().all(|feed| feed.can_wait())
    }

    /// Returns the required kinds, with true for each that has not been listed yet.
    pub(super) fn required(&self) -> impl Iterator<Item = (&'static str, bool)> {
        let awaited = self.awaited().clone();
        let required = Awaited::ALL.into_iter().filter(|feed| !feed.can_wait());
        required.map(move |feed| (feed.name(), awaited.contains(&feed)))
    }

    /// Returns true if all virtual machines are known.
    pub(super) fn knows_machines(&self) -> bool {
        let awaited = self.awaited();
        !awaited.contains(&Awaited::Machines) && !awaited.contains(&Awaited::Instances)
    }

    /// Returns true if all Services are known.
    pub(super) fn knows_services(&self) -> bool {
        !self.awaited().contains(&Awaited::Services)
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

fn named(gone: fn(&mut Index, &str, &str)) -> impl Fn(&mut Index, &ObjectKey) + Send + 'static {
    move |index, key| gone(index, key.namespace.as_deref().unwrap_or_default(), &key.name)
}

fn names(key: &ObjectKey) -> (&str, &str) {
    (key.namespace.as_deref().unwrap_or_default(), &key.name)
}

fn put_block(index: &mut Index, block: &Entry<Block>) {
    if let Err(problem) = index.put_block(&block.value) {
        tracing::error!(block = %block.key, %problem, "a block is left out; `calico-ipam check` tells more");
    }
}

fn put_pod(index: &mut Index, pod: &Pod) {
    let (namespace, name) = names(&pod.name);
    // The index also contains pods on the host network. Their addresses are the host's and belong to no pool.
    index.put_pod(namespace, name, &pod_facts(pod));
}

fn put_service(index: &mut Index, service: &Service) {
    let (namespace, name) = names(&service.name);
    match service.spec.type_.as_deref() {
        Some("LoadBalancer") => index.put_service(namespace, name),
        _ => index.service_gone(namespace, name),
    }
}

fn put_machine(index: &mut Index, machine: &Machine) {
    let (namespace, name) = names(&machine.name);
    index.put_machine(namespace, name);
}

fn put_instance(index: &mut Index, instance: &MachineInstance) {
    let (namespace, name) = names(&instance.name);
    index.put_instance(namespace, name);
}

fn put_pool(index: &mut Index, pool: &Entry<IpPool>) {
    let name = &pool.key.name;
    match pool.value.spec.cidr.parse::<Cidr>() {
        Ok(cidr) if pool.value.metadata.deletion_timestamp.is_none() => index.put_pool(name, cidr),
        Ok(_) => index.pool_gone(name),
        Err(error) => {
            tracing::warn!(pool = name, %error, "a pool is left out of the metrics");
            index.pool_gone(name);
        }
    }
}

//! [`WatchFeed`]: delivers the changes of a simulated cluster to watches that lag behind.

use std::collections::BTreeMap;

use kube_controllers::watched::{Labels, Node, Pod, Projection, ProjectionOptions, Watched};
use kube_controllers::watches::{Event, Subscribers, Watches};
use libcalico::api::ObjectKey;
use libcalico::store::{Answers, Entry, Kind, RawEntry, ReadBatch};

use crate::cluster::{Cluster, NAMESPACE};
use crate::datastore::SharedDatastore;
use crate::kubernetes_objects::{KubernetesObjects, ObjectChange};
use crate::schedule::Schedule;

/// The number of changes by which a watch lags at most, each kind by its own number.
const LONGEST_LAG: usize = 12;

/// The watches of a leader, each with the number of the last state that it has delivered.
pub struct WatchFeed {
    schedule: Schedule,
    datastore: SharedDatastore,
    kubernetes: KubernetesObjects,
    watches: Watches,
    blocks: Delivered,
    pools: Delivered,
    calico_nodes: Delivered,
    pods: Delivered,
    nodes: Delivered,
}

/// What a watch has delivered.
#[derive(Default)]
struct Delivered {
    /// The number of the last delivered state; `None` before the first list.
    state: Option<usize>,
    /// Whether the connection is broken, so that nothing is delivered.
    is_broken: bool,
}

impl WatchFeed {
    /// Creates the watches, and delivers a list of each kind.
    pub fn new(cluster: &Cluster, watches: Watches) -> Self {
        cluster.datastore.keep_all();
        let mut feed = WatchFeed {
            schedule: cluster.schedule.clone(),
            datastore: cluster.datastore.clone(),
            kubernetes: cluster.kubernetes.clone(),
            watches,
            blocks: Delivered::default(),
            pools: Delivered::default(),
            calico_nodes: Delivered::default(),
            pods: Delivered::default(),
            nodes: Delivered::default(),
        };
        feed.deliver_some();
        feed
    }

    /// Delivers changes of each kind up to a moment that may lie in the past, except of kinds whose
    /// watch is broken.
    pub fn deliver_some(&mut self) {
        let schedule = self.schedule.clone();
        self.deliver(|delivered, present| {
            delivered.is_broken = match delivered.is_broken {
                true => !schedule.one_in(6),
                false => schedule.one_in(8),
            };
            match (delivered.is_broken, delivered.state) {
                (true, Some(state)) => state,
                _ if schedule.one_in(2) => present.saturating_sub(schedule.below(LONGEST_LAG)),
                _ => present,
            }
        });
    }

    /// Delivers all changes.
    pub fn deliver_all(&mut self) {
        self.deliver(|_, present| present);
    }

    /// Delivers changes up to the state whose number `choose` returns, given the present one.
    fn deliver(&mut self, choose: impl Fn(&mut Delivered, usize) -> usize) {
        let stored = self.datastore.former_states();
        let watches = &mut self.watches;
        let to = choose(&mut self.blocks, stored);
        deliver_kind(&self.datastore, &mut watches.blocks, &mut self.blocks, to);
        let to = choose(&mut self.pools, stored);
        deliver_kind(&self.datastore, &mut watches.ip_pools, &mut self.pools, to);
        let (nodes, to) = (
            &mut watches.calico_nodes,
            choose(&mut self.calico_nodes, stored),
        );
        deliver_kind(&self.datastore, nodes, &mut self.calico_nodes, to);
        let changes = self.kubernetes.changes_from(0);
        let to = choose(&mut self.pods, changes.len());
        deliver_objects(&changes, &mut watches.pods, &mut self.pods, to, of_pod);
        let to = choose(&mut self.nodes, changes.len());
        deliver_objects(&changes, &mut watches.nodes, &mut self.nodes, to, of_node);
    }
}

fn deliver_kind<K: Kind>(
    datastore: &SharedDatastore,
    subscribers: &mut Subscribers<Entry<K>>,
    delivered: &mut Delivered,
    to: usize,
) where
    K::Select: Default,
    K::Key: Ord + 'static,
{
    let mut batch = ReadBatch::new();
    let ticket = batch.list::<K>(&K::Select::default());
    let state = |number| -> BTreeMap<String, RawEntry> {
        let pairs = datastore
            .pairs_in_state(number, &batch.ranges()[0])
            .into_iter();
        pairs.map(|pair| (pair.path.clone(), pair)).collect()
    };
    let upsert = |subscribers: &mut Subscribers<Entry<K>>, changed: Vec<RawEntry>| {
        for (key, entry) in Answers::new(vec![changed]).each(&ticket) {
            let entry = entry.unwrap_or_else(|error| panic!("{key} is unreadable: {error}"));
            subscribers.dispatch(&Event::Upsert(&entry));
        }
    };
    let next = to.max(delivered.state.unwrap_or_default());
    let Some(from) = delivered.state.replace(next) else {
        subscribers.dispatch(&Event::ListStart);
        upsert(subscribers, state(to).into_values().collect());
        return subscribers.dispatch(&Event::ListEnd);
    };
    let mut former = state(from);
    for number in from + 1..=to {
        let next = state(number);
        for path in former.keys().filter(|path| !next.contains_key(*path)) {
            let key = K::parse_path(path).expect("the path is that of the kind");
            subscribers.dispatch(&Event::Delete(&key));
        }
        let changed = next
            .values()
            .filter(|pair| former.get(&pair.path) != Some(*pair));
        upsert(subscribers, changed.cloned().collect());
        former = next;
    }
}

/// A change of an object of a kind.
enum Delivery<T> {
    Upsert(T),
    Delete(ObjectKey),
}

fn deliver_objects<T: Watched<Key = ObjectKey>>(
    changes: &[ObjectChange],
    subscribers: &mut Subscribers<T>,
    delivered: &mut Delivered,
    to: usize,
    read: fn(&ObjectChange) -> Option<Delivery<T>>,
) {
    let next = to.max(delivered.state.unwrap_or_default());
    let Some(from) = delivered.state.replace(next) else {
        let mut listed = BTreeMap::new();
        for change in changes[..to].iter().filter_map(read) {
            match change {
                Delivery::Upsert(object) => _ = listed.insert(object.key(), object),
                Delivery::Delete(key) => _ = listed.remove(&key),
            }
        }
        subscribers.dispatch(&Event::ListStart);
        listed
            .values()
            .for_each(|object| subscribers.dispatch(&Event::Upsert(object)));
        return subscribers.dispatch(&Event::ListEnd);
    };
    for change in changes[from..to.max(from)].iter().filter_map(read) {
        match change {
            Delivery::Upsert(object) => subscribers.dispatch(&Event::Upsert(&object)),
            Delivery::Delete(key) => subscribers.dispatch(&Event::Delete(&key)),
        }
    }
}

fn of_pod(change: &ObjectChange) -> Option<Delivery<Pod>> {
    match change {
        ObjectChange::Pod(pod) => {
            let text = pod.json().to_string();
            let pod = Pod::project(&text, ProjectionOptions::default());
            Some(Delivery::Upsert(pod.expect("the pod can be read")))
        }
        ObjectChange::PodDeleted(name) => {
            Some(Delivery::Delete(ObjectKey::namespaced(NAMESPACE, name)))
        }
        ObjectChange::Node(_) | ObjectChange::NodeDeleted(_) => None,
    }
}

fn of_node(change: &ObjectChange) -> Option<Delivery<Node>> {
    match change {
        ObjectChange::Node(name) => Some(Delivery::Upsert(Node {
            name: ObjectKey::global(name),
            uid: format!("uid of {name}"),
            labels: Labels::new(),
        })),
        ObjectChange::NodeDeleted(name) => Some(Delivery::Delete(ObjectKey::global(name))),
        ObjectChange::Pod(_) | ObjectChange::PodDeleted(_) => None,
    }
}

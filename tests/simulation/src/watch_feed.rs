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
    blocks: Option<usize>,
    pools: Option<usize>,
    calico_nodes: Option<usize>,
    pods: Option<usize>,
    nodes: Option<usize>,
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
            blocks: None,
            pools: None,
            calico_nodes: None,
            pods: None,
            nodes: None,
        };
        feed.deliver_some();
        feed
    }

    /// Delivers changes of each kind up to a moment that may lie in the past.
    pub fn deliver_some(&mut self) {
        let schedule = self.schedule.clone();
        self.deliver(|present| match schedule.one_in(2) {
            true => present.saturating_sub(schedule.below(LONGEST_LAG)),
            false => present,
        });
    }

    /// Delivers all changes.
    pub fn deliver_all(&mut self) {
        self.deliver(|present| present);
    }

    /// Delivers changes up to the state whose number `choose` returns, given the present one.
    fn deliver(&mut self, choose: impl Fn(usize) -> usize) {
        let stored = self.datastore.former_states();
        let watches = &mut self.watches;
        deliver_kind(
            &self.datastore,
            &mut watches.blocks,
            &mut self.blocks,
            choose(stored),
        );
        deliver_kind(
            &self.datastore,
            &mut watches.ip_pools,
            &mut self.pools,
            choose(stored),
        );
        let nodes = &mut watches.calico_nodes;
        deliver_kind(
            &self.datastore,
            nodes,
            &mut self.calico_nodes,
            choose(stored),
        );
        let changes = self.kubernetes.changes_from(0);
        deliver_objects(
            &changes,
            &mut watches.pods,
            &mut self.pods,
            choose(changes.len()),
            of_pod,
        );
        let nodes = &mut watches.nodes;
        deliver_objects(
            &changes,
            nodes,
            &mut self.nodes,
            choose(changes.len()),
            of_node,
        );
    }
}

fn deliver_kind<K: Kind>(
    datastore: &SharedDatastore,
    subscribers: &mut Subscribers<Entry<K>>,
    delivered: &mut Option<usize>,
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
    let Some(from) = delivered.replace(to.max(delivered.unwrap_or_default())) else {
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
enum Delivered<T> {
    Upsert(T),
    Delete(ObjectKey),
}

fn deliver_objects<T: Watched<Key = ObjectKey>>(
    changes: &[ObjectChange],
    subscribers: &mut Subscribers<T>,
    delivered: &mut Option<usize>,
    to: usize,
    read: fn(&ObjectChange) -> Option<Delivered<T>>,
) {
    let Some(from) = delivered.replace(to.max(delivered.unwrap_or_default())) else {
        let mut listed = BTreeMap::new();
        for change in changes[..to].iter().filter_map(read) {
            match change {
                Delivered::Upsert(object) => _ = listed.insert(object.key(), object),
                Delivered::Delete(key) => _ = listed.remove(&key),
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
            Delivered::Upsert(object) => subscribers.dispatch(&Event::Upsert(&object)),
            Delivered::Delete(key) => subscribers.dispatch(&Event::Delete(&key)),
        }
    }
}

fn of_pod(change: &ObjectChange) -> Option<Delivered<Pod>> {
    match change {
        ObjectChange::Pod(pod) => {
            let text = pod.json().to_string();
            let pod = Pod::project(&text, ProjectionOptions::default());
            Some(Delivered::Upsert(pod.expect("the pod can be read")))
        }
        ObjectChange::PodDeleted(name) => {
            Some(Delivered::Delete(ObjectKey::namespaced(NAMESPACE, name)))
        }
        ObjectChange::Node(_) | ObjectChange::NodeDeleted(_) => None,
    }
}

fn of_node(change: &ObjectChange) -> Option<Delivered<Node>> {
    match change {
        ObjectChange::Node(name) => Some(Delivered::Upsert(Node {
            name: ObjectKey::global(name),
            uid: format!("uid of {name}"),
            labels: Labels::new(),
        })),
        ObjectChange::NodeDeleted(name) => Some(Delivered::Delete(ObjectKey::global(name))),
        ObjectChange::Pod(_) | ObjectChange::PodDeleted(_) => None,
    }
}

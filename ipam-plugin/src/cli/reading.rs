//! [`Reading`]: everything that `check` compares and `release` looks at again, from one snapshot.

use std::collections::BTreeMap;
use std::net::IpAddr;

use datastore::Datastore;
use libcalico::api::{IpPool, ObjectKey, ObjectSelect, WorkloadEndpoint};
use libcalico::ipam::{
    AffinitySelect, Allocation, Block, BlockAffinity, EndpointFacts, Finding, Handle, Inventory, Keeper, PodFacts,
    Pods, Sight, audit, pod_keeper,
};
use libcalico::kubernetes::Pod;
use libcalico::net::Cidr;
use libcalico::store::{Entry, Kind, RawEntry, ReadBatch, Store, StoreError, decode_entry};
use serde::{Deserialize, Serialize};
use time::{Duration, OffsetDateTime};

use super::endpoints;
use super::progress::Progress;

/// What is stored, decoded.
#[derive(Debug, Default)]
pub(super) struct Reading {
    pub(super) pools: Vec<Entry<IpPool>>,
    pub(super) blocks: Vec<Entry<Block>>,
    pub(super) handles: Vec<Entry<Handle>>,
    affinities: Vec<Entry<BlockAffinity>>,
    pub(super) endpoints: Vec<EndpointFacts>,
    /// On Kubernetes, where an endpoint is a view of its pod.
    pub(super) pods: Pods,
    pub(super) unreadable: Vec<Unreadable>,
}

/// A stored value that cannot be read. Allocation skips such values, so nothing else would tell (DS-42).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Unreadable {
    /// Its path.
    pub(super) key: String,
    /// The decoder's words.
    pub(super) reason: String,
}

impl Reading {
    /// Reads all of it.
    pub(super) async fn take(store: &Datastore) -> Result<Self, StoreError> {
        if let Datastore::Kubernetes(_) = store {
            return Self::take_objects(store).await;
        }
        let pairs = store.scan("/calico/").await?;
        let progress = Progress::new("reading the datastore", pairs.len());
        let mut reading = Reading::default();
        for pair in &pairs {
            reading.sort_in(pair);
            progress.step();
        }
        Ok(reading)
    }

    /// The same where there are objects and no pairs: the API server takes none that does not fit its definition.
    async fn take_objects(store: &Datastore) -> Result<Self, StoreError> {
        let mut batch = ReadBatch::new();
        let pools = batch.list(&ObjectSelect::default());
        let blocks = batch.list(&None);
        let handles = batch.list(&());
        let affinities = batch.list(&AffinitySelect::default());
        let endpoints = batch.list(&ObjectSelect::default());
        // No further request: endpoints are made of the same answer.
        let pods = batch.list::<Pod>(&ObjectSelect::default());
        let answers = store.read(&batch).await?;
        Ok(Reading {
            pools: answers.list(&pools),
            blocks: answers.list(&blocks),
            handles: answers.list(&handles),
            affinities: answers.list(&affinities),
            endpoints: answers.list(&endpoints).iter().map(|entry| facts(&entry.value)).collect(),
            pods: answers
                .each(&pods)
                .map(|(key, pod)| (key, pod.map_or(Sight::Unknown, |pod| Sight::Present(pod.value))))
                .collect(),
            unreadable: Vec::new(),
        })
    }

    fn sort_in(&mut self, pair: &RawEntry) {
        let unreadable = &mut self.unreadable;
        sort(pair, &mut self.pools, unreadable);
        sort(pair, &mut self.blocks, unreadable);
        sort(pair, &mut self.handles, unreadable);
        sort(pair, &mut self.affinities, unreadable);
        let mut endpoints = Vec::new();
        sort(pair, &mut endpoints, unreadable);
        self.endpoints.extend(endpoints.iter().map(|entry| facts(&entry.value)));
    }

    /// Everything that contradicts something else. An address without endpoint that is younger than `in_flight` is taken
    /// for one of an ADD under way.
    pub(super) fn audit(&self, in_flight: Duration) -> Vec<Finding> {
        let pools: Vec<Cidr> = self.pools.iter().filter_map(|pool| pool.value.spec.range().ok()).collect();
        audit(&Inventory {
            pools: &pools,
            blocks: &self.blocks,
            handles: &self.handles,
            affinities: &self.affinities,
            endpoints: &self.endpoints,
            pods: &self.pods,
            now: OffsetDateTime::now_utc(),
            in_flight,
        })
    }

    /// How `address` is held; `None` when it is free or resting.
    pub(super) fn allocation(&self, address: IpAddr) -> Option<(Cidr, Allocation<'_>)> {
        let held = self.blocks.iter().find_map(|block| Some((block.key, block.value.allocation(address)?)));
        held.filter(|(_, allocation)| !allocation.is_cooling())
    }

    /// Why the pod that the allocation of `address` names keeps it.
    pub(super) fn pod_that_keeps(&self, address: IpAddr) -> Option<Keeper> {
        pod_keeper(&self.allocation(address)?.1, &self.pods)
    }

    /// Returns the attributes of the pod or container that reports `address`: an endpoint that has it, or a pod whose
    /// status has. Which handle held it cannot be told.
    pub(super) fn reporter(&self, address: IpAddr) -> Option<BTreeMap<String, String>> {
        let endpoint = self.endpoints_of(address).next();
        let of_endpoint = endpoint.map(|endpoint| (endpoint.node.as_str(), endpoint.pod.as_ref()));
        let (node, pod) = of_endpoint.or_else(|| {
            self.pods.iter().find_map(|(key, pod)| {
                let Sight::Present(pod) = pod else { return None };
                let sight = PodFacts::of(pod).sight(address);
                let runs = sight.ended.is_none() && !pod.spec.host_network;
                (runs && sight.has == Some(true)).then_some((sight.node, Some(key)))
            })
        })?;
        let pod = pod
            .into_iter()
            .flat_map(|key| [("namespace", key.namespace.as_deref().unwrap_or_default()), ("pod", key.name.as_str())]);
        Some(pod.chain([("node", node)]).map(|(key, value)| (key.to_owned(), value.to_owned())).collect())
    }

    /// A pod that may have any address, as it cannot be read.
    pub(super) fn unreadable_pod(&self) -> Option<&ObjectKey> {
        self.pods.iter().find(|(_, pod)| matches!(pod, Sight::Unknown)).map(|(key, _)| key)
    }

    /// The endpoints that have `address`.
    pub(super) fn endpoints_of(&self, address: IpAddr) -> impl Iterator<Item = &EndpointFacts> {
        self.endpoints.iter().filter(move |endpoint| endpoint.addresses.contains(&address))
    }
}

/// Puts `pair` to the others of kind `K`, if it is one.
fn sort<K: Kind>(pair: &RawEntry, of_kind: &mut Vec<Entry<K>>, unreadable: &mut Vec<Unreadable>) {
    if K::parse_path(&pair.path).is_none() {
        return;
    }
    match decode_entry(pair) {
        Ok(entry) => of_kind.push(entry),
        Err(error) => unreadable.push(Unreadable { key: pair.path.clone(), reason: error.to_string() }),
    }
}

/// An endpoint's addresses, written with or without a prefix length.
pub(super) fn facts(endpoint: &WorkloadEndpoint) -> EndpointFacts {
    let spec = &endpoint.spec;
    let address = |text: &String| text.split('/').next().and_then(|address| address.parse().ok());
    EndpointFacts {
        name: format!("{}/{}", endpoint.metadata.namespace, endpoints::workload(endpoint)),
        node: spec.node.clone(),
        pod: (!spec.pod.is_empty()).then(|| ObjectKey::namespaced(&endpoint.metadata.namespace, &spec.pod)),
        addresses: spec.ip_networks.iter().filter_map(address).collect(),
        container_id: (!spec.container_id.is_empty()).then(|| spec.container_id.clone()),
    }
}

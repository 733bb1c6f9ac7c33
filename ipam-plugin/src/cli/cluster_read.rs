//! [`ClusterRead`]: all objects that `check` compares and `release` verifies.

use std::net::IpAddr;

use datastore::Datastore;
use libcalico::api::{AllowedUse, IpPool, IpPoolSpec, Node, ObjectKey, ObjectSelect, WorkloadEndpoint};
use libcalico::ipam::{
    AffinityOwner, AffinitySelect, Allocation, AuditedEndpoint, Block, BlockAffinity, Finding, Handle, HandleId,
    InUseReason, Inventory, LOAD_BALANCER_HOST, Lookup, PodState, Pods, RecordedOwner, audit, pod_in_use_reason,
    tunnels_of,
};
use libcalico::kubernetes::{CONTAINER_ID, Pod};
use libcalico::net::Cidr;
use libcalico::store::{
    Answers, Entry, Kind, ListTicket, RawEntry, ReadBatch, Store, StoreError, WriteModel, decode_entry,
};
use serde::{Deserialize, Serialize};
use time::{Duration, OffsetDateTime};

use super::app::Progress;
use super::endpoints;

#[derive(Debug, Default)]
pub(super) struct ClusterRead {
    pub(super) pools: Vec<Entry<IpPool>>,
    pub(super) blocks: Vec<Entry<Block>>,
    pub(super) handles: Vec<Entry<Handle>>,
    affinities: Vec<Entry<BlockAffinity>>,
    pub(super) endpoints: Vec<AuditedEndpoint>,
    /// The pods, on Kubernetes, where an endpoint is derived from its pod.
    pub(super) pods: Pods,
    /// The nodes, whose tunnels have addresses. Read only if a block is inconsistent.
    pub(super) nodes: Vec<Result<Entry<Node>, StoreError>>,
    pub(super) unreadable: Vec<UnreadableObject>,
}

/// A stored value that cannot be read. Allocation skips such values in lists without an error (DS-42).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct UnreadableObject {
    pub(super) key: String,
    pub(super) reason: String,
}

impl ClusterRead {
    pub(super) async fn read(store: &Datastore) -> Result<Self, StoreError> {
        let mut cluster = match store {
            Datastore::Kubernetes(_) => Self::read_objects(store).await?,
            Datastore::Etcd(_) | Datastore::Local(_) => Self::read_pairs(store).await?,
        };
        if !cluster.blocks.iter().all(|block| block.value.is_consistent()) {
            let mut batch = ReadBatch::new();
            let nodes = batch.list::<Node>(&ObjectSelect::default());
            cluster.nodes = match store.read(&batch).await {
                Ok(answers) => answers.each(&nodes).map(|(_, node)| node).collect(),
                Err(error) => vec![Err(error)],
            };
        }
        Ok(cluster)
    }

    async fn read_pairs(store: &Datastore) -> Result<Self, StoreError> {
        let pairs = store.scan("/calico/").await?;
        let progress = Progress::new("reading the datastore", pairs.len());
        let mut cluster = ClusterRead::default();
        for pair in &pairs {
            let unreadable = &mut cluster.unreadable;
            insert_if_kind(pair, &mut cluster.pools, unreadable);
            insert_if_kind(pair, &mut cluster.blocks, unreadable);
            insert_if_kind(pair, &mut cluster.handles, unreadable);
            insert_if_kind(pair, &mut cluster.affinities, unreadable);
            let mut endpoints = Vec::new();
            insert_if_kind(pair, &mut endpoints, unreadable);
            cluster.endpoints.extend(endpoints.iter().map(|entry| audited_endpoint(&entry.value)));
            progress.step();
        }
        Ok(cluster)
    }

    /// The definitions on an API server allow invalid values, such as a block's `cidr` of any text. An unreadable pod
    /// is [`Lookup::Unknown`].
    async fn read_objects(store: &impl Store) -> Result<Self, StoreError> {
        let mut batch = ReadBatch::new();
        let pools = batch.list(&ObjectSelect::default());
        let blocks = batch.list(&None);
        let handles = batch.list(&());
        let affinities = batch.list::<BlockAffinity>(&AffinitySelect::default());
        let of_services =
            batch.list::<BlockAffinity>(&AffinitySelect::of(AffinityOwner::Virtual(LOAD_BALANCER_HOST.into())));
        // Versions before the labels wrote affinities that a list by owner does not contain (DS-70).
        let unlabeled = (store.write_model() == WriteModel::PerObject)
            .then(|| batch.list::<BlockAffinity>(&AffinitySelect::without_labels()));
        let endpoints = batch.list(&ObjectSelect::default());
        // This takes no further request, because endpoints are derived from the same response.
        let pods = batch.list::<Pod>(&ObjectSelect::default());
        let answers = store.read(&batch).await?;
        let mut unreadable = Vec::new();
        let mut affinities = readable(&answers, &affinities, &mut unreadable);
        affinities.extend(readable(&answers, &of_services, &mut unreadable));
        if let Some(unlabeled) = &unlabeled {
            // The list of all hosts' affinities contains those without labels.
            let unlabeled = readable(&answers, unlabeled, &mut unreadable).into_iter();
            affinities.extend(unlabeled.filter(|affinity| matches!(affinity.key.owner, AffinityOwner::Virtual(_))));
        }
        let pools = readable(&answers, &pools, &mut unreadable);
        let blocks = readable(&answers, &blocks, &mut unreadable);
        let handles = readable(&answers, &handles, &mut unreadable);
        // Several lists of affinities contain the same object.
        unreadable.sort_by(|a, b| a.key.cmp(&b.key));
        unreadable.dedup();
        Ok(ClusterRead {
            pools,
            blocks,
            handles,
            affinities,
            unreadable,
            endpoints: answers.list(&endpoints).iter().map(|entry| audited_endpoint(&entry.value)).collect(),
            pods: answers
                .each(&pods)
                .map(|(key, pod)| (key, pod.map_or(Lookup::Unknown, |pod| Lookup::Present(pod.value))))
                .collect(),
            ..ClusterRead::default()
        })
    }

    /// An address without endpoint that is younger than `in_flight` is treated as part of an ADD in progress.
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

    /// Returns the allocation of `address`, or `None` if the address is free or cooling down.
    pub(super) fn allocation(&self, address: IpAddr) -> Option<(Cidr, Allocation<'_>)> {
        let held = self.blocks.iter().find_map(|block| Some((block.key, block.value.allocation(address)?)));
        held.filter(|(_, allocation)| !allocation.is_cooling())
    }

    /// Returns the reason why the pod in the allocation of `address` still needs the address, if it does.
    pub(super) fn keeping_pod(&self, address: IpAddr) -> Option<InUseReason> {
        pod_in_use_reason(&self.allocation(address)?.1, &self.pods)
    }

    /// Returns the owner of an address that `block` does not name, from endpoints, pods and tunnels.
    pub(super) fn recorded_owner(&self, block: &Block, address: IpAddr) -> Option<RecordedOwner> {
        let nodes = self.nodes.iter().flatten();
        let tunnel = nodes.flat_map(|node| tunnels_of(&node.value)).find(|(ip, _)| *ip == address);
        if let Some((_, owner)) = tunnel {
            return Some(owner);
        }
        let endpoint = self.endpoints_of(address).next();
        let of_endpoint =
            endpoint.map(|endpoint| (endpoint.node.as_str(), endpoint.pod.as_ref(), endpoint.container_id.as_deref()));
        let (node, pod, container) = of_endpoint.or_else(|| {
            self.pods.iter().find_map(|(key, pod)| {
                let Lookup::Present(pod) = pod else { return None };
                let state = PodState::of(pod).address_state(address);
                let runs = state.ended.is_none() && !pod.spec.host_network;
                let container = pod.metadata.annotations.get(CONTAINER_ID).map(String::as_str);
                (runs && state.has == Some(true)).then_some((state.node, Some(key), container))
            })
        })?;
        let pod = pod
            .into_iter()
            .flat_map(|key| [("namespace", key.namespace.as_deref().unwrap_or_default()), ("pod", key.name.as_str())]);
        let attributes = pod.chain([("node", node)]).map(|(key, value)| (key.to_owned(), value.to_owned()));
        let handle = container.and_then(|container| self.uncounted_handle(block, container));
        Some(RecordedOwner { handle, attributes: attributes.collect() })
    }

    /// Returns the handle of a container that counts an address of `block` which the block does not name. On Kubernetes
    /// a tenant can set the container's ID: an ID that two pods have proves nothing, and no ID may form the handle of a
    /// VMI.
    fn uncounted_handle(&self, block: &Block, container: &str) -> Option<HandleId> {
        let named =
            self.endpoints.iter().filter(|endpoint| endpoint.container_id.as_deref() == Some(container)).count();
        let is_containers = |handle: &HandleId| handle.is_of_container(container) && !handle.may_be_of_vmi();
        let mut handles = self.uncounted(block).filter(|handle| is_containers(handle));
        handles.next().filter(|_| named <= 1 && !container.contains('.')).cloned()
    }

    /// Returns the stored handles that count more addresses of `block` than the block names.
    fn uncounted(&self, block: &Block) -> impl Iterator<Item = &HandleId> {
        let counts_more = |handle: &&Entry<Handle>| {
            let named = i64::try_from(block.addresses_of(&handle.key).len()).unwrap_or(i64::MAX);
            handle.value.block.get(&block.cidr).is_some_and(|counted| *counted > named)
        };
        self.handles.iter().filter(counts_more).map(|handle| &handle.key)
    }

    /// Returns the handle of a VMI that counts an address which `block` does not name. A stopped VM has neither pod nor
    /// endpoint.
    pub(super) fn uncounted_vmi(&self, block: &Block) -> Option<&HandleId> {
        self.uncounted(block).find(|handle| handle.may_be_of_vmi())
    }

    /// Returns true if addresses of the block may be those of Services.
    pub(super) fn serves_services(&self, block: &Block) -> bool {
        let is_of_services = matches!(block.owner(), Some(AffinityOwner::Virtual(_)));
        let mut pools = self.pools.iter().map(|pool| &pool.value.spec);
        let is_allowed = |pool: &IpPoolSpec| {
            pool.allows(AllowedUse::LoadBalancer) && pool.range().is_ok_and(|range| range.overlaps(&block.cidr))
        };
        is_of_services || pools.any(is_allowed)
    }

    /// Returns an unreadable pod, which may have any address.
    pub(super) fn unreadable_pod(&self) -> Option<&ObjectKey> {
        self.pods.iter().find(|(_, pod)| matches!(pod, Lookup::Unknown)).map(|(key, _)| key)
    }

    pub(super) fn endpoints_of(&self, address: IpAddr) -> impl Iterator<Item = &AuditedEndpoint> {
        self.endpoints.iter().filter(move |endpoint| endpoint.addresses.contains(&address))
    }
}

/// Returns the objects of a list that can be decoded, and adds the others to `unreadable`.
fn readable<K: Kind>(answers: &Answers, list: &ListTicket<K>, unreadable: &mut Vec<UnreadableObject>) -> Vec<Entry<K>> {
    let mut objects = Vec::new();
    for pair in answers.raw_entries(list) {
        insert_if_kind(pair, &mut objects, unreadable);
    }
    objects
}

/// Adds `pair` to `of_kind` if its path is of kind `K`, or to `unreadable` if its value cannot be decoded.
fn insert_if_kind<K: Kind>(pair: &RawEntry, of_kind: &mut Vec<Entry<K>>, unreadable: &mut Vec<UnreadableObject>) {
    if K::parse_path(&pair.path).is_none() {
        return;
    }
    match decode_entry(pair) {
        Ok(entry) => of_kind.push(entry),
        Err(error) => unreadable.push(UnreadableObject { key: pair.path.clone(), reason: error.to_string() }),
    }
}

pub(super) fn audited_endpoint(endpoint: &WorkloadEndpoint) -> AuditedEndpoint {
    let spec = &endpoint.spec;
    let address = |text: &String| text.split('/').next().and_then(|address| address.parse().ok());
    AuditedEndpoint {
        name: format!("{}/{}", endpoint.metadata.namespace, endpoints::workload(endpoint)),
        node: spec.node.clone(),
        pod: (!spec.pod.is_empty()).then(|| ObjectKey::namespaced(&endpoint.metadata.namespace, &spec.pod)),
        addresses: spec.ip_networks.iter().filter_map(address).collect(),
        container_id: (!spec.container_id.is_empty()).then(|| spec.container_id.clone()),
    }
}

#[cfg(test)]
mod tests {
    use libcalico::ipam::AffinityKey;
    use node_process::process::block_on;

    use super::*;
    use crate::cli::testing::Shell;
    use crate::testing::{MemoryStore, cidr};

    /// The embedded datastore lists affinities by owner, as an API server does.
    #[test]
    fn read_by_kind_and_read_of_all_pairs_have_the_affinities_of_services() {
        let shell = Shell::with_pool();
        shell.put("/calico/ipam/v2/virtual/load-balancer/ipv4/block/10.0.0.64-29", r#"{"state":"confirmed"}"#);
        shell.put(
            "/calico/ipam/v2/assignment/ipv4/block/10.0.0.64-29",
            r#"{"cidr":"10.0.0.64/29","affinity":"virtual:load-balancer","unallocated":[0,1,2,3,4,5,6,7],
                "allocations":[null,null,null,null,null,null,null,null],"attributes":[]}"#,
        );
        let by_kind = block_on(ClusterRead::read_objects(&shell.store)).unwrap();
        let pairs = block_on(ClusterRead::read_pairs(&shell.store)).unwrap();
        for cluster in [by_kind, pairs] {
            assert_eq!((cluster.blocks.len(), cluster.affinities.len()), (1, 1));
            assert_eq!(cluster.audit(Duration::ZERO), []);
        }
    }

    #[test]
    fn read_by_kind_has_affinities_without_labels_once() {
        let store = MemoryStore::without_labels();
        for owner in [AffinityOwner::Host("node1".into()), AffinityOwner::Virtual(LOAD_BALANCER_HOST.into())] {
            store.put(&AffinityKey { owner, cidr: cidr("10.0.0.0/29") }, &BlockAffinity::default());
        }
        let cluster = block_on(ClusterRead::read_objects(&store)).unwrap();
        let owners: Vec<_> = cluster.affinities.iter().map(|affinity| affinity.key.owner.name()).collect();
        assert_eq!(owners, ["node1", LOAD_BALANCER_HOST]);
    }

    #[test]
    fn read_by_kind_reports_each_unreadable_object_once() {
        let store = MemoryStore::without_labels();
        let block = Block::path(&cidr("10.0.0.0/29"));
        let key = AffinityKey { owner: AffinityOwner::Host("node1".into()), cidr: cidr("10.0.0.0/29") };
        let affinity = BlockAffinity::path(&key);
        for path in [&affinity, &block] {
            store.edit(|pairs| pairs.put(path.clone(), b"\"spec.cidr is missing\"".to_vec()));
        }
        let cluster = block_on(ClusterRead::read_objects(&store)).unwrap();
        let keys: Vec<_> = cluster.unreadable.iter().map(|object| object.key.as_str()).collect();
        assert_eq!(keys, [block, affinity]);
        assert!(cluster.unreadable[0].reason.contains("spec.cidr is missing"), "{:?}", cluster.unreadable);
    }
}

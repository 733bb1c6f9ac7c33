//! [`Cluster`]: nodes and pools, and the calls of upstream's programs.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Mutex;

use libcalico::api::{IpPool, IpPoolSpec, Node, NodeSpec, ObjectKey, OrchRef};
use libcalico::ipam::{
    AffinityKey, AffinityOwner, AffinityState, Block, BlockAffinity, Handle, HandleId, IpamConfig,
    IpamConfigKey,
};
use libcalico::kubernetes::Pod;
use libcalico::net::{Cidr, IpVersion};
use libcalico::store::Store;
use memory_store::MemoryStore;
use time::macros::datetime;
use time::{Duration, OffsetDateTime};

use super::recorder::Recorder;
use crate::upstream::{self, AddRequest, Collector, Snapshot, UpstreamError};

/// The ways of a deletion: those of etcd and of an API server.
pub(super) fn both() -> [Cluster; 2] {
    [MemoryStore::transactional(), MemoryStore::sequential()].map(Cluster::on)
}

/// A cluster with the nodes `node1` and `node2`, whose requests are written down.
#[derive(Debug)]
pub(super) struct Cluster {
    pub(super) recorder: Recorder,
    clock: Mutex<OffsetDateTime>,
}

impl Cluster {
    pub(super) fn on(store: MemoryStore) -> Self {
        let cluster = Cluster {
            recorder: Recorder::on(store),
            clock: Mutex::new(datetime!(2026-08-22 01:02:03 UTC)),
        };
        cluster.node("node1");
        cluster.node("node2");
        cluster
    }

    pub(super) fn is_kubernetes(&self) -> bool {
        self.recorder.write_model() == libcalico::store::WriteModel::PerObject
    }

    pub(super) fn store(&self) -> &MemoryStore {
        &self.recorder.store
    }

    pub(super) fn now(&self) -> OffsetDateTime {
        *self.clock.lock().unwrap()
    }

    pub(super) fn wait(&self, duration: Duration) {
        *self.clock.lock().unwrap() += duration;
    }

    fn node(&self, name: &str) {
        let reference = OrchRef {
            node_name: name.into(),
            orchestrator: "k8s".into(),
            ..OrchRef::default()
        };
        let spec = NodeSpec {
            orch_refs: vec![reference],
            ..NodeSpec::default()
        };
        self.store()
            .put(&ObjectKey::global(name), &Node::new(name, spec));
    }

    pub(super) fn remove_node(&self, name: &str) {
        let path = format!("/calico/resources/v3/projectcalico.org/nodes/{name}");
        self.store().edit(|pairs| pairs.remove(&path));
    }

    pub(super) fn pool(
        &self,
        name: &str,
        cidr: &str,
        size: u8,
        change: impl FnOnce(&mut IpPoolSpec),
    ) {
        let mut spec = IpPoolSpec {
            cidr: cidr.into(),
            block_size: Some(size),
            ..IpPoolSpec::default()
        };
        change(&mut spec);
        self.store()
            .put(&ObjectKey::global(name), &IpPool::new(name, spec));
    }

    pub(super) fn configure(&self, change: impl FnOnce(&mut IpamConfig)) {
        let mut config = IpamConfig::absent();
        change(&mut config);
        self.store().put(&IpamConfigKey, &config);
    }

    pub(super) fn block(&self, range: &str) -> Option<Block> {
        self.store().pairs().get::<Block>(&cidr(range))
    }

    pub(super) fn handle(&self, id: &str) -> Option<Handle> {
        self.store().pairs().get::<Handle>(&HandleId::new(id))
    }

    /// Stores a block and its affinity, as left by `node`.
    pub(super) fn own(&self, node: &str, range: &str, state: AffinityState) {
        let (owner, range) = (AffinityOwner::Host(node.into()), cidr(range));
        let block = Block::new(range, &owner, self.now()).unwrap();
        self.store().put(&range, &block);
        self.affinity(node, range, state);
    }

    pub(super) fn affinity(&self, node: &str, range: Cidr, state: AffinityState) {
        let key = AffinityKey {
            owner: AffinityOwner::Host(node.into()),
            cidr: range,
        };
        let value = BlockAffinity {
            state,
            ..BlockAffinity::default()
        };
        self.store().put(&key, &value);
    }

    pub(super) async fn add(
        &self,
        node: &str,
        id: &str,
        families: &[IpVersion],
    ) -> Result<Vec<IpAddr>, UpstreamError> {
        let attributes = self.attributes(node, id);
        self.with_request(node, id, &attributes, async |request| {
            upstream::add(&self.recorder, &|| self.now(), &request, families).await
        })
        .await
    }

    pub(super) async fn add_v4(&self, node: &str, id: &str) -> Result<Vec<IpAddr>, UpstreamError> {
        self.add(node, id, &[IpVersion::V4]).await
    }

    pub(super) async fn add_fixed(
        &self,
        node: &str,
        id: &str,
        ip: &str,
    ) -> Result<(), UpstreamError> {
        let (attributes, ip) = (self.attributes(node, id), ip.parse().unwrap());
        self.with_request(node, id, &attributes, async |request| {
            upstream::add_fixed(&self.recorder, &|| self.now(), &request, ip).await
        })
        .await
    }

    pub(super) async fn del(&self, id: &str) -> Result<(), UpstreamError> {
        let (id, old) = (HandleId::new(id), HandleId::new("old"));
        upstream::del(&self.recorder, &|| self.now(), &id, Some(&old)).await
    }

    async fn with_request<T>(
        &self,
        node: &str,
        id: &str,
        attributes: &BTreeMap<String, String>,
        call: impl AsyncFnOnce(AddRequest<'_>) -> T,
    ) -> T {
        let request = AddRequest {
            node,
            handle: &HandleId::new(id),
            attributes,
            pools: &[],
            namespace: None,
        };
        call(request).await
    }

    fn attributes(&self, node: &str, id: &str) -> BTreeMap<String, String> {
        let pairs = [("node", node), ("namespace", "ns"), ("pod", id)];
        let mut attributes: BTreeMap<String, String> = pairs
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into();
        attributes.insert("timestamp".into(), self.now().to_string());
        attributes
    }

    /// Creates a pod of the name `id` that reports `ip`.
    pub(super) fn pod(&self, node: &str, id: &str, ip: &str) {
        let value = serde_json::json!({
            "metadata": {"name": id, "namespace": "ns", "uid": id},
            "spec": {"nodeName": node},
            "status": {"phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}]},
        });
        let pod: Pod = serde_json::from_value(value).unwrap();
        self.store().put(&ObjectKey::namespaced("ns", id), &pod);
    }

    pub(super) fn remove_pod(&self, id: &str) {
        let path = format!("/kubernetes/pods/ns/{id}");
        self.store().edit(|pairs| pairs.remove(&path));
    }

    /// Returns what a watch without lag delivers.
    pub(super) async fn snapshot(&self) -> Snapshot {
        let all = Default::default();
        let nodes = self.store().list::<Node>(&all).await.unwrap();
        let nodes: Vec<Node> = nodes.into_iter().map(|entry| entry.value).collect();
        let pods = self.store().list::<Pod>(&Default::default()).await.unwrap();
        Snapshot {
            is_ready: true,
            blocks: self.store().list::<Block>(&None).await.unwrap(),
            kubernetes_nodes: nodes
                .iter()
                .map(|node| node.metadata.name.clone())
                .collect(),
            nodes,
            pods: pods
                .into_iter()
                .map(|entry| (entry.key, entry.value))
                .collect(),
        }
    }

    /// Delivers the present state and makes a pass.
    pub(super) async fn pass(&self, collector: &mut Collector) -> Result<(), UpstreamError> {
        collector.observe(self.snapshot().await);
        self.pass_with_lag(collector).await
    }

    /// Makes a pass on the state that was delivered before.
    pub(super) async fn pass_with_lag(
        &self,
        collector: &mut Collector,
    ) -> Result<(), UpstreamError> {
        let recorder = &self.recorder;
        upstream::gc_pass(collector, recorder, recorder, &|| self.now()).await
    }
}

pub(super) fn cidr(text: &str) -> Cidr {
    text.parse().unwrap()
}

pub(super) fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// Joins parts of a sequence, of which some are only sent on an API server.
pub(super) fn requests(parts: &[&[&str]]) -> Vec<String> {
    parts.concat().into_iter().map(str::to_owned).collect()
}

//! Runs the operations of several nodes in one process: on a store in memory, with a clock, a network
//! and files for each node.

use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use allocation::testing::{Cluster, MemoryStore, TestClock};
use dataplane::model::KernelModel;
use datastore::config::LocalConfig;
use libcalico::ipam::{Block, Handle};
use libcalico::store::{
    Answers, EndpointForm, ProfileOrigin, ReadBatch, Revision, Sharing, Store, StoreError, Write,
    WriteError, WriteModel,
};
use os::node_files::NodeFiles;
use serde_json::json;
use tempfile::TempDir;

use super::*;
use crate::context::{Context, Host};
use crate::{add, del};

/// A world in memory.
#[derive(Debug)]
struct InMemory;

impl World for InMemory {
    type Store = SharedStore;
    type Clock = TestClock;
    type Network = KernelModel;

    fn open_api(
        _: &NetConf,
        _: &DatastoreConfig,
        _: Variables<'_>,
    ) -> Result<KubernetesApi<SharedStore>, CniError> {
        Ok(KubernetesApi::Unused)
    }
}

/// The store of a cluster, which all its nodes use.
#[derive(Clone)]
struct SharedStore(Arc<MemoryStore>);

impl std::fmt::Debug for SharedStore {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("SharedStore")
    }
}

impl Store for SharedStore {
    async fn read(&self, batch: &ReadBatch) -> Result<Answers, StoreError> {
        self.0.read(batch).await
    }

    async fn write(&self, writes: &[Write]) -> Result<Vec<Revision>, WriteError> {
        self.0.write(writes).await
    }

    fn write_model(&self) -> WriteModel {
        self.0.write_model()
    }

    fn endpoint_form(&self) -> EndpointForm {
        self.0.endpoint_form()
    }

    fn profile_origin(&self) -> ProfileOrigin {
        self.0.profile_origin()
    }

    fn sharing(&self) -> Sharing {
        self.0.sharing()
    }
}

impl ClusterStore for SharedStore {}

struct Node {
    name: &'static str,
    store: SharedStore,
    clock: TestClock,
    network: KernelModel,
    files: TempDir,
}

impl Node {
    fn new(name: &'static str, store: &SharedStore) -> Node {
        Node {
            name,
            store: store.clone(),
            clock: TestClock::default(),
            network: KernelModel::default(),
            files: tempfile::tempdir().unwrap(),
        }
    }

    fn call(&self, command: &str, container: &str) -> Context<InMemory> {
        let netns = netns_of(container);
        let env = |name: &str| {
            let value = match name {
                "CNI_COMMAND" => command,
                "CNI_CONTAINERID" => container,
                "CNI_IFNAME" => "eth0",
                "CNI_NETNS" => &netns,
                "CNI_PATH" => "/no/such",
                _ => return None,
            };
            Some(value.to_owned())
        };
        let conf = json!({
            "cniVersion": "1.0.0", "name": "net1", "type": "calico", "nodename": self.name,
            "ipam": { "type": "calico-ipam" },
        });
        let call = netconf::read_call(Variables::new(&env), || Ok(conf.to_string().into_bytes()));
        let host = Host {
            datastore_config: DatastoreConfig::Local(LocalConfig {
                path: self.files.path().join("unused.db"),
                deadline: Duration::from_secs(10),
            }),
            store: self.store.clone(),
            api: KubernetesApi::Unused,
            clock: self.clock.restarted(),
            network: self.network.clone(),
            files: NodeFiles::below(self.files.path()),
        };
        Context::new(Box::new(call.unwrap()), self.name.to_owned(), host).unwrap()
    }

    async fn add(&self, container: &str) -> IpAddr {
        assert!(self.network.create_netns(Path::new(&netns_of(container))));
        let result = add::add(&self.call("ADD", container)).await.unwrap();
        result.ips[0].address.addr()
    }

    async fn delete(&self, container: &str) {
        del::del(&self.call("DEL", container)).await.unwrap();
    }
}

fn netns_of(container: &str) -> String {
    format!("/netns/{container}")
}

#[tokio::test]
async fn calls_of_two_nodes_share_a_store_and_nothing_else() {
    let cluster = Cluster::on(MemoryStore::sequential());
    cluster.pool("pool4", "10.65.0.0/24", 29);
    let store = SharedStore(Arc::new(cluster.store));
    let nodes = ["node1", "node2"].map(|name| Node::new(name, &store));
    let mut addresses = Vec::new();
    for node in &nodes {
        for container in ["c1", "c2"] {
            addresses.push(node.add(container).await);
        }
        let routed = node.network.routed_addresses().into_iter();
        let of_pods: Vec<IpAddr> = routed.map(|(address, _)| address).collect();
        assert_eq!(of_pods.len(), 2, "{of_pods:?}");
        assert!(of_pods.iter().all(|ip| addresses.contains(ip)));
    }
    addresses.sort();
    addresses.dedup();
    assert_eq!(addresses.len(), 4, "{addresses:?}");
    for node in &nodes {
        for container in ["c1", "c2"] {
            node.delete(container).await;
        }
        assert_eq!(node.network.host_links(), []);
    }
    let pairs = store.0.pairs();
    assert_eq!(pairs.list::<Handle>(&()).len(), 0);
    let blocks = pairs.list::<Block>(&None);
    assert!(
        blocks
            .iter()
            .all(|(_, block)| block.allocated().count() == 0)
    );
}

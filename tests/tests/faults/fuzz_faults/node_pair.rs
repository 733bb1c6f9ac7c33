//! Two nodes on one datastore, and their sandboxes.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use datastore::config::EtcdConfig;
use datastore::{Datastore, DatastoreConfig, KubernetesConfig};
use fastrand::Rng;
use integration_tests::cluster::{Cluster, ControlPlane, NAMESPACE, pod_path};
use integration_tests::content::Content;
use integration_tests::etcd;
use integration_tests::kubernetes::Client;
use integration_tests::node::{Node, Sandbox};
use integration_tests::store::Store;
use serde_json::{Value, json};
use tokio::runtime::Runtime;

const NODES: [&str; 2] = ["node1", "node2"];

/// Two nodes on one datastore, their sandboxes, and the random numbers of one run.
pub(crate) struct NodePair<'a> {
    pub(crate) cluster: &'a Cluster<'a>,
    pub(crate) nodes: Vec<Node>,
    /// The networked sandboxes, by container ID.
    pub(crate) live: BTreeMap<String, Live>,
    /// Deleted sandboxes, which a runtime may delete once more.
    pub(crate) gone: Vec<(usize, Sandbox)>,
    /// Blocks with an affinity that an interrupted call of upstream left incomplete.
    pub(crate) claims: BTreeSet<String>,
    pub(crate) rng: Rng,
    /// All actions so far, for the message of a failure.
    pub(crate) history: Vec<String>,
    /// Access without a proxy.
    pub(crate) datastore: Datastore,
    pub(crate) runtime: Runtime,
    /// Client for Pod objects; `None` with etcd.
    client: Option<Client>,
    sandboxes: usize,
}

/// A sandbox whose ADD succeeded.
#[derive(Debug, Clone)]
pub(crate) struct Live {
    pub(crate) node: usize,
    pub(crate) sandbox: Sandbox,
    pub(crate) addresses: Vec<IpAddr>,
    pub(crate) result: Value,
}

/// Returns configuration keys for both families.
fn families() -> Value {
    json!({
        "log_level": "debug",
        "ipam": { "type": "calico-ipam", "assign_ipv4": "true", "assign_ipv6": "true" },
    })
}

/// Returns the nodes, and pools with few addresses, so that both nodes use the same blocks.
fn content() -> Content {
    let pools =
        Content::ready()
            .pool("pool4", "10.65.0.0/26", 29)
            .pool("pool6", "fd00:65::/122", 125);
    NODES.iter().fold(pools, |content, node| content.node(node))
}

impl<'a> NodePair<'a> {
    /// Creates a pair of plain containers.
    pub(crate) fn on_etcd(cluster: &'a Cluster<'a>, seed: u64) -> NodePair<'a> {
        cluster.load(&content());
        let node =
            |name: &&str| Node::on_etcd(cluster.host, name, &cluster.store, families()).unwrap();
        let config = EtcdConfig {
            endpoints: vec![etcd::ENDPOINT.into()],
            credentials: None,
            tls: None,
            deadline: Duration::from_secs(10),
        };
        NodePair::new(
            cluster,
            NODES.iter().map(node).collect(),
            DatastoreConfig::Etcd(Box::new(config)),
            None,
            seed,
        )
    }

    pub(crate) fn on_api_server(
        cluster: &'a Cluster<'a>,
        control_plane: &ControlPlane<'_>,
        seed: u64,
    ) -> NodePair<'a> {
        cluster.load(&content());
        let (api, Store::Kubernetes(objects)) = (&control_plane.servers.api, &cluster.store) else {
            panic!("objects of Kubernetes")
        };
        let caller = (api, &control_plane.account);
        let node = |name: &&str| {
            Node::on_api_server(cluster.host, name, &cluster.store, caller, families()).unwrap()
        };
        let config = KubernetesConfig {
            kubeconfig: vec![api.admin_kubeconfig()],
            deadline: Duration::from_secs(10),
            group: Some(objects.group()),
            ..KubernetesConfig::default()
        };
        let client = Some(api.admin().clone());
        let config = DatastoreConfig::Kubernetes(Box::new(config));
        NodePair::new(
            cluster,
            NODES.iter().map(node).collect(),
            config,
            client,
            seed,
        )
    }

    fn new(
        cluster: &'a Cluster<'a>,
        nodes: Vec<Node>,
        config: DatastoreConfig,
        client: Option<Client>,
        seed: u64,
    ) -> NodePair<'a> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        NodePair {
            cluster,
            nodes,
            live: BTreeMap::new(),
            gone: Vec::new(),
            claims: BTreeSet::new(),
            rng: Rng::with_seed(seed),
            history: Vec::new(),
            datastore: runtime
                .block_on(async { Datastore::open(&config) })
                .unwrap(),
            runtime,
            client,
            sandboxes: 0,
        }
    }

    /// Runs rounds and checks the pair after each.
    pub(crate) fn run(mut self, rounds: usize) {
        for number in 0..rounds {
            self.history.push(format!("=== round {number}"));
            if let Err(error) = self.round() {
                panic!(
                    "{error:#}\n{}\n{:#?}",
                    self.history.join("\n"),
                    self.cluster.store.dump()
                );
            }
        }
    }

    pub(crate) fn has_pods(&self) -> bool {
        self.client.is_some()
    }

    /// Creates a sandbox for a new pod; on etcd, for a plain container.
    pub(crate) fn sandbox(&mut self, node: usize) -> Sandbox {
        let name = self
            .client
            .is_some()
            .then(|| format!("pod{}", self.sandboxes + 1));
        if let (Some(client), Some(name)) = (&self.client, &name) {
            let pod = json!({
                "apiVersion": "v1", "kind": "Pod",
                "metadata": { "name": name, "namespace": NAMESPACE },
                "spec": {
                    "nodeName": NODES[node], "containers": [{ "name": "c", "image": "none" }],
                },
            });
            client
                .create(&format!("/api/v1/namespaces/{NAMESPACE}/pods"), &pod)
                .unwrap()
                .success();
        }
        self.sandbox_of(node, name.as_deref())
    }

    /// Creates a sandbox for an existing pod, or for a plain container.
    pub(crate) fn sandbox_of(&mut self, node: usize, pod: Option<&str>) -> Sandbox {
        self.sandboxes += 1;
        self.nodes[node]
            .sandbox(self.sandboxes, pod.map(|name| (NAMESPACE, name)))
            .unwrap()
    }

    pub(crate) fn delete_pod(&self, sandbox: &Sandbox) {
        if let (Some(client), Some((_, name))) = (&self.client, &sandbox.pod) {
            let deleted = client.delete(&pod_path(name)).unwrap();
            assert!(matches!(deleted.code, 200 | 404), "{deleted:?}");
        }
    }
}

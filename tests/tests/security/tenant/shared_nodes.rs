//! Two nodes on one datastore, with the objects of the other owners and of the tenant.

use std::time::Duration;

use datastore::config::EtcdConfig;
use datastore::{Datastore, DatastoreConfig, KubernetesConfig};
use fastrand::Rng;
use integration_tests::cluster::{Cluster, ControlPlane};
use integration_tests::content::Content;
use integration_tests::controllers::garbage_collector::{GRACE, GarbageCollector, settings};
use integration_tests::etcd;
use integration_tests::kubernetes::Client;
use integration_tests::node::{Node, Sandbox};
use integration_tests::plugin::Outcome;
use integration_tests::store::Store;
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use super::others::Victim;
use super::sandboxes::Attachment;
use super::snapshot::Others;
use super::{snapshot, texts};

/// Because of the dot, a namespace and a pod can have the names of which a tunnel's handle
/// consists.
pub(crate) const NODES: [&str; 2] = ["node1.lab", "node2.lab"];

/// Two nodes on one datastore, the other owners, and the tenant's sandboxes.
pub(crate) struct SharedNodes<'a> {
    pub(crate) cluster: &'a Cluster<'a>,
    pub(crate) nodes: Vec<Node>,
    pub(crate) victims: Vec<Victim>,
    pub(crate) attachments: Vec<Attachment>,
    pub(crate) rng: Rng,
    /// All actions so far, for the message of a failure.
    pub(crate) history: Vec<String>,
    /// Access without a proxy.
    pub(crate) datastore: Datastore,
    pub(crate) runtime: Runtime,
    /// Client for Pod objects; `None` without Kubernetes.
    pub(crate) client: Option<Client>,
    pub(crate) collector: Option<GarbageCollector>,
    sandboxes: usize,
}

/// Returns configuration keys for both families.
fn conf() -> Value {
    json!({
        "log_level": "debug", "log_file_path": format!("{}/cni.log", texts::LOGS),
        "ipam": { "type": "calico-ipam", "assign_ipv4": "true", "assign_ipv6": "true" },
    })
}

fn content() -> Content {
    let pools =
        Content::ready()
            .pool("pool4", "10.65.0.0/24", 26)
            .pool("pool6", "fd00:65::/120", 122);
    NODES.iter().fold(pools, |content, node| content.node(node))
}

impl<'a> SharedNodes<'a> {
    /// Creates two nodes with containers that only CNI_ARGS name.
    pub(crate) fn on_etcd(cluster: &'a Cluster<'a>, seed: u64) -> SharedNodes<'a> {
        cluster.load(&content());
        let node = |name: &&str| Node::on_etcd(cluster.host, name, &cluster.store, conf()).unwrap();
        let config = EtcdConfig {
            endpoints: vec![etcd::ENDPOINT.into()],
            credentials: None,
            tls: None,
            deadline: Duration::from_secs(10),
        };
        SharedNodes::new(
            cluster,
            NODES.iter().map(node).collect(),
            &DatastoreConfig::Etcd(Box::new(config)),
            None,
            seed,
        )
    }

    /// Creates two nodes with pods on an API server, and garbage collection.
    pub(crate) fn on_api_server(
        cluster: &'a Cluster<'a>,
        control_plane: &ControlPlane<'_>,
        seed: u64,
    ) -> SharedNodes<'a> {
        let (api, Store::Kubernetes(objects)) = (&control_plane.servers.api, &cluster.store) else {
            panic!("objects of Kubernetes")
        };
        api.define_machines().unwrap();
        cluster.load(&content());
        let caller = (api, &control_plane.account);
        let node = |name: &&str| {
            Node::on_api_server(cluster.host, name, &cluster.store, caller, conf()).unwrap()
        };
        let config = KubernetesConfig {
            kubeconfig: vec![api.admin_kubeconfig()],
            deadline: Duration::from_secs(10),
            group: Some(objects.group()),
            ..KubernetesConfig::default()
        };
        let config = DatastoreConfig::Kubernetes(Box::new(config));
        let client = Some(api.admin().clone());
        let mut shared = SharedNodes::new(
            cluster,
            NODES.iter().map(node).collect(),
            &config,
            client,
            seed,
        );
        let group = Some(objects.group());
        let collector = GarbageCollector::start(group, api.admin_kubeconfig(), settings(group));
        collector.await_first_pass();
        shared.collector = Some(collector);
        shared
    }

    fn new(
        cluster: &'a Cluster<'a>,
        nodes: Vec<Node>,
        config: &DatastoreConfig,
        client: Option<Client>,
        seed: u64,
    ) -> SharedNodes<'a> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let datastore = runtime.block_on(async { Datastore::open(config) }).unwrap();
        let mut shared = SharedNodes {
            cluster,
            nodes,
            victims: Vec::new(),
            attachments: Vec::new(),
            rng: Rng::with_seed(seed),
            history: Vec::new(),
            datastore,
            runtime,
            client,
            collector: None,
            sandboxes: 0,
        };
        shared.create_others().unwrap();
        shared
    }

    /// Executes steps of the tenant, and checks the other owners' state after each.
    pub(crate) fn run(mut self, steps: usize) {
        let others = Others::of(&self).unwrap();
        let before = others.snapshot(&self).unwrap();
        for number in 0..steps {
            self.history.push(format!("=== step {number}"));
            let done = self.step().and_then(|()| {
                let after = others.snapshot(&self)?;
                snapshot::same(&before, &after)?;
                self.check_in_use(&self.cluster.accounts().held)
            });
            if let Err(error) = done {
                panic!(
                    "{error:#}\n{}\n{:#?}",
                    self.history.join("\n"),
                    self.cluster.store.dump()
                );
            }
        }
        if let Err(error) = self.pass().and_then(|()| texts::check_all(&self)) {
            panic!("{error:#}\n{}", self.history.join("\n"));
        }
        let after = others.snapshot(&self).unwrap();
        snapshot::same(&before, &after).unwrap();
    }

    /// Runs garbage collection, if any, until the grace period of all known leaks is over.
    pub(crate) fn pass(&mut self) -> anyhow::Result<()> {
        if let Some(collector) = &self.collector {
            for _ in 0..2 {
                collector.pass_after(GRACE);
            }
        }
        Ok(())
    }

    /// Creates a sandbox on a node, with a unique number.
    pub(crate) fn sandbox(
        &mut self,
        node: usize,
        pod: Option<(&str, &str)>,
    ) -> anyhow::Result<Sandbox> {
        self.sandboxes += 1;
        self.nodes[node].sandbox(self.sandboxes, pod)
    }

    pub(crate) fn note(&mut self, what: &str, outcome: &Outcome) -> anyhow::Result<()> {
        let ended = outcome
            .exit
            .map_or("a signal".to_owned(), |code| code.to_string());
        self.history
            .push(format!("{what}: {ended} {}", outcome.stdout));
        texts::check("stdout", &outcome.stdout)?;
        texts::check("stderr", &outcome.stderr)?;
        anyhow::ensure!(outcome.exit.is_some(), "ended by a signal: {what}");
        anyhow::ensure!(!outcome.stdout.contains("the plugin panicked"), "{what}");
        Ok(())
    }
}

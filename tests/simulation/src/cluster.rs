//! [`Cluster`]: the nodes, the datastore and the pods of a simulation, and the calls of its
//! runtimes.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use allocation::cluster_state;
use allocation::journal::{self, DatastoreIdentity, Journal};
use cni_plugin::context::{Context, Host};
use cni_plugin::deferred_del::Replayer;
use cni_plugin::world::World;
use cni_plugin::{add, check, context, del, gc};
use dataplane::model::{Errno, KernelModel, StepHook, steps};
use datastore::DatastoreConfig;
use ipam_plugin::datastore_settings;
use ipam_plugin::kubernetes_api::KubernetesApi;
use libcalico::variables::Variables;
use netconf::{CniError, CniResult, NetConf};
use os::node_files::NodeFiles;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::datastore::{Content, NodeStore, SharedDatastore};
use crate::kubernetes_objects::KubernetesObjects;
use crate::network::NodeNetwork;
use crate::node_time::{NodeClock, NodeWaits};
use crate::plants::Plant;
use crate::schedule::Schedule;
use crate::tasks::{Started, Stopped, Tasks};

/// The network of all pods.
pub const NETWORK: &str = "net1";

/// The namespace of all pods.
pub const NAMESPACE: &str = "default";

/// The kinds of store, clock and network of a simulated call.
#[derive(Debug)]
pub struct Simulated;

impl World for Simulated {
    type Store = NodeStore;
    type Clock = NodeClock;
    type Network = NodeNetwork;

    fn open_api(
        _: &NetConf,
        datastore: &DatastoreConfig,
        _: Variables<'_>,
    ) -> Result<KubernetesApi<NodeStore>, CniError> {
        Ok(api_of(datastore))
    }
}

fn api_of(datastore: &DatastoreConfig) -> KubernetesApi<NodeStore> {
    match datastore {
        DatastoreConfig::Kubernetes(_) => KubernetesApi::Datastore,
        DatastoreConfig::Etcd(_) | DatastoreConfig::Local(_) => KubernetesApi::Unused,
    }
}

/// A node.
#[derive(Debug)]
pub struct Node {
    /// The name.
    pub name: String,
    /// The network of the host and its pods.
    pub kernel: KernelModel,
    /// The number of seconds by which the node's date is ahead.
    pub ahead: i64,
    files: TempDir,
}

/// The state of a sandbox of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SandboxState {
    /// Its ADD has not succeeded yet.
    Starting,
    /// Its ADD has succeeded, and its containers run, with these addresses.
    Running(Vec<IpAddr>),
    /// Its containers have stopped.
    Stopping,
    /// A DEL has succeeded.
    Gone,
}

/// A sandbox: the container that has a pod's network.
#[derive(Debug, Clone)]
pub struct Sandbox {
    /// The ID of the container.
    pub container: String,
    /// The name of the pod.
    pub pod: String,
    /// The number of the node.
    pub node: usize,
    /// The path of the network namespace; empty after it was removed.
    pub netns: String,
    /// The process in the namespace, while containers run.
    pub process: Option<u32>,
    /// The state.
    pub state: SandboxState,
}

/// A simulated cluster. Cheap to clone.
#[derive(Clone)]
pub struct Cluster {
    /// The waits of all calls.
    pub schedule: Schedule,
    /// The calls and actors.
    pub tasks: Tasks,
    /// The datastore.
    pub datastore: SharedDatastore,
    /// The nodes.
    pub nodes: Rc<Vec<Node>>,
    /// All sandboxes so far, in the order of their creation.
    pub sandboxes: Rc<RefCell<Vec<Sandbox>>>,
    /// The pods that wait for an address, each with the error of the last ADD.
    pub waiting: Rc<RefCell<BTreeMap<String, Option<String>>>>,
    /// The pods and nodes that the API server has.
    pub kubernetes: KubernetesObjects,
    /// A planted fault.
    pub plant: Plant,
}

/// The result of an ADD or another call.
pub type CallResult<T> = Result<T, CniError>;

impl Node {
    /// Creates a node with an empty disk.
    pub fn new(number: usize, ahead: i64, directory: &Path) -> Self {
        Node {
            name: format!("node{}", number + 1),
            kernel: KernelModel::default(),
            ahead,
            files: tempfile::tempdir_in(directory).expect("a directory for the node's files"),
        }
    }

    /// Empties what a reboot empties: the kernel, and the files of the current boot.
    pub fn reboot(&self, plant: Plant) {
        self.kernel.reboot();
        let lost = match plant {
            Plant::LostJournals => &["var/run", "var/lib"][..],
            _ => &["var/run"],
        };
        for directory in lost
            .iter()
            .map(|directory| self.files.path().join(directory))
        {
            if directory.exists() {
                std::fs::remove_dir_all(&directory).expect("the node's files can be removed");
            }
        }
    }

    /// Returns the journal of the node.
    pub fn journal(&self) -> Journal {
        Journal::of_node(&NodeFiles::below(self.files.path()))
    }
}

impl Cluster {
    /// Returns true while faults may occur.
    pub fn is_rough(&self) -> bool {
        !self.schedule.is_calm()
    }

    /// Creates a sandbox of a pod, with a network namespace.
    pub fn new_sandbox(&self, pod: &str, node: usize) -> usize {
        let mut sandboxes = self.sandboxes.borrow_mut();
        let former = sandboxes
            .iter()
            .filter(|sandbox| sandbox.pod == pod)
            .count();
        let container = format!("{pod}-{}", former + 1);
        let netns = format!("/var/run/netns/{container}");
        self.nodes[node].kernel.create_netns(Path::new(&netns));
        sandboxes.push(Sandbox {
            container,
            pod: pod.into(),
            node,
            netns,
            process: None,
            state: SandboxState::Starting,
        });
        sandboxes.len() - 1
    }

    /// Returns a copy of a sandbox.
    pub fn sandbox(&self, sandbox: usize) -> Sandbox {
        self.sandboxes.borrow()[sandbox].clone()
    }

    /// Notes that the ADD of a sandbox has succeeded, and starts its containers.
    pub fn run_containers(&self, sandbox: usize, addresses: Vec<IpAddr>) {
        let sandbox = &mut self.sandboxes.borrow_mut()[sandbox];
        let kernel = &self.nodes[sandbox.node].kernel;
        sandbox.process = kernel.start_process(Path::new(&sandbox.netns));
        sandbox.state = SandboxState::Running(addresses);
    }

    /// Stops the containers of a sandbox.
    pub fn stop_containers(&self, sandbox: usize) {
        let sandbox = &mut self.sandboxes.borrow_mut()[sandbox];
        if let Some(process) = sandbox.process.take() {
            self.nodes[sandbox.node].kernel.stop_process(process);
        }
        sandbox.state = SandboxState::Stopping;
    }

    /// Notes that a DEL of a sandbox has succeeded.
    pub fn forget(&self, sandbox: usize) {
        self.sandboxes.borrow_mut()[sandbox].state = SandboxState::Gone;
    }

    /// Removes the network namespace of a sandbox, as a runtime does after a DEL.
    pub fn remove_netns(&self, sandbox: usize) {
        let mut sandboxes = self.sandboxes.borrow_mut();
        let sandbox = &mut sandboxes[sandbox];
        let kernel = &self.nodes[sandbox.node].kernel;
        kernel.remove_netns(Path::new(&sandbox.netns));
        sandbox.netns.clear();
    }

    /// Creates a pod, bound to a node.
    pub fn create_pod(&self, pod: &str, node: usize) {
        self.kubernetes.create_pod(pod, &self.nodes[node].name);
    }

    /// Removes a pod.
    pub fn remove_pod(&self, pod: &str) {
        self.kubernetes.delete_pod(pod);
    }

    /// Starts the ADD of a sandbox.
    pub fn add(&self, sandbox: usize) -> Started<CallResult<CniResult>> {
        let sandbox = self.sandbox(sandbox);
        let cx = self.context(sandbox.node, "ADD", Some(&sandbox), json!({}));
        let call = async move { add::add(&cx?).await };
        self.start("ADD", &sandbox, call)
    }

    /// Starts a DEL of a sandbox.
    pub fn del(&self, sandbox: usize) -> Started<CallResult<()>> {
        let sandbox = self.sandbox(sandbox);
        let cx = self.context(sandbox.node, "DEL", Some(&sandbox), json!({}));
        let call = async move { del::del(&cx?).await };
        self.start("DEL", &sandbox, call)
    }

    /// Starts a CHECK of a running sandbox.
    pub fn check(&self, sandbox: usize, result: &Value) -> Started<CallResult<()>> {
        let sandbox = self.sandbox(sandbox);
        let more = json!({ "prevResult": result });
        let cx = self.context(sandbox.node, "CHECK", Some(&sandbox), more);
        let call = async move { check::check(&cx?).await };
        self.start("CHECK", &sandbox, call)
    }

    /// Starts a GC on a node, with the containers that the runtime names.
    pub fn gc(&self, node: usize, containers: &[String]) -> Started<CallResult<()>> {
        let attachment = |container: &String| json!({ "containerID": container, "ifname": "eth0" });
        let valid: Vec<Value> = containers.iter().map(attachment).collect();
        let more = json!({ "cni.dev/valid-attachments": valid });
        let cx = self.context(node, "GC", None, more);
        let name = format!("GC on {}", self.nodes[node].name);
        let call = async move { gc::gc(&cx?).await };
        self.tasks.start_call(&name, node, call)
    }

    /// Starts a pass of the node's agent, which replays deferred DELs.
    pub fn replay(&self, node: usize) -> Started<CallResult<()>> {
        let cluster = self.clone();
        let name = format!("replay on {}", self.nodes[node].name);
        let call = async move { cluster.replay_now(node).await };
        self.tasks.start_call(&name, node, call)
    }

    async fn replay_now(&self, node: usize) -> CallResult<()> {
        let cx = self.context(node, "STATUS", None, json!({}))?;
        cluster_state::ensure_ready(&cx.store)
            .await
            .map_err(|error| CniError::internal(error.to_string()))?;
        let target = DatastoreIdentity {
            name: journal::datastore_name(&cx.datastore_config),
            identity: String::new(),
        };
        let locked = cx.journal.try_lock();
        let locked = locked.map_err(|error| CniError::internal(error.to_string()))?;
        let Some(locked) = locked else {
            return Ok(());
        };
        locked.remove_abandoned();
        let replayer = Replayer::<Simulated> {
            conf: &cx.call.conf,
            variables: Variables::NONE,
            datastore_config: &cx.datastore_config,
            store: &cx.store,
            api: &cx.api,
            clock: &cx.clock,
            network: &cx.network,
            files: &cx.files,
            node: &context::node_name_or_empty(&cx.call.conf, &cx.files),
            replaying_container: "",
            target,
        };
        replayer.replay_some(&locked).await;
        Ok(())
    }

    fn start<T: 'static>(
        &self,
        verb: &str,
        sandbox: &Sandbox,
        call: impl Future<Output = T> + 'static,
    ) -> Started<T> {
        let name = format!("{verb} of {}", sandbox.container);
        self.tasks.start_call(&name, sandbox.node, call)
    }

    fn context(
        &self,
        node: usize,
        command: &str,
        sandbox: Option<&Sandbox>,
        more: Value,
    ) -> CallResult<Context<Simulated>> {
        let number = node;
        let node = &self.nodes[node];
        let env = |name: &str| match (name, sandbox) {
            ("CNI_COMMAND", _) => Some(command.to_owned()),
            ("CNI_PATH", _) => Some("/no/such".to_owned()),
            ("CNI_CONTAINERID", Some(sandbox)) => Some(sandbox.container.clone()),
            ("CNI_IFNAME", Some(_)) => Some("eth0".to_owned()),
            ("CNI_NETNS", Some(sandbox)) => Some(sandbox.netns.clone()),
            ("CNI_ARGS", Some(sandbox)) => Some(format!(
                "IgnoreUnknown=1;K8S_POD_NAMESPACE={NAMESPACE};K8S_POD_NAME={}",
                sandbox.pod
            )),
            _ => None,
        };
        let conf = self.configuration(&node.name, more);
        let call = netconf::read_call(Variables::new(&env), || Ok(conf.to_string().into_bytes()))
            .map_err(|error| error.error)?;
        let datastore_config = datastore_settings::with_environment(
            &call.conf,
            Some(Duration::from_secs(10)),
            Variables::NONE,
        )
        .map_err(|error| CniError::internal(error.to_string()))?;
        let files = NodeFiles::below(node.files.path()).waiting_by(Arc::new(NodeWaits {
            schedule: self.schedule.clone(),
            node: number,
            plant: self.plant,
        }));
        let host = Host {
            api: api_of(&datastore_config),
            datastore_config,
            store: NodeStore::new(&self.schedule, &self.datastore, self.plant),
            clock: NodeClock::new(&self.schedule, node.ahead, self.plant),
            network: NodeNetwork {
                kernel: node.kernel.with_hook(self.step_hook()),
                plant: self.plant,
            },
            files,
        };
        Context::new(Box::new(call), node.name.clone(), host)
    }

    /// Returns a hook that stops the process of a call before a change of the kernel, or lets the
    /// kernel refuse the change.
    fn step_hook(&self) -> StepHook {
        let schedule = self.schedule.clone();
        Arc::new(move |step| {
            if schedule.is_calm() || steps::SENT_WITH_THE_STEP_BEFORE.contains(&step) {
                return None;
            }
            if schedule.one_in(schedule.rates().stop) {
                std::panic::resume_unwind(Box::new(Stopped));
            }
            schedule
                .one_in(schedule.rates().fault)
                .then_some(Errno::EBUSY)
        })
    }

    fn configuration(&self, node: &str, more: Value) -> Value {
        let mut conf = json!({
            "cniVersion": "1.1.0", "name": NETWORK, "type": "calico",
            "nodename": node, "nodename_file_optional": true,
            "ipam": { "type": "calico-ipam" },
        });
        let datastore = self.datastore.read(|content| match content {
            Content::Etcd(_) => json!({
                "datastore_type": "etcdv3", "etcd_endpoints": "http://192.0.2.1:2379",
            }),
            Content::Kubernetes(_) => json!({
                "datastore_type": "kubernetes", "policy": { "type": "k8s" },
                "kubernetes": { "k8s_api_root": "http://192.0.2.1:8080" },
                "calico_api_group": "crd.projectcalico.org/v1",
            }),
        });
        for part in [datastore, more] {
            let (Value::Object(conf), Value::Object(part)) = (&mut conf, part) else {
                unreachable!("both are objects");
            };
            conf.extend(part);
        }
        conf
    }
}

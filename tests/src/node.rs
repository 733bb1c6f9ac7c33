//! Several nodes: each has its own network namespace and files, and reaches the datastore through
//! its own proxy.

use std::process::Child;
use std::time::Instant;

use anyhow::Result;
use serde_json::{Map, Value, json};

use crate::content::{conf, container_id};
use crate::etcd;
use crate::kernel;
use crate::kubernetes::{ApiServer, ServiceAccount};
use crate::namespaces::{Host, Neighbor};
use crate::plugin::{Call, DEADLINE, Outcome, Plugins, wait};
use crate::proxy::{self, Proxy};
use crate::store::Store;

/// A node and the settings of its plugins.
#[derive(Debug)]
pub struct Node {
    /// Name of the node.
    pub name: String,
    /// The proxy between the node's plugins and the datastore.
    pub proxy: Proxy,
    /// The configuration of each call.
    pub conf: Value,
    plugins: Plugins,
    machine: Neighbor,
}

/// A sandbox on a node, of a Kubernetes pod or of a plain container.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Sandbox {
    /// `CNI_CONTAINERID`.
    pub container_id: String,
    /// Name of its network namespace.
    pub netns: String,
    /// Namespace and name of the pod; `None` for a plain container.
    pub pod: Option<(String, String)>,
}

impl Node {
    /// Creates a node whose plugins use the etcd of `host`. `more` adds keys to their
    /// configuration.
    pub fn on_etcd(host: &Host, name: &str, store: &Store, more: Value) -> Result<Node> {
        let machine = machine(host)?;
        let listener = machine.on(|_| proxy::listener())?;
        let proxy = Proxy::start_on(listener, etcd::ENDPOINT.trim_start_matches("http://"))?;
        let mut conf = conf(
            store,
            name,
            json!({ "cniVersion": "1.1.0", "etcd_endpoints": proxy.endpoint() }),
        );
        extend(&mut conf, more);
        Ok(Node {
            name: name.to_owned(),
            proxy,
            conf,
            plugins: Plugins::locate()?,
            machine,
        })
    }

    /// Creates a node whose plugins call the API server of `host` as `account`. `more` adds keys to
    /// their configuration.
    pub fn on_api_server(
        host: &Host,
        name: &str,
        store: &Store,
        (api, account): (&ApiServer, &ServiceAccount),
        more: Value,
    ) -> Result<Node> {
        let machine = machine(host)?;
        let proxy = api.proxy_on(machine.on(|_| proxy::listener())?)?;
        let kubeconfig =
            machine.on(|_| api.kubeconfig_to(&proxy.endpoint(), "plugin", &account.identity))?;
        let mut conf = conf(
            store,
            name,
            json!({ "cniVersion": "1.1.0", "policy": { "type": "k8s" } }),
        );
        conf["kubernetes"] = json!({ "kubeconfig": kubeconfig });
        extend(&mut conf, more);
        Ok(Node {
            name: name.to_owned(),
            proxy,
            conf,
            plugins: Plugins::locate()?,
            machine,
        })
    }

    /// Runs `f` on this node.
    pub fn on<T: Send>(&self, f: impl FnOnce(&Host) -> Result<T> + Send) -> Result<T> {
        self.machine.on(f)
    }

    /// Creates the n-th sandbox, with its own network namespace.
    pub fn sandbox(&self, number: usize, pod: Option<(&str, &str)>) -> Result<Sandbox> {
        let netns = format!("sandbox{number}");
        self.on(|host| host.add_pod(&netns))?;
        let pod = pod.map(|(namespace, name)| (namespace.to_owned(), name.to_owned()));
        Ok(Sandbox {
            container_id: container_id(number),
            netns,
            pod,
        })
    }

    /// Prepares a call of `calico` for a sandbox.
    pub fn verb(&self, verb: &str, sandbox: &Sandbox) -> Call {
        self.verb_with(verb, sandbox, &Value::Null)
    }

    /// Prepares a call with more keys in the configuration.
    pub fn verb_with(&self, verb: &str, sandbox: &Sandbox, more: &Value) -> Call {
        let mut conf = self.conf.clone();
        extend(&mut conf, more.clone());
        let netns = std::path::Path::new(crate::namespaces::NETNS_DIR).join(&sandbox.netns);
        self.plugins
            .verb("calico", verb, &sandbox.container_id, &netns, &conf)
            .env("CNI_ARGS", sandbox.args())
    }

    /// Starts a call on this node.
    pub fn spawn(&self, call: &Call) -> Result<Child> {
        self.on(|_| call.spawn())
    }

    /// Runs a call on this node to its end.
    pub fn run(&self, call: &Call) -> Result<Outcome> {
        let started = Instant::now();
        wait(self.spawn(call)?, started, DEADLINE)
    }

    /// Reads the node's `cali*` links, their routes and their sysctls.
    pub fn kernel(&self) -> Result<Value> {
        self.on(|_| kernel::host())
    }
}

impl Sandbox {
    /// Returns `CNI_ARGS` as a kubelet passes them, but without the pod's UID; empty for a plain
    /// container.
    fn args(&self) -> String {
        let Some((namespace, name)) = &self.pod else {
            return String::new();
        };
        format!(
            "IgnoreUnknown=1;K8S_POD_NAMESPACE={namespace};K8S_POD_NAME={name};K8S_POD_INFRA_CONTAINER_ID={}",
            self.container_id
        )
    }
}

/// Creates a private host with an uplink.
fn machine(host: &Host) -> Result<Neighbor> {
    let machine = host.neighbor()?;
    machine.on(|host| host.add_uplink())?;
    Ok(machine)
}

fn extend(conf: &mut Value, more: Value) {
    if let (Some(keys), Value::Object(more)) = (conf.as_object_mut(), more) {
        keys.extend::<Map<String, Value>>(more);
    }
}

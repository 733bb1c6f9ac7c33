//! What most suites start from: a private host with an uplink, the plugins, a datastore with content, and pods.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use anyhow::Result;
use serde_json::Value;

use crate::accounts::{Accounts, HELD_BY_NO_ONE};
use crate::content::{Content, NETWORK, conf, container_id};
use crate::etcd::{self, Etcd};
use crate::golden::compare::{Difference, differences};
use crate::golden::marks::Bindings;
use crate::kernel;
use crate::namespaces::{Host, isolated};
use crate::plugin::{Call, Plugins};
use crate::skip::skipped;
use crate::store::Store;

mod faulty;
mod kubernetes;

pub use faulty::{Faulty, points};
pub use kubernetes::{ControlPlane, NAMESPACE, on_api_server, on_each_group, pod_path};

/// Makes each named function, `fn(&Cluster)`, a test on etcd and one on the embedded datastore.
#[macro_export]
macro_rules! on_each_datastore {
    ($($test:ident),* $(,)?) => {
        mod etcd {
            $(#[test] fn $test() { $crate::cluster::on_etcd(super::$test) })*
        }
        mod local {
            $(#[test] fn $test() { $crate::cluster::on_local(super::$test) })*
        }
    };
}

/// One private host with everything a plugin needs.
#[derive(Debug)]
pub struct Cluster<'h> {
    /// The host.
    pub host: &'h Host,
    /// The binaries under test.
    pub plugins: Plugins,
    /// The datastore.
    pub store: Store,
}

/// The sandbox of a pod.
#[derive(Debug, Clone)]
pub struct Pod {
    /// Name of its namespace.
    pub name: String,
    /// Path of its namespace.
    pub netns: PathBuf,
    /// CNI_CONTAINERID.
    pub container_id: String,
    /// Name of the pod in Kubernetes that the sandbox is for.
    pub object: Option<String>,
}

impl Pod {
    /// CNI_ARGS, as a kubelet gives them.
    pub fn args(&self) -> String {
        let Some(name) = &self.object else { return String::new() };
        format!(
            "IgnoreUnknown=1;K8S_POD_NAMESPACE={NAMESPACE};K8S_POD_NAME={name};K8S_POD_INFRA_CONTAINER_ID={}",
            self.container_id
        )
    }
}

/// Runs a test with an etcd.
///
/// # Panics
/// With the test, or when its surroundings cannot be made.
pub fn on_etcd(test: impl FnOnce(&Cluster<'_>) + Send) {
    if !Etcd::installed() {
        return skipped(etcd::REQUIRES);
    }
    isolated(|host| test(&Cluster::with(host, |_| Store::etcd(host)).unwrap()));
}

/// Runs a test with an embedded datastore.
///
/// # Panics
/// With the test, or when its surroundings cannot be made.
pub fn on_local(test: impl FnOnce(&Cluster<'_>) + Send) {
    isolated(|host| test(&Cluster::with(host, |plugins| Ok(Store::local(host, plugins))).unwrap()));
}

impl<'h> Cluster<'h> {
    fn with(host: &'h Host, store: impl FnOnce(&Plugins) -> Result<Store>) -> Result<Cluster<'h>> {
        let plugins = Plugins::locate()?;
        let store = store(&plugins)?;
        host.add_uplink()?;
        Ok(Cluster { host, plugins, store })
    }

    /// Puts content into the datastore.
    ///
    /// # Panics
    /// When it cannot.
    pub fn load(&self, content: &Content) {
        let Store::Kubernetes(objects) = &self.store else { return self.store.load(content.pairs()).unwrap() };
        objects.load(&content.objects(objects.group())).unwrap();
        content.nodes().for_each(|node| kubernetes::create_node(objects.client(), node));
    }

    /// A network configuration of a node, see [`conf`].
    pub fn conf(&self, node: &str, more: Value) -> Value {
        conf(&self.store, node, more)
    }

    /// Makes the namespace of the n-th pod, and the pod itself where the store is Kubernetes.
    ///
    /// # Panics
    /// When it cannot.
    pub fn pod(&self, number: usize) -> Pod {
        let name = format!("pod{number}");
        let object = match &self.store {
            Store::Kubernetes(objects) => {
                kubernetes::create_pod(objects.client(), &name);
                Some(name.clone())
            }
            Store::Etcd(_) | Store::Local(_) => None,
        };
        let netns = self.host.add_pod(&name).unwrap();
        Pod { name, netns, container_id: container_id(number), object }
    }

    /// Another sandbox of a pod, the n-th of all.
    ///
    /// # Panics
    /// When it cannot be made.
    pub fn sandbox(&self, pod: &Pod, number: usize) -> Pod {
        let name = format!("pod{number}");
        let netns = self.host.add_pod(&name).unwrap();
        Pod { name, netns, container_id: container_id(number), object: pod.object.clone() }
    }

    /// Takes a pod's namespace away, and the pod itself.
    ///
    /// # Panics
    /// When it cannot.
    pub fn remove_pod(&self, pod: &Pod) {
        self.host.delete_pod(&pod.name).unwrap();
        if let (Store::Kubernetes(objects), Some(name)) = (&self.store, &pod.object) {
            let deleted = objects.client().delete(&pod_path(name)).unwrap();
            assert!(matches!(deleted.code, 200 | 404), "{deleted:?}");
        }
    }

    /// A verb of `calico` on a pod's `eth0`.
    pub fn verb(&self, verb: &str, pod: &Pod, conf: &Value) -> Call {
        self.plugins.verb("calico", verb, &pod.container_id, &pod.netns, conf).env("CNI_ARGS", pod.args())
    }

    /// Adds a pod.
    ///
    /// # Panics
    /// When the plugin fails.
    #[track_caller]
    pub fn add(&self, pod: &Pod, conf: &Value) -> Value {
        self.verb("ADD", pod, conf).run().unwrap().success()
    }

    /// Deletes a pod.
    ///
    /// # Panics
    /// When the plugin fails.
    #[track_caller]
    pub fn delete(&self, pod: &Pod, conf: &Value) {
        let answer = self.verb("DEL", pod, conf).run().unwrap().success();
        assert_eq!(answer, "", "DEL prints nothing");
    }

    /// The bookkeeping as the datastore has it now.
    ///
    /// # Panics
    /// When it cannot be read.
    pub fn accounts(&self) -> Accounts {
        Accounts::of(&self.store.dump().unwrap())
    }

    /// The endpoints, by `<namespace>/<name>`.
    ///
    /// # Panics
    /// When they cannot be read.
    pub fn endpoints(&self) -> BTreeMap<String, Value> {
        let content = self.store.dump().unwrap();
        let named = |(key, endpoint): (String, Value)| {
            let (_, name) = key.split_once("/workloadendpoints/")?;
            Some((name.to_owned(), endpoint))
        };
        content.into_iter().filter_map(named).collect()
    }

    /// Everything a verb may change: the host's links, routes and sysctls, the pods', and the datastore's content.
    ///
    /// # Panics
    /// When it cannot be read.
    pub fn state(&self) -> Value {
        let (host, pods) = (kernel::host().unwrap(), kernel::pods(self.host).unwrap());
        serde_json::json!({ "host": host, "pods": pods, "store": self.store.dump().unwrap() })
    }

    /// Nothing changed since `before`, a [`Cluster::state`].
    ///
    /// # Panics
    /// When something did, naming each place.
    #[track_caller]
    pub fn assert_unchanged(&self, before: &Value) {
        assert_same(before, &self.state());
    }

    /// Nothing of any pod is left: no address, handle, endpoint, host interface or route.
    ///
    /// # Panics
    /// When something is.
    #[track_caller]
    pub fn assert_nothing_left(&self) {
        self.assert_only(&[]);
        assert_eq!(kernel::host().unwrap()["routes"], serde_json::json!([]));
    }

    /// Exactly these pods are networked, everything is in order, and nothing of any other is left.
    ///
    /// # Panics
    /// When it is otherwise.
    #[track_caller]
    pub fn assert_only(&self, pods: &[&Pod]) {
        let accounts = self.checked_accounts();
        let expected: BTreeSet<String> = pods.iter().copied().map(handle).collect();
        let held: BTreeSet<String> = accounts.held.values().cloned().collect();
        let counted: BTreeSet<String> = accounts.counted.keys().map(|(handle, _)| handle.clone()).collect();
        assert_eq!((&held, &counted), (&expected, &expected), "{accounts:#?}");
        assert!(accounts.used.keys().eq(accounts.held.keys()), "{accounts:#?}");
        let links = &kernel::host().unwrap()["links"];
        assert_eq!(links.as_object().map(serde_json::Map::len), Some(pods.len()), "{links}");
        let others = |name: &String| *name != "uplink" && pods.iter().all(|pod| pod.name != *name);
        for pod in self.host.pods().unwrap().iter().filter(|name| others(name)) {
            let links = &kernel::pod(self.host, pod).unwrap()["links"];
            assert_eq!(*links, serde_json::json!({}), "left in {pod}");
        }
    }

    /// Blocks, handles and endpoints agree, for us and for `calico-ipam check`.
    ///
    /// # Panics
    /// When they do not.
    #[track_caller]
    pub fn assert_in_order(&self) {
        self.checked_accounts();
    }

    /// No endpoint lists an address that is free.
    ///
    /// # Panics
    /// When one does.
    #[track_caller]
    pub fn assert_listed_is_held(&self) {
        let mut problems = self.accounts().problems;
        problems.retain(|problem| problem.ends_with(HELD_BY_NO_ONE));
        assert_eq!(problems, Vec::<String>::new());
    }

    #[track_caller]
    fn checked_accounts(&self) -> Accounts {
        let accounts = self.accounts();
        assert_eq!(accounts.problems, Vec::<String>::new());
        let check = self.store.calico_ipam(&self.plugins, &["check"]).unwrap();
        assert_eq!(check.exit, Some(0), "calico-ipam check: {}{}", check.stdout, check.stderr);
        accounts
    }
}

/// Two states are the same.
///
/// # Panics
/// When they are not, naming each place.
#[track_caller]
pub fn assert_same(before: &Value, after: &Value) {
    let changes = changes(before, after);
    assert!(changes.is_empty(), "{}", changes.join("\n"));
}

/// Returns a line for each value of `before` that is another one in `after`.
pub fn changes(before: &Value, after: &Value) -> Vec<String> {
    differences(before, after, "", &mut Bindings::default()).iter().map(changed).collect()
}

fn changed(change: &Difference) -> String {
    let text = |value: &Option<Value>| value.as_ref().map_or("nothing".to_owned(), Value::to_string);
    format!("{}: was {}, is {}", change.path, text(&change.recorded), text(&change.ours))
}

/// The handle of a pod in [`NETWORK`].
pub fn handle(pod: &Pod) -> String {
    format!("{NETWORK}.{}", pod.container_id)
}

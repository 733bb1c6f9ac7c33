//! What most suites start from: a private host with an uplink, the plugins, a datastore with content, and pods.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::Result;
use serde_json::Value;

use crate::accounts::Accounts;
use crate::content::{Content, NETWORK, conf, container_id};
use crate::etcd::{self, Etcd};
use crate::golden::compare::{Difference, differences};
use crate::golden::marks::Bindings;
use crate::kernel;
use crate::namespaces::{Host, isolated};
use crate::plugin::{Call, Plugins};
use crate::skip::skipped;
use crate::store::Store;

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
        self.store.load(content.pairs()).unwrap();
    }

    /// A network configuration of a node, see [`conf`].
    pub fn conf(&self, node: &str, more: Value) -> Value {
        conf(&self.store, node, more)
    }

    /// Makes the namespace of the n-th pod.
    ///
    /// # Panics
    /// When it cannot.
    pub fn pod(&self, number: usize) -> Pod {
        let name = format!("pod{number}");
        let netns = self.host.add_pod(&name).unwrap();
        Pod { name, netns, container_id: container_id(number) }
    }

    /// A verb of `calico` on a pod's `eth0`.
    pub fn verb(&self, verb: &str, pod: &Pod, conf: &Value) -> Call {
        self.plugins.verb("calico", verb, &pod.container_id, &pod.netns, conf)
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
        self.assert_in_order();
        self.assert_no_pod();
    }

    #[track_caller]
    fn assert_no_pod(&self) {
        let accounts = self.accounts();
        assert!(accounts.is_empty(), "left over: {accounts:#?}");
        let host = kernel::host().unwrap();
        assert_eq!(host["links"], serde_json::json!({}));
        assert_eq!(host["routes"], serde_json::json!([]));
        for pod in self.host.pods().unwrap().iter().filter(|name| *name != "uplink") {
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
        assert_eq!(self.accounts().problems, Vec::<String>::new());
        let check = self.store.calico_ipam(&self.plugins, &["check"]).unwrap();
        assert_eq!(check.exit, Some(0), "calico-ipam check: {}{}", check.stdout, check.stderr);
    }
}

/// Two states are the same.
///
/// # Panics
/// When they are not, naming each place.
#[track_caller]
pub fn assert_same(before: &Value, after: &Value) {
    let changes: Vec<_> = differences(before, after, "", &mut Bindings::default()).iter().map(changed).collect();
    assert!(changes.is_empty(), "{}", changes.join("\n"));
}

fn changed(change: &Difference) -> String {
    let text = |value: &Option<Value>| value.as_ref().map_or("nothing".to_owned(), Value::to_string);
    format!("{}: was {}, is {}", change.path, text(&change.recorded), text(&change.ours))
}

/// The handle of a pod in [`NETWORK`].
pub fn handle(pod: &Pod) -> String {
    format!("{NETWORK}.{}", pod.container_id)
}

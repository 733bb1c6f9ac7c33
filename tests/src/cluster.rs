//! The starting point of most suites: a private host with an uplink, the plugins, a datastore with
//! content, and pods.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use anyhow::Result;
use serde_json::Value;

use crate::accounts::{Accounts, HELD_BY_NO_ONE};
use crate::content::{Content, NETWORK, conf, container_id};
use crate::controllers::{PATIENCE, await_that};
use crate::etcd::{self, Etcd};
use crate::golden::compare::{Difference, differences};
use crate::golden::marks::Bindings;
use crate::journal::journal_entries;
use crate::kernel;
use crate::kubernetes::Objects;
use crate::namespaces::{Host, isolated};
use crate::place::Place;
use crate::plugin::{Call, Plugins};
use crate::skip::skipped;
use crate::store::Store;

mod faulty;
mod kubernetes;

pub use crate::on;
pub use faulty::{Faults, Faulty, points, shortest, sweep};
pub(crate) use kubernetes::{BOTH_GROUPS, prepare_both_groups};
pub use kubernetes::{
    ControlPlane, NAMESPACE, on_installation, on_one_group, pod_path, restricted,
};

/// A private host with an uplink, the plugins and a datastore.
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
    /// Name of its network namespace.
    pub name: String,
    /// Path of its network namespace.
    pub netns: PathBuf,
    /// `CNI_CONTAINERID`.
    pub container_id: String,
    /// Name of the sandbox's Kubernetes Pod; `None` where no Pod exists.
    pub object: Option<String>,
}

impl Pod {
    /// Returns `CNI_ARGS` as a runtime passes them for the Pod, but without its UID; empty without
    /// a Pod.
    pub fn args(&self) -> String {
        let Some(name) = &self.object else {
            return String::new();
        };
        format!(
            "IgnoreUnknown=1;K8S_POD_NAMESPACE={NAMESPACE};K8S_POD_NAME={name};K8S_POD_INFRA_CONTAINER_ID={}",
            self.container_id
        )
    }
}

/// A test of a [`Cluster`]: a function that takes the cluster, and on an API server also the
/// [`ControlPlane`] if it asks for one.
pub trait ClusterTest<Parameters>: Send {
    /// Runs the test.
    fn run(self, cluster: &mut Cluster<'_>, control_plane: Option<&mut ControlPlane<'_>>);
}

impl<T: FnOnce(&Cluster<'_>) + Send> ClusterTest<fn(&Cluster<'_>)> for T {
    fn run(self, cluster: &mut Cluster<'_>, _: Option<&mut ControlPlane<'_>>) {
        self(cluster);
    }
}

impl<T: FnOnce(&mut Cluster<'_>) + Send> ClusterTest<fn(&mut Cluster<'_>)> for T {
    fn run(self, cluster: &mut Cluster<'_>, _: Option<&mut ControlPlane<'_>>) {
        self(cluster);
    }
}

impl<T> ClusterTest<fn(&Cluster<'_>, &mut ControlPlane<'_>)> for T
where
    T: FnOnce(&Cluster<'_>, &mut ControlPlane<'_>) + Send,
{
    fn run(self, cluster: &mut Cluster<'_>, control_plane: Option<&mut ControlPlane<'_>>) {
        let control_plane = control_plane.expect("only a test on an API server has a ControlPlane");
        self(cluster, control_plane);
    }
}

impl<T> ClusterTest<fn(&mut Cluster<'_>, &mut ControlPlane<'_>)> for T
where
    T: FnOnce(&mut Cluster<'_>, &mut ControlPlane<'_>) + Send,
{
    fn run(self, cluster: &mut Cluster<'_>, control_plane: Option<&mut ControlPlane<'_>>) {
        let control_plane = control_plane.expect("only a test on an API server has a ControlPlane");
        self(cluster, control_plane);
    }
}

/// Runs a test with a cluster on a private host. The API server, which serves both groups, may have
/// served earlier tests of the process, see
/// [`on_prepared_kubernetes`](crate::kubernetes::on_prepared_kubernetes). Skips the test if etcd or
/// the API server is not installed.
///
/// ```text
/// #[on(etcd, kubernetes_v1)]
/// fn del_without_an_add_succeeds(cluster: &Cluster<'_>) {
///     let conf = cluster.conf("node1", json!({}));
///     cluster.delete(&cluster.pod(1), &conf);
/// }
/// ```
pub fn on<Parameters>(place: Place, test: impl ClusterTest<Parameters>) {
    match place {
        Place::Etcd if !Etcd::installed() => skipped(etcd::REQUIRES),
        Place::Etcd => isolated(|host| {
            let mut cluster = Cluster::with(host, |_| Store::etcd(host)).unwrap();
            test.run(&mut cluster, None);
        }),
        Place::Local => isolated(|host| {
            let store = |plugins: &Plugins| Ok(Store::local(host, plugins));
            test.run(&mut Cluster::with(host, store).unwrap(), None);
        }),
        Place::KubernetesV1 | Place::KubernetesV3 => {
            kubernetes::on_both_groups(place.api_group(), test);
        }
    }
}

impl<'h> Cluster<'h> {
    fn with(host: &'h Host, store: impl FnOnce(&Plugins) -> Result<Store>) -> Result<Cluster<'h>> {
        let plugins = Plugins::locate()?;
        let store = store(&plugins)?;
        host.add_uplink()?;
        Ok(Cluster {
            host,
            plugins,
            store,
        })
    }

    /// Returns the cluster with its data in the etcd of its API server, which has other objects.
    pub fn in_etcd(&self) -> Cluster<'h> {
        Cluster {
            host: self.host,
            plugins: self.plugins.clone(),
            store: Store::Etcd(Etcd::of_control_plane(self.host)),
        }
    }

    /// Writes content into the datastore.
    pub fn load(&self, content: &Content) {
        let Store::Kubernetes(objects) = &self.store else {
            return self.store.load(content.pairs()).unwrap();
        };
        objects.load(&content.objects(objects.group())).unwrap();
        content
            .nodes()
            .for_each(|node| objects.client().node(node).unwrap());
    }

    /// Returns Calico's objects on the API server, whose client has all rights and does not use the
    /// plugins' proxy.
    ///
    /// # Panics
    /// Panics outside of an API server.
    #[track_caller]
    pub fn objects(&self) -> &Objects {
        match &self.store {
            Store::Kubernetes(objects) => objects,
            other => panic!("{} is no API server", other.name()),
        }
    }

    /// Returns the etcd with Calico's objects, which a test may stop.
    ///
    /// # Panics
    /// Panics on another datastore.
    #[track_caller]
    pub fn etcd(&mut self) -> &mut Etcd {
        match &mut self.store {
            Store::Etcd(etcd) => etcd,
            other => panic!("{} is no etcd", other.name()),
        }
    }

    /// Returns a network configuration for a node, see [`conf`].
    pub fn conf(&self, node: &str, more: Value) -> Value {
        conf(&self.store, node, more)
    }

    /// Creates the network namespace of the n-th pod and, on an API server, the Pod object on
    /// `node1`.
    pub fn pod(&self, number: usize) -> Pod {
        self.pod_on(kubernetes::NODE, number)
    }

    /// Creates the n-th pod as [`Cluster::pod`] does, on another node.
    pub fn pod_on(&self, node: &str, number: usize) -> Pod {
        let name = format!("pod{number}");
        let object = match &self.store {
            Store::Kubernetes(objects) => {
                kubernetes::create_pod(objects.client(), node, &name);
                Some(name.clone())
            }
            Store::Etcd(_) | Store::Local(_) => None,
        };
        let netns = self.host.add_pod(&name).unwrap();
        Pod {
            name,
            netns,
            container_id: container_id(number),
            object,
        }
    }

    /// Creates another sandbox of a pod, with the n-th container ID.
    pub fn sandbox(&self, pod: &Pod, number: usize) -> Pod {
        let name = format!("pod{number}");
        let netns = self.host.add_pod(&name).unwrap();
        Pod {
            name,
            netns,
            container_id: container_id(number),
            object: pod.object.clone(),
        }
    }

    /// Deletes the network namespace of a pod and, on an API server, the Pod object.
    pub fn remove_pod(&self, pod: &Pod) {
        self.host.delete_pod(&pod.name).unwrap();
        if let (Store::Kubernetes(objects), Some(name)) = (&self.store, &pod.object) {
            let deleted = objects.client().delete(&pod_path(name)).unwrap();
            assert!(matches!(deleted.code, 200 | 404), "{deleted:?}");
        }
    }

    /// Prepares a call of `calico` for a pod's `eth0`.
    pub fn verb(&self, verb: &str, pod: &Pod, conf: &Value) -> Call {
        self.plugins
            .verb("calico", verb, &pod.container_id, &pod.netns, conf)
            .env("CNI_ARGS", pod.args())
    }

    /// Runs ADD for a pod and returns its result.
    #[track_caller]
    pub fn add(&self, pod: &Pod, conf: &Value) -> Value {
        self.verb("ADD", pod, conf).run().success()
    }

    /// Runs DEL for a pod.
    #[track_caller]
    pub fn delete(&self, pod: &Pod, conf: &Value) {
        let answer = self.verb("DEL", pod, conf).run().success();
        assert_eq!(answer, "", "DEL prints nothing");
    }

    /// Runs STATUS until one succeeds and the journal is empty. A STATUS leaves a replay that takes
    /// too long to a later call.
    #[track_caller]
    pub fn await_replayed(&self, pod: &Pod, conf: &Value) {
        let mut last = None;
        let replayed = await_that(PATIENCE, || {
            let outcome = self.verb("STATUS", pod, conf).try_run()?;
            let is_done = outcome.exit == Some(0) && journal_entries().is_empty();
            last = Some(outcome);
            Ok(is_done)
        });
        assert!(
            replayed.is_ok(),
            "{replayed:?}, {:?}, {last:?}",
            journal_entries()
        );
    }

    /// Reads the present bookkeeping from the datastore.
    pub fn accounts(&self) -> Accounts {
        self.store.accounts().unwrap()
    }

    /// Reads the endpoints in etcd or the embedded datastore, keyed by `<namespace>/<name>`.
    pub fn endpoints(&self) -> BTreeMap<String, Value> {
        let content = self.store.dump().unwrap();
        let named = |(key, endpoint): (String, Value)| {
            let (_, name) = key.split_once("/workloadendpoints/")?;
            Some((name.to_owned(), endpoint))
        };
        content.into_iter().filter_map(named).collect()
    }

    /// Reads the kernel's state of the host and of its pods, and the datastore.
    pub fn state(&self) -> Value {
        let (host, pods) = (kernel::host().unwrap(), kernel::pods(self.host).unwrap());
        serde_json::json!({ "host": host, "pods": pods, "store": self.store.dump().unwrap() })
    }

    /// Asserts that [`Cluster::state`] returns the same as before. `before` is its earlier value.
    #[track_caller]
    pub fn assert_unchanged(&self, before: &Value) {
        assert_same(before, &self.state());
    }

    /// Asserts that neither the datastore nor the interfaces and routes of the host contain
    /// anything of a pod.
    #[track_caller]
    pub fn assert_nothing_left(&self) {
        self.assert_only(&[]);
        assert_eq!(kernel::host().unwrap()["routes"], serde_json::json!([]));
    }

    /// Asserts that exactly these pods have addresses and host interfaces, that the bookkeeping is
    /// consistent, and that other pods have no interfaces.
    #[track_caller]
    pub fn assert_only(&self, pods: &[&Pod]) {
        let accounts = self.checked_accounts();
        let expected: BTreeSet<String> = pods.iter().copied().map(handle).collect();
        let held: BTreeSet<String> = accounts.held.values().cloned().collect();
        let counted: BTreeSet<String> = accounts
            .counted
            .keys()
            .map(|(handle, _)| handle.clone())
            .collect();
        assert_eq!((&held, &counted), (&expected, &expected), "{accounts:#?}");
        assert!(
            accounts.used.keys().eq(accounts.held.keys()),
            "{accounts:#?}"
        );
        let links = kernel::host_links().unwrap();
        assert_eq!(links.len(), pods.len(), "{links:?}");
        let others = |name: &String| *name != "uplink" && pods.iter().all(|pod| pod.name != *name);
        for pod in self.host.pods().unwrap().iter().filter(|name| others(name)) {
            let links = kernel::pod_links(self.host, pod).unwrap();
            assert!(links.is_empty(), "left in {pod}: {links:?}");
        }
    }

    /// Asserts that blocks, handles and endpoints agree, according to [`Accounts`] and to
    /// `calico-ipam check`.
    #[track_caller]
    pub fn assert_in_order(&self) {
        self.checked_accounts();
    }

    /// Asserts that each address that an endpoint lists is assigned to a handle in a block.
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
        assert_eq!(
            check.exit,
            Some(0),
            "calico-ipam check: {}{}",
            check.stdout,
            check.stderr
        );
        accounts
    }
}

/// Asserts that two states are equal.
#[track_caller]
pub fn assert_same(before: &Value, after: &Value) {
    let changes = changes(before, after);
    assert!(changes.is_empty(), "{}", changes.join("\n"));
}

/// Returns a line for each difference.
pub fn changes(before: &Value, after: &Value) -> Vec<String> {
    differences(before, after, "", &mut Bindings::default())
        .iter()
        .map(changed)
        .collect()
}

fn changed(change: &Difference) -> String {
    let text = |value: &Option<Value>| {
        value
            .as_ref()
            .map_or("nothing".to_owned(), Value::to_string)
    };
    format!(
        "{}: was {}, is {}",
        change.path,
        text(&change.recorded),
        text(&change.ours)
    )
}

/// Returns the handle of a pod in [`NETWORK`].
pub fn handle(pod: &Pod) -> String {
    format!("{NETWORK}.{}", pod.container_id)
}

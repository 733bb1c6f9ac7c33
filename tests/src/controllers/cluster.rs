//! [`ControllersCluster`]: the cluster in which kube-controllers run, with Kubernetes objects, and
//! Calico's objects in etcd or as custom resources of one group.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Result;
use libcalico::kubernetes::ApiGroup;
use libcalico::names::{HOSTNAME_HASH_LABEL, hostname_hash};
use serde_json::{Value, json};

use super::{Controllers, PATIENCE, Proxied, Setup, await_that};
use crate::cluster::{BOTH_GROUPS, prepare_both_groups};
use crate::etcd::Etcd;
use crate::kubernetes::{ApiServer, Client, Kubernetes, Objects, on_prepared_kubernetes};
use crate::namespaces::Host;
use crate::place::Place;

const RESOURCES: &str = "/calico/resources/v3/projectcalico.org";
const IPAM: &str = "/calico/ipam/v2";
/// The namespace of pods and Services.
pub const NAMESPACE: &str = "suite";

/// Names of accounts that may do everything, for replicas with different users.
pub const REPLICAS: [&str; 2] = ["one", "two"];

/// The cluster in which kube-controllers run: a private host with etcd and an API server, and
/// Calico's objects in etcd, or as custom resources of one group.
///
/// A test creates objects of Kubernetes and Calico, starts replicas, and waits for their work:
///
/// ```text
/// use integration_tests::controllers::{ControllersCluster, on};
///
/// #[on(etcd, kubernetes_v1)]
/// fn leaked_address_is_released(cluster: &ControllersCluster<'_>) {
///     cluster.node("n1", "10.9.0.1");
///     cluster.address_left_behind("n1", "10.65.1.0");
///     let controllers = cluster.setup().start(cluster.host, "controllers").unwrap();
///     cluster.configure(&json!({ "leakGracePeriod": "1s" }));
///     cluster.until(&controllers, "the address is released", || {
///         cluster.handles_and_blocks().0.is_empty()
///     });
/// }
/// ```
///
/// [`Proxied`] starts a replica whose requests pass through proxies, and [`RunningControllers`]
/// runs controllers in a thread of the test.
///
/// [`RunningControllers`]: super::RunningControllers
#[derive(Debug, Clone, Copy)]
pub struct ControllersCluster<'a> {
    /// The host of the servers and of the replicas.
    pub host: &'a Host,
    /// The API server.
    pub api: &'a ApiServer,
    /// The etcd.
    pub etcd: &'a Etcd,
    /// The group of Calico's objects; `None` if they are in etcd.
    pub group: Option<ApiGroup>,
}

/// Runs a test with a cluster on a control plane that may have served earlier tests of the process,
/// see [`on_prepared_kubernetes`]. The accounts [`REPLICAS`] exist. With Calico's objects in etcd,
/// the API server defines v1, so that it also serves tests with v1. Skips the test if etcd or the
/// API server is not installed.
pub fn on(place: Place, test: impl FnOnce(&ControllersCluster<'_>) + Send) {
    on_prepared("replicas", place, create_replicas, test);
}

/// Creates the accounts [`REPLICAS`]. Writes nothing if they exist.
pub(crate) fn create_replicas(api: &ApiServer) -> Result<()> {
    REPLICAS
        .into_iter()
        .try_for_each(|name| Proxied::account(api, name).map(drop))
}

/// Runs a test as [`on()`] does, on a control plane that `prepare` has changed. `preparation` names
/// what `prepare` does.
///
/// # Panics
/// Panics on the embedded datastore, with which kube-controllers do not run.
pub fn on_prepared(
    preparation: &str,
    place: Place,
    prepare: impl FnOnce(&ApiServer) -> Result<()> + Send + 'static,
    test: impl FnOnce(&ControllersCluster<'_>) + Send,
) {
    let group = place.group().unwrap_or(ApiGroup::CrdV1);
    let preparation = format!("{preparation}, {group:?}");
    let prepare = move |api: &ApiServer| {
        ControllersCluster::prepare(api, Some(group))?;
        prepare(api)
    };
    run(&preparation, place, prepare, test);
}

/// Runs a test as [`on_prepared`] does, on an API server with both groups, so that the tests of all
/// places share it. A kube-controllers without the variable `CALICO_API_GROUP` uses v1 there.
///
/// # Panics
/// Panics on the embedded datastore.
pub fn on_both_groups(
    preparation: &str,
    place: Place,
    prepare: impl FnOnce(&ApiServer) -> Result<()> + Send + 'static,
    test: impl FnOnce(&ControllersCluster<'_>) + Send,
) {
    let prepare = |api: &ApiServer| {
        for group in [ApiGroup::CrdV1, ApiGroup::V3] {
            ControllersCluster::prepare(api, Some(group))?;
            api.await_group(group.name())?;
        }
        prepare(api)
    };
    run(preparation, place, prepare, test);
}

/// Runs a test on a control plane of [`cluster::on`](crate::cluster::on()), as [`on_both_groups`]
/// does. The accounts [`REPLICAS`] exist.
///
/// # Panics
/// Panics on the embedded datastore.
pub fn beside_plugins(place: Place, test: impl FnOnce(&ControllersCluster<'_>) + Send) {
    run(BOTH_GROUPS, place, prepare_both_groups, test);
}

fn run(
    preparation: &str,
    place: Place,
    prepare: impl FnOnce(&ApiServer) -> Result<()> + Send + 'static,
    test: impl FnOnce(&ControllersCluster<'_>) + Send,
) {
    assert_ne!(place, Place::Local);
    on_prepared_kubernetes(preparation, prepare, |host, servers| {
        test(&ControllersCluster::prepared(host, servers, place.group()));
    });
}

/// Methods that send a request panic if the server does not respond.
impl<'a> ControllersCluster<'a> {
    /// Returns the cluster of these servers, after [`ControllersCluster::prepare`].
    pub fn new(
        host: &'a Host,
        servers: &'a Kubernetes,
        group: Option<ApiGroup>,
    ) -> ControllersCluster<'a> {
        Self::prepare(&servers.api, group).unwrap();
        Self::prepared(host, servers, group)
    }

    /// Defines Calico's kinds and creates the namespace [`NAMESPACE`].
    pub fn prepare(api: &ApiServer, group: Option<ApiGroup>) -> Result<()> {
        if let Some(group) = group {
            api.define(group.api_version())?;
        }
        api.namespace(NAMESPACE)
    }

    /// Returns the cluster of servers on which [`ControllersCluster::prepare`] has run.
    pub fn prepared(
        host: &'a Host,
        Kubernetes { api, etcd, .. }: &'a Kubernetes,
        group: Option<ApiGroup>,
    ) -> ControllersCluster<'a> {
        ControllersCluster {
            host,
            api,
            etcd,
            group,
        }
    }

    /// Returns the setup of a kube-controllers with the rights of the administrator.
    pub fn setup(&self) -> Setup {
        if self.group.is_some() {
            Setup::kubernetes(self.api)
        } else {
            Setup::etcd(self.api)
        }
        .unwrap()
    }

    /// Returns the setup of a kube-controllers with the rights of a kubeconfig.
    pub fn setup_with(&self, kubeconfig: &Path) -> Setup {
        self.setup()
            .env("KUBECONFIG", kubeconfig.display().to_string())
    }

    // === Kubernetes objects ===

    /// Returns the client of the administrator.
    pub fn admin(&self) -> &'a Client {
        self.api.admin()
    }

    /// Creates or updates a Kubernetes object.
    pub fn apply(&self, object: Value) {
        self.admin().apply_object(&object).unwrap();
    }

    /// Reads the object at a URL path of the API server. Returns the `Status` of a rejected
    /// request.
    pub fn get(&self, path: &str) -> Value {
        self.admin().get(path).unwrap().body
    }

    /// Reads the existing object at a URL path of the API server.
    pub fn read(&self, path: &str) -> Value {
        self.admin().get(path).unwrap().success()
    }

    /// Creates an object in a collection of the API server.
    pub fn create(&self, collection: &str, object: &Value) {
        let answer = self.admin().create(collection, object);
        answer.unwrap().success();
    }

    /// Merges a patch into the object at a URL path of the API server.
    pub fn merge(&self, path: &str, patch: &Value) {
        self.admin().patch(path, patch).unwrap().success();
    }

    /// Deletes the object at a URL path of the API server.
    pub fn remove(&self, path: &str) {
        self.admin().delete(path).unwrap().success();
    }

    /// Creates a node with an address, for Kubernetes and for Calico.
    pub fn node(&self, name: &str, address: &str) {
        let annotations = json!({ "projectcalico.org/IPv4Address": format!("{address}/24") });
        let metadata = json!({ "name": name, "annotations": annotations });
        self.apply(json!({ "apiVersion": "v1", "kind": "Node", "metadata": metadata }));
        if self.group.is_none() {
            let of_kubernetes = json!([{ "nodeName": name, "orchestrator": "k8s" }]);
            let spec = json!({
                "orchRefs": of_kubernetes, "bgp": { "ipv4Address": format!("{address}/24") },
            });
            self.put("Node", "nodes", name, &spec);
        }
    }

    /// Creates a Service of type LoadBalancer that requests an address.
    pub fn service(&self, name: &str, address: &str) {
        let annotations =
            json!({ "projectcalico.org/loadBalancerIPs": format!("[\"{address}\"]") });
        self.apply(json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": { "name": name, "namespace": NAMESPACE, "annotations": annotations },
            "spec": {
                "type": "LoadBalancer", "ports": [{ "port": 80 }], "selector": { "app": name },
            },
        }));
    }

    /// Returns the addresses in a Service's status.
    pub fn shown(&self, service: &str) -> Vec<String> {
        let service = self.get(&service_path(service));
        let entries = service["status"]["loadBalancer"]["ingress"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        entries
            .iter()
            .filter_map(|entry| Some(entry["ip"].as_str()?.to_owned()))
            .collect()
    }

    // === Calico's objects ===

    /// Creates or updates a Calico object.
    pub fn put(&self, kind: &str, plural: &str, name: &str, spec: &Value) {
        self.labelled(kind, plural, name, spec, json!({}));
    }

    /// Creates a pool.
    pub fn pool(&self, name: &str, cidr: &str, uses: &str) {
        let spec = json!({ "cidr": cidr, "blockSize": 26, "nodeSelector": "all()",
                "allowedUses": [uses],
            "ipipMode": "Never", "vxlanMode": "Never" });
        self.put("IPPool", "ippools", name, &spec);
    }

    /// Reads a Calico object; null if it is missing. In etcd, the name of a namespaced object is
    /// `<namespace>/<name>`.
    pub fn calico(&self, plural: &str, name: &str) -> Value {
        if self.group.is_none() {
            let stored = self
                .etcd
                .dump_raw()
                .unwrap()
                .remove(&format!("{RESOURCES}/{plural}/{name}"));
            return stored
                .and_then(|bytes| serde_json::from_slice(&bytes).ok())
                .unwrap_or_default();
        }
        let answer = self.admin().get(&self.path(plural, name)).unwrap();
        if answer.code == 404 {
            Value::Null
        } else {
            answer.success()
        }
    }

    /// Returns the URL path of Calico's objects of a kind.
    pub fn collection(&self, plural: &str) -> String {
        format!(
            "/apis/{}/{plural}",
            self.group.expect("a group").api_version()
        )
    }

    /// Returns the URL path of a Calico object.
    pub fn path(&self, plural: &str, name: &str) -> String {
        format!("{}/{name}", self.collection(plural))
    }

    /// Merges a patch into an existing Calico object.
    pub fn change(&self, plural: &str, name: &str, patch: &Value) {
        if self.group.is_some() {
            return self.merge(&self.path(plural, name), patch);
        }
        let mut object = self.calico(plural, name);
        merge(&mut object, patch);
        self.etcd
            .put(
                &format!("{RESOURCES}/{plural}/{name}"),
                object.to_string().as_bytes(),
            )
            .unwrap();
    }

    /// Deletes a Calico object.
    pub fn delete(&self, plural: &str, name: &str) {
        match self.group {
            None => self
                .etcd
                .delete(&format!("{RESOURCES}/{plural}/{name}"))
                .unwrap(),
            Some(_) => self.remove(&self.path(plural, name)),
        }
    }

    /// Changes the node settings of the KubeControllersConfiguration, once kube-controllers has
    /// created it. An API server that has just defined the kind can refuse the first attempt to
    /// create it.
    pub fn configure(&self, node: &Value) {
        await_that(PATIENCE * 2, || {
            Ok(!self
                .calico("kubecontrollersconfigurations", "default")
                .is_null())
        })
        .unwrap();
        let patch = json!({ "spec": { "controllers": { "node": node } } });
        self.change("kubecontrollersconfigurations", "default", &patch);
    }

    /// Creates a leaked address on a node: its block, the affinity of the block, and its handle.
    pub fn address_left_behind(&self, node: &str, block: &str) {
        let (cidr, dashed) = (format!("{block}/26"), block.replace('.', "-"));
        let handle = handle_of(node);
        let mut allocations = vec![Value::Null; 64];
        allocations[0] = json!(0);
        let owner = json!({ "namespace": NAMESPACE, "node": node, "pod": format!("gone-{node}") });
        let spec = json!({
            "affinity": format!("host:{node}"), "allocations": allocations, "cidr": cidr,
            "deleted": false,
            "attributes": [{ "handle_id": handle, "secondary": owner }], "sequenceNumber": 7,
            "sequenceNumberForAllocation": { "0": 6 }, "strictAffinity": false,
            "unallocated": (1..64).collect::<Vec<_>>(),
        });
        let Some(group) = self.group else {
            let counted =
                json!({ "block": { cidr.as_str(): 1 }, "handleID": handle, "deleted": false });
            for (path, value) in [
                (format!("{IPAM}/assignment/ipv4/block/{block}-26"), spec),
                (
                    format!("{IPAM}/host/{node}/ipv4/block/{block}-26"),
                    json!({ "state": "confirmed" }),
                ),
                (format!("{IPAM}/handle/{handle}"), counted),
            ] {
                self.etcd.put(&path, value.to_string().as_bytes()).unwrap();
            }
            return;
        };
        self.put("IPAMBlock", "ipamblocks", &format!("{dashed}-26"), &spec);
        let deleted = deletion_mark(group, false);
        let spec = json!({
            "cidr": cidr, "deleted": deleted, "node": node, "state": "confirmed", "type": "host",
        });
        // Lists of one node's affinities select by labels.
        let labels = json!({ "projectcalico.org/affinity-type": "host",
                "projectcalico.org/ip-version": "4",
            HOSTNAME_HASH_LABEL: hostname_hash(node) });
        self.labelled(
            "BlockAffinity",
            "blockaffinities",
            &format!("{node}-{dashed}-26"),
            &spec,
            labels,
        );
        let spec = json!({ "block": { cidr: 1 }, "deleted": false, "handleID": handle });
        self.put("IPAMHandle", "ipamhandles", &handle, &spec);
    }

    /// Returns the names of all handles, and those of all blocks (in etcd, only of IPv4), such as
    /// `10-0-0-0-26`. A dash replaces each dot.
    pub fn handles_and_blocks(&self) -> (Vec<String>, Vec<String>) {
        let content = self.all();
        let below = |roots: [&str; 2]| {
            let name = |key: &String| {
                roots
                    .iter()
                    .find_map(|root| key.strip_prefix(root))
                    .map(|name| name.replace('.', "-"))
            };
            content.keys().filter_map(name).collect::<Vec<_>>()
        };
        let handles = below(["ipamhandles/", "/calico/ipam/v2/handle/"]);
        (
            handles,
            below(["ipamblocks/", "/calico/ipam/v2/assignment/ipv4/block/"]),
        )
    }

    /// Reads every Calico object, and the status of every Service in [`NAMESPACE`].
    pub fn all(&self) -> BTreeMap<String, Value> {
        let mut all = match self.group {
            Some(group) => Objects::new(self.admin(), group, self.api.admin_kubeconfig())
                .dump()
                .unwrap(),
            None => {
                let text =
                    |bytes: Vec<u8>| Value::String(String::from_utf8_lossy(&bytes).into_owned());
                let parsed =
                    |bytes: Vec<u8>| serde_json::from_slice(&bytes).unwrap_or_else(|_| text(bytes));
                let pairs = self.etcd.dump_raw().unwrap().into_iter();
                pairs
                    .filter(|(key, _)| key.starts_with("/calico/"))
                    .map(|(key, value)| (key, parsed(value)))
                    .collect()
            }
        };
        let services = self.get(&format!("/api/v1/namespaces/{NAMESPACE}/services"));
        for service in services["items"].as_array().into_iter().flatten() {
            let name = service["metadata"]["name"].as_str().unwrap_or_default();
            all.insert(format!("services/{name}"), service["status"].clone());
        }
        all
    }

    /// Reads the revision of each Calico object and Service. A write that changes the object
    /// changes it.
    pub fn revisions(&self) -> BTreeMap<String, u64> {
        let mut revisions = match self.group {
            None => self.etcd.revisions("/calico/").unwrap(),
            Some(group) => {
                let objects = Objects::new(self.admin(), group, self.api.admin_kubeconfig())
                    .dump()
                    .unwrap();
                objects
                    .into_iter()
                    .map(|(key, object)| (key, revision(&object)))
                    .collect()
            }
        };
        let services = self.get(&format!("/api/v1/namespaces/{NAMESPACE}/services"));
        for service in services["items"].as_array().into_iter().flatten() {
            revisions.insert(
                format!("services/{}", service["metadata"]["name"]),
                revision(service),
            );
        }
        revisions
    }

    /// Waits until a condition holds.
    #[track_caller]
    pub fn until(&self, controllers: &Controllers, what: &str, is_so: impl Fn() -> bool) {
        let seen = await_that(PATIENCE * 2, || Ok(is_so()));
        assert!(
            seen.is_ok(),
            "{what}: not seen\n{:#?}\n{}",
            self.all(),
            controllers.log().unwrap_or_default()
        );
    }

    /// Deletes Calico's objects, the Services and the nodes, so that the next test can start.
    pub fn clear(&self) {
        let all = self.all();
        for name in all.keys().filter_map(|key| key.strip_prefix("services/")) {
            self.remove(&service_path(name));
        }
        let nodes = self.get("/api/v1/nodes");
        for node in nodes["items"].as_array().into_iter().flatten() {
            self.remove(&format!(
                "/api/v1/nodes/{}",
                node["metadata"]["name"].as_str().unwrap_or_default()
            ));
        }
        let Some(group) = self.group else {
            let keys = self
                .etcd
                .dump_raw()
                .unwrap()
                .into_keys()
                .filter(|key| key.starts_with("/calico/"));
            return keys.for_each(|key| self.etcd.delete(&key).unwrap());
        };
        for (key, object) in &all {
            // No controller runs that would remove the finalizers.
            if !object["metadata"]["finalizers"].is_null() {
                let (plural, name) = key.split_once('/').unwrap_or_default();
                self.merge(
                    &self.path(plural, name),
                    &json!({ "metadata": { "finalizers": null } }),
                );
            }
        }
        Objects::new(self.admin(), group, self.api.admin_kubeconfig())
            .clear()
            .unwrap();
    }

    fn labelled(&self, kind: &str, plural: &str, name: &str, spec: &Value, labels: Value) {
        let api_version = self
            .group
            .map_or("projectcalico.org/v3", ApiGroup::api_version);
        let metadata = json!({ "name": name, "labels": labels });
        let object =
            json!({ "apiVersion": api_version, "kind": kind, "metadata": metadata, "spec": spec });
        match self.group {
            None => self
                .etcd
                .put(
                    &format!("{RESOURCES}/{plural}/{name}"),
                    object.to_string().as_bytes(),
                )
                .unwrap(),
            Some(_) => _ = self.admin().apply_object(&object).unwrap(),
        }
    }
}

fn revision(object: &Value) -> u64 {
    object["metadata"]["resourceVersion"]
        .as_str()
        .and_then(|revision| revision.parse().ok())
        .unwrap_or(0)
}

/// Returns the URL path of a Service.
pub fn service_path(name: &str) -> String {
    format!("/api/v1/namespaces/{NAMESPACE}/services/{name}")
}

/// Returns the handle of the leaked address on a node.
pub fn handle_of(node: &str) -> String {
    format!("k8s-pod-network.{node}")
}

/// Returns the mark of deletion of an affinity, which is a text in `crd.projectcalico.org/v1`.
pub fn deletion_mark(group: ApiGroup, deleted: bool) -> Value {
    if group == ApiGroup::CrdV1 {
        json!(deleted.to_string())
    } else {
        json!(deleted)
    }
}

/// Applies a JSON merge patch (RFC 7386).
pub fn merge(target: &mut Value, patch: &Value) {
    let Some(fields) = patch.as_object() else {
        return *target = patch.clone();
    };
    if !target.is_object() {
        *target = json!({});
    }
    for (name, value) in fields {
        match (value.is_null(), target.as_object_mut()) {
            (true, Some(object)) => _ = object.remove(name),
            _ => merge(&mut target[name], value),
        }
    }
}

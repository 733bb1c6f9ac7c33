//! [`MirroredCluster`]: a cluster, and mirroring controllers that a test starts and stops.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use integration_tests::Place;
use integration_tests::controllers::{
    Connection, ControllersCluster, controller, default_settings, on_prepared,
};
pub(crate) use integration_tests::controllers::{RunningControllers, becomes, stays};
pub(crate) use integration_tests::on;
use integration_tests::proxy::Proxy;
use kube_controllers::controllers::namespace::NamespaceController;
use kube_controllers::controllers::policy::PolicyController;
use kube_controllers::controllers::policy_names::PolicyNames;
use kube_controllers::controllers::service_account::ServiceAccountController;
use kube_controllers::controllers::workload_endpoint::WorkloadEndpoints;
use kube_controllers::settings::{ControllerName, Settings};
use serde_json::{Value, json};

pub(crate) const OBJECTS: &str = "/calico/resources/v3/projectcalico.org/";
/// The grace period of endpoints without a pod.
pub(crate) const GRACE: Duration = Duration::from_secs(2);

pub(crate) struct MirroredCluster<'a> {
    pub(crate) servers: ControllersCluster<'a>,
}

/// Runs a test on a cluster with a namespace `shop` and a ready datastore.
pub(crate) fn on(place: Place, test: impl FnOnce(&MirroredCluster<'_>) + Send) {
    on_prepared(
        "shop",
        place,
        |api| api.namespace("shop"),
        |servers| {
            servers.put(
                "ClusterInformation",
                "clusterinformations",
                "default",
                &json!({ "datastoreReady": true }),
            );
            test(&MirroredCluster { servers: *servers });
        },
    );
}

impl MirroredCluster<'_> {
    // === Calico's objects, by the part of their keys after [`OBJECTS`] ===

    pub(crate) fn get(&self, key: &str) -> Option<Value> {
        self.all().remove(key)
    }

    pub(crate) fn put(&self, key: &str, object: Value) {
        self.servers
            .etcd
            .put(&format!("{OBJECTS}{key}"), object.to_string().as_bytes())
            .unwrap();
    }

    pub(crate) fn delete(&self, key: &str) {
        self.servers
            .etcd
            .delete(&format!("{OBJECTS}{key}"))
            .unwrap();
    }

    /// Reads all objects that are JSON.
    pub(crate) fn all(&self) -> BTreeMap<String, Value> {
        let raw = self.servers.etcd.dump_raw().unwrap().into_iter();
        let ours = raw.filter_map(|(key, value)| {
            Some((
                key.strip_prefix(OBJECTS)?.to_owned(),
                serde_json::from_slice(&value).ok()?,
            ))
        });
        ours.collect()
    }

    /// Returns the keys below a prefix, without the prefix.
    pub(crate) fn keys(&self, prefix: &str) -> Vec<String> {
        let raw = self.servers.etcd.dump_raw().unwrap().into_keys();
        raw.filter_map(|key| {
            key.strip_prefix(OBJECTS)?
                .strip_prefix(prefix)
                .map(str::to_owned)
        })
        .collect()
    }

    // === Kubernetes objects ===

    pub(crate) fn apply(&self, object: Value) {
        self.servers.apply(object);
    }

    /// Creates or updates a policy in the namespace `shop` that allows ingress to `port`.
    pub(crate) fn policy(&self, name: &str, port: u16) {
        self.apply(json!({
            "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
            "metadata": {"name": name, "namespace": "shop"},
            "spec": {"podSelector": {}, "ingress": [{"ports": [{"port": port}]}]},
        }));
    }

    pub(crate) fn delete_policy(&self, name: &str) {
        let path = format!("/apis/networking.k8s.io/v1/namespaces/shop/networkpolicies/{name}");
        self.servers.remove(&path);
    }

    // === controllers ===

    /// Starts the controllers that run in this datastore.
    pub(crate) fn start(&self, change: impl FnOnce(&mut Settings)) -> RunningControllers {
        self.start_with(self.servers.api.admin_kubeconfig(), change)
    }

    /// Starts the controllers as a service account of `kube-system` with the roles of `manifest`,
    /// once the authorizer applies them. Their requests pass the proxy.
    pub(crate) fn start_as(
        &self,
        manifest: &Path,
        account: &str,
        proxy: &Proxy,
        change: impl FnOnce(&mut Settings),
    ) -> RunningControllers {
        let api = self.servers.api;
        let user = api
            .account_of("kube-system", account, &[manifest.to_owned()])
            .unwrap();
        let kubeconfig = api.kubeconfig_to(&proxy.endpoint(), account, &user.identity);
        self.start_with(kubeconfig.unwrap(), change)
    }

    fn start_with(
        &self,
        kubeconfig: PathBuf,
        change: impl FnOnce(&mut Settings),
    ) -> RunningControllers {
        let group = self.servers.group;
        let mut settings = default_settings(group);
        settings.orphan_endpoint_grace_period = GRACE;
        change(&mut settings);
        let connection = Connection::new(group, kubeconfig);
        RunningControllers::start_with_lock(&connection, settings, move |context, watches| {
            let mut work = vec![controller::<PolicyNames>(context, watches)];
            // An API server derives the other objects itself, so no controller mirrors them.
            if group.is_none() {
                work.push(controller::<PolicyController>(context, watches));
                work.push(controller::<NamespaceController>(context, watches));
                work.push(controller::<ServiceAccountController>(context, watches));
                work.push(controller::<WorkloadEndpoints>(context, watches));
            }
            work
        })
    }
}

/// Makes each mirroring controller compare all objects every second.
pub(crate) fn every_second(settings: &mut Settings) {
    for controller in [
        ControllerName::Policy,
        ControllerName::Namespace,
        ControllerName::ServiceAccount,
        ControllerName::WorkloadEndpoint,
    ] {
        settings
            .reconcile_period
            .insert(controller, Duration::from_secs(1));
    }
}

/// Makes the controllers compare all objects only once, at their start.
pub(crate) fn only_at_first(settings: &mut Settings) {
    settings
        .reconcile_period
        .values_mut()
        .for_each(|period| *period = Duration::ZERO);
}

//! A control plane with Calico's objects in one of three datastores, and controllers that a test
//! starts and stops.

use std::path::PathBuf;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use datastore::config::{DEFAULT_DEADLINE, EtcdConfig};
use datastore::{Datastore, DatastoreConfig, KubernetesConfig};
use futures::future::{BoxFuture, FutureExt, join_all};
use integration_tests::etcd::ENDPOINT;
use integration_tests::kubernetes::{
    ApiServer, Audit, Client, Kubernetes, Role, on_prepared_kubernetes,
};
use kube_controllers::context::Context;
use kube_controllers::controllers::host_endpoints::HostEndpoints;
use kube_controllers::controllers::ip_pool::IpPools;
use kube_controllers::controllers::load_balancer::{LoadBalancer, LoadBalancerReport};
use kube_controllers::controllers::node_deletion::NodeDeletion;
use kube_controllers::controllers::node_labels::NodeLabels;
use kube_controllers::controllers::tier::Tiers;
use kube_controllers::leader::Leadership;
use kube_controllers::runtime::Controller;
use kube_controllers::settings::{Environment, Mode, Settings, default_configuration, merge};
use kube_controllers::status::Watchdog;
use kube_controllers::telemetry::Metrics;
use kube_controllers::watches::Watches;
use libcalico::api::{Object, ObjectKey, Spec};
use libcalico::kubernetes::ApiGroup;
use libcalico::store::{Entry, Store, StoreError};
use libcalico::variables::Variables;
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

const PATIENCE: Duration = Duration::from_secs(90);
/// Time for which a test checks that nothing happens.
pub(crate) const CALM: Duration = Duration::from_secs(2);

pub(crate) const ETCD: Mode = Mode::Etcd;
pub(crate) const V1: Mode = Mode::Kubernetes(ApiGroup::CrdV1);
pub(crate) const V3: Mode = Mode::Kubernetes(ApiGroup::V3);

pub(crate) struct Scene {
    pub(crate) mode: Mode,
    pub(crate) admin: Client,
    pub(crate) audit: Audit,
    pub(crate) store: Datastore,
    pub(crate) admin_kubeconfig: PathBuf,
    kubernetes: KubernetesConfig,
    calico: DatastoreConfig,
    runtime: Runtime,
}

/// Running controllers in a separate thread. They stop on drop.
pub(crate) struct Running {
    stop: CancellationToken,
    settings: watch::Sender<Arc<Settings>>,
    metrics: Metrics,
    thread: Option<JoinHandle<()>>,
}

/// A function that subscribes a controller and returns its work.
type Build = fn(&Context, &mut Watches) -> BoxFuture<'static, ()>;

pub(crate) fn on(mode: Mode, test: fn(&Scene)) {
    let prepare = move |api: &ApiServer| prepare(api, mode);
    on_prepared_kubernetes(&format!("{mode:?}"), prepare, |_, kubernetes| {
        test(&Scene::new(kubernetes, mode))
    });
}

fn prepare(api: &ApiServer, mode: Mode) -> anyhow::Result<()> {
    api.namespace("default")?;
    if let Mode::Kubernetes(group) = mode {
        api.define(group.api_version())?;
        controllers_user(api);
    }
    Ok(())
}

/// Returns the kubeconfig of an account with the rights of `deploy/rbac`.
fn controllers_user(api: &ApiServer) -> PathBuf {
    let manifests = Role::manifests_of_controllers();
    api.account_of("kube-system", "calico-kube-controllers", &manifests)
        .unwrap()
        .kubeconfig
}

impl Scene {
    fn new(kubernetes: &Kubernetes, mode: Mode) -> Scene {
        let api = &kubernetes.api;
        let user = |kubeconfig, deadline| KubernetesConfig {
            kubeconfig: vec![kubeconfig],
            deadline,
            ..KubernetesConfig::default()
        };
        // The controllers repeat a request without a response. The test does not.
        let (kubernetes, calico, store) = match mode {
            Mode::Etcd => {
                let etcd = |deadline| {
                    let endpoints = vec![ENDPOINT.to_owned()];
                    DatastoreConfig::Etcd(Box::new(EtcdConfig {
                        endpoints,
                        credentials: None,
                        tls: None,
                        deadline,
                    }))
                };
                (
                    user(api.admin_kubeconfig(), DEFAULT_DEADLINE),
                    etcd(DEFAULT_DEADLINE),
                    etcd(PATIENCE),
                )
            }
            Mode::Kubernetes(group) => {
                let of = |user| {
                    DatastoreConfig::Kubernetes(Box::new(KubernetesConfig {
                        group: Some(group),
                        ..user
                    }))
                };
                let controllers = user(controllers_user(api), DEFAULT_DEADLINE);
                (
                    controllers.clone(),
                    of(controllers),
                    of(user(api.admin_kubeconfig(), PATIENCE)),
                )
            }
        };
        Scene {
            mode,
            admin: api.admin().clone(),
            audit: api.audit().unwrap(),
            store: Datastore::open(&store).unwrap(),
            admin_kubeconfig: api.admin_kubeconfig(),
            kubernetes,
            calico,
            runtime: tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap(),
        }
    }

    pub(crate) fn wait_on<T>(&self, operation: impl Future<Output = T>) -> T {
        self.runtime.block_on(operation)
    }

    // === Calico's objects ===

    pub(crate) fn get<S: Spec>(&self, name: &str) -> Option<Entry<Object<S>>> {
        match self.wait_on(self.store.get::<Object<S>>(&ObjectKey::global(name))) {
            Err(StoreError::NotFound { .. }) => None,
            found => Some(found.unwrap()),
        }
    }

    pub(crate) fn put<S: Spec>(&self, name: &str, metadata: Value, spec: Value) {
        let mut object: Object<S> = Object::new(name, serde_json::from_value(spec).unwrap());
        object.metadata = serde_json::from_value(metadata).unwrap();
        object.metadata.name = name.into();
        match self.get::<S>(name) {
            None => {
                _ = self
                    .wait_on(self.store.create(&object.key(), &object))
                    .unwrap()
            }
            Some(found) => {
                _ = self
                    .wait_on(self.store.update(&found.key, &object, &found.revision))
                    .unwrap()
            }
        }
    }

    pub(crate) fn delete<S: Spec>(&self, name: &str) {
        self.wait_on(
            self.store
                .delete::<Object<S>>(&ObjectKey::global(name), None),
        )
        .unwrap();
    }

    pub(crate) fn names<S: Spec>(&self) -> Vec<String> {
        let listed = self
            .wait_on(self.store.list::<Object<S>>(&Default::default()))
            .unwrap();
        listed.into_iter().map(|entry| entry.key.name).collect()
    }

    // === Kubernetes objects ===

    pub(crate) fn kubernetes_node(&self, name: &str, labels: Value, annotations: Value) {
        let node = json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": {"name": name, "labels": labels, "annotations": annotations},
        });
        self.admin.apply_object(&node).unwrap();
    }

    pub(crate) fn delete_kubernetes_node(&self, name: &str) {
        self.admin
            .delete(&format!("/api/v1/nodes/{name}"))
            .unwrap()
            .success()
            .unwrap();
    }

    /// Creates a Calico Node in etcd, or a Kubernetes Node with Calico's annotation on an API
    /// server.
    pub(crate) fn calico_node(&self, name: &str, labels: Value, address: &str) {
        match self.mode {
            Mode::Etcd => {
                // The controller would delete a Calico Node that refers to a missing Kubernetes
                // Node.
                let spec = json!({"bgp": {"ipv4Address": address}});
                self.put::<libcalico::api::NodeSpec>(name, json!({"labels": labels}), spec);
            }
            Mode::Kubernetes(_) => {
                self.kubernetes_node(
                    name,
                    labels,
                    json!({"projectcalico.org/IPv4Address": address}),
                );
            }
        }
    }

    pub(crate) fn delete_calico_node(&self, name: &str) {
        match self.mode {
            Mode::Etcd => self.delete::<libcalico::api::NodeSpec>(name),
            Mode::Kubernetes(_) => self.delete_kubernetes_node(name),
        }
    }

    // === controllers ===

    pub(crate) fn start(&self, change: impl FnOnce(&mut Settings)) -> Running {
        self.start_with(made::<LoadBalancer>, change)
    }

    /// Starts the controllers as they run if the controller of Services is not enabled, or lacks
    /// its role.
    pub(crate) fn start_without_load_balancer(
        &self,
        change: impl FnOnce(&mut Settings),
    ) -> Running {
        self.start_with(made::<LoadBalancerReport>, change)
    }

    fn start_with(&self, services: Build, change: impl FnOnce(&mut Settings)) -> Running {
        let mut settings = merge(
            &Environment::read(Variables::NONE).unwrap(),
            &default_configuration(),
            self.mode,
        )
        .settings;
        change(&mut settings);
        let (sender, receiver) = watch::channel(Arc::new(settings));
        let stop = CancellationToken::new();
        let (kubernetes, calico, mode, token) = (
            self.kubernetes.clone(),
            self.calico.clone(),
            self.mode,
            stop.clone(),
        );
        let metrics = Metrics::new();
        let shared = metrics.clone();
        let thread = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async {
                let context = Context {
                    kubernetes: datastore::kubernetes::client(&kubernetes).await.unwrap(),
                    calico: Arc::new(Datastore::open(&calico).unwrap()),
                    mode,
                    settings: receiver,
                    leadership: Leadership::always(),
                    metrics: shared,
                    same_cluster: Default::default(),
                    watchdog: Watchdog::default(),
                    stop: token,
                };
                work(context, services).await;
            });
        });
        Running {
            stop,
            settings: sender,
            metrics,
            thread: Some(thread),
        }
    }
}

async fn work(context: Context, services: Build) {
    let mut watches = Watches::default();
    let mut controllers = vec![
        made::<HostEndpoints>(&context, &mut watches),
        services(&context, &mut watches),
    ];
    match context.mode {
        Mode::Etcd => {
            controllers.push(made::<NodeLabels>(&context, &mut watches));
            controllers.push(made::<NodeDeletion>(&context, &mut watches));
        }
        Mode::Kubernetes(ApiGroup::V3) => {
            controllers.push(made::<IpPools>(&context, &mut watches));
            controllers.push(made::<Tiers>(&context, &mut watches));
        }
        Mode::Kubernetes(ApiGroup::CrdV1) => {}
    }
    let running = watches.start(&context);
    join_all(controllers).await;
    running.stopped().await;
}

fn made<C: Controller>(context: &Context, watches: &mut Watches) -> BoxFuture<'static, ()> {
    C::new(context, watches).run(context.clone()).boxed()
}

impl Running {
    pub(crate) fn set(&self, change: impl FnOnce(&mut Settings)) {
        self.settings
            .send_modify(|settings| change(Arc::make_mut(settings)));
    }

    /// Returns true if the metrics contain this line.
    pub(crate) fn measures(&self, line: &str) -> bool {
        self.metrics
            .text()
            .unwrap()
            .lines()
            .any(|shown| shown == line)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.cancel();
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(thread::panicking() || ended.is_none_or(|ended| ended.is_ok()));
    }
}

#[track_caller]
pub(crate) fn becomes<T: PartialEq + std::fmt::Debug>(expected: T, found: impl Fn() -> T) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let now = found();
        if now == expected {
            return;
        }
        assert!(Instant::now() < deadline, "{now:?}\nis not\n{expected:?}");
        thread::sleep(Duration::from_millis(20));
    }
}

#[track_caller]
pub(crate) fn stays<T: PartialEq + std::fmt::Debug>(expected: T, found: impl Fn() -> T) {
    let end = Instant::now() + CALM;
    while Instant::now() < end {
        assert_eq!(found(), expected);
        thread::sleep(Duration::from_millis(100));
    }
}

//! A control plane, and mirroring controllers that a test starts and stops.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::path::Path;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use datastore::config::{DEFAULT_DEADLINE, EtcdConfig};
use datastore::{Datastore, DatastoreConfig, KubernetesConfig};
use futures::future::{BoxFuture, FutureExt, join_all};
use integration_tests::etcd::{ENDPOINT, Etcd};
use integration_tests::kubernetes::{ApiServer, Client, Kubernetes, on_prepared_kubernetes};
use integration_tests::proxy::Proxy;
use kube_controllers::context::Context;
use kube_controllers::controllers::namespace::NamespaceController;
use kube_controllers::controllers::policy::PolicyController;
use kube_controllers::controllers::policy_names::PolicyNames;
use kube_controllers::controllers::service_account::ServiceAccountController;
use kube_controllers::controllers::workload_endpoint::WorkloadEndpoints;
use kube_controllers::datastore_lock;
use kube_controllers::leader::Leadership;
use kube_controllers::runtime::Controller;
use kube_controllers::settings::{
    ControllerName, Environment, Mode, Settings, default_configuration, merge,
};
use kube_controllers::status::Watchdog;
use kube_controllers::telemetry::Metrics;
use kube_controllers::watches::Watches;
use libcalico::variables::Variables;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

pub(crate) const OBJECTS: &str = "/calico/resources/v3/projectcalico.org/";
const PATIENCE: Duration = Duration::from_secs(90);
/// Time for which a test checks that nothing happens.
const CALM: Duration = Duration::from_secs(2);
/// The grace period of endpoints without a pod.
pub(crate) const GRACE: Duration = Duration::from_secs(2);

pub(crate) struct Scene<'a> {
    pub(crate) admin: Client,
    pub(crate) etcd: &'a Etcd,
    api: &'a ApiServer,
    mode: Mode,
    kubernetes: KubernetesConfig,
}

/// Running controllers in a separate thread. They stop on drop.
pub(crate) struct Running {
    stop: CancellationToken,
    thread: Option<JoinHandle<()>>,
    _settings: watch::Sender<Arc<Settings>>,
}

/// Runs a test on a control plane with a namespace `shop` and a ready datastore.
pub(crate) fn on_scene(test: impl FnOnce(&Scene<'_>) + Send) {
    on_scene_of(Mode::Etcd, test);
}

pub(crate) fn on_scene_of(mode: Mode, test: impl FnOnce(&Scene<'_>) + Send) {
    let prepare = move |api: &ApiServer| {
        if let Mode::Kubernetes(group) = mode {
            api.define(group.api_version())?;
        }
        api.namespace("shop")
    };
    on_prepared_kubernetes(
        &format!("shop, {mode:?}"),
        prepare,
        |_, Kubernetes { api, etcd, .. }| {
            let mut kubernetes = KubernetesConfig {
                kubeconfig: vec![api.admin_kubeconfig()],
                deadline: DEFAULT_DEADLINE,
                ..KubernetesConfig::default()
            };
            if let Mode::Kubernetes(group) = mode {
                let ready = json!({ "apiVersion": group.api_version(), "kind": "ClusterInformation",
                "metadata": { "name": "default" }, "spec": { "datastoreReady": true } });
                api.admin().apply_object(&ready).unwrap();
                kubernetes.group = Some(group);
            }
            let scene = Scene {
                admin: api.admin().clone(),
                etcd,
                api,
                mode,
                kubernetes,
            };
            scene.put(
                "clusterinformations/default",
                json!({"spec": {"datastoreReady": true}}),
            );
            test(&scene);
        },
    );
}

impl Scene<'_> {
    // === Calico's objects, by the part of their keys after [`OBJECTS`] ===

    pub(crate) fn get(&self, key: &str) -> Option<Value> {
        self.all().remove(key)
    }

    pub(crate) fn put(&self, key: &str, object: Value) {
        self.etcd
            .put(&format!("{OBJECTS}{key}"), object.to_string().as_bytes())
            .unwrap();
    }

    pub(crate) fn delete(&self, key: &str) {
        self.etcd.delete(&format!("{OBJECTS}{key}")).unwrap();
    }

    /// Reads all objects that are JSON.
    pub(crate) fn all(&self) -> BTreeMap<String, Value> {
        let raw = self.etcd.dump_raw().unwrap().into_iter();
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
        let raw = self.etcd.dump_raw().unwrap().into_keys();
        raw.filter_map(|key| {
            key.strip_prefix(OBJECTS)?
                .strip_prefix(prefix)
                .map(str::to_owned)
        })
        .collect()
    }

    // === Kubernetes objects ===

    pub(crate) fn apply(&self, object: Value) {
        self.admin.apply_object(&object).unwrap();
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
        self.admin.delete(&path).unwrap().success().unwrap();
    }

    // === controllers ===

    /// Starts the controllers that run in this mode.
    pub(crate) fn start(&self, change: impl FnOnce(&mut Settings)) -> Running {
        self.start_with(self.kubernetes.clone(), change)
    }

    pub(crate) fn proxy(&self) -> Proxy {
        self.api.proxy().unwrap()
    }

    /// Starts the controllers as a service account of `kube-system` with the roles of `manifest`,
    /// once the authorizer applies them.
    pub(crate) fn start_as(
        &self,
        manifest: &Path,
        account: &str,
        proxy: &Proxy,
        change: impl FnOnce(&mut Settings),
    ) -> Running {
        let user = self
            .api
            .account_of("kube-system", account, &[manifest.to_owned()])
            .unwrap();
        let kubeconfig = self
            .api
            .kubeconfig_to(&proxy.endpoint(), account, &user.identity)
            .unwrap();
        self.start_with(
            KubernetesConfig {
                kubeconfig: vec![kubeconfig],
                ..self.kubernetes.clone()
            },
            change,
        )
    }

    fn start_with(
        &self,
        kubernetes: KubernetesConfig,
        change: impl FnOnce(&mut Settings),
    ) -> Running {
        let mut settings = merge(
            &Environment::read(Variables::NONE).unwrap(),
            &default_configuration(),
            self.mode,
        )
        .settings;
        settings.orphan_endpoint_grace_period = GRACE;
        change(&mut settings);
        let (sender, settings) = watch::channel(Arc::new(settings));
        let stop = CancellationToken::new();
        let (mode, token) = (self.mode, stop.clone());
        let thread = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .worker_threads(2)
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async {
                let calico = match mode {
                    Mode::Etcd => DatastoreConfig::Etcd(Box::new(EtcdConfig {
                        endpoints: vec![ENDPOINT.to_owned()],
                        credentials: None,
                        tls: None,
                        deadline: DEFAULT_DEADLINE,
                    })),
                    Mode::Kubernetes(_) => {
                        DatastoreConfig::Kubernetes(Box::new(kubernetes.clone()))
                    }
                };
                let calico = Arc::new(Datastore::open(&calico).unwrap());
                let (leadership, lock) = datastore_lock::guard(
                    Leadership::always(),
                    calico.clone(),
                    || (),
                    token.clone(),
                );
                let context = Context {
                    kubernetes: datastore::kubernetes::client(&kubernetes).await.unwrap(),
                    calico,
                    mode,
                    settings,
                    leadership,
                    metrics: Metrics::new(),
                    same_cluster: Default::default(),
                    watchdog: Watchdog::default(),
                    stop: token,
                };
                tokio::join!(work(context), lock);
            });
        });
        Running {
            stop,
            thread: Some(thread),
            _settings: sender,
        }
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

async fn work(context: Context) {
    let mut watches = Watches::default();
    let mut controllers = vec![made::<PolicyNames>(&context, &mut watches)];
    match context.mode {
        Mode::Etcd => controllers.extend([
            made::<PolicyController>(&context, &mut watches),
            made::<NamespaceController>(&context, &mut watches),
            made::<ServiceAccountController>(&context, &mut watches),
            made::<WorkloadEndpoints>(&context, &mut watches),
        ]),
        // The datastore derives these objects itself, so no controller mirrors them.
        Mode::Kubernetes(_) => {}
    }
    let running = watches.start(&context);
    join_all(controllers).await;
    running.stopped().await;
}

fn made<C: Controller>(context: &Context, watches: &mut Watches) -> BoxFuture<'static, ()> {
    C::new(context, watches).run(context.clone()).boxed()
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.cancel();
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(thread::panicking() || ended.is_none_or(|ended| ended.is_ok()));
    }
}

#[track_caller]
pub(crate) fn becomes<T: PartialEq + Debug>(expected: T, found: impl Fn() -> T) {
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
pub(crate) fn stays<T: PartialEq + Debug>(expected: T, found: impl Fn() -> T) {
    let end = Instant::now() + CALM;
    while Instant::now() < end {
        assert_eq!(found(), expected);
        thread::sleep(Duration::from_millis(100));
    }
}

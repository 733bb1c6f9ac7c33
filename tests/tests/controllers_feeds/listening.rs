//! Watches in a separate thread, and the objects that they report.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use datastore::config::{DEFAULT_DEADLINE, EtcdConfig};
use datastore::{Datastore, DatastoreConfig, KubernetesConfig};
use kube_controllers::context::Context;
use kube_controllers::leader::Leadership;
use kube_controllers::settings::{Environment, Mode, default_configuration, merge};
use kube_controllers::status::Watchdog;
use kube_controllers::telemetry::Metrics;
use kube_controllers::watched::Watched;
use kube_controllers::watches::{Cache, Event, Subscribers, WatchHealth, Watches};
use libcalico::kubernetes::ApiGroup;
use libcalico::variables::Variables;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Timeout until changes are reported.
const PATIENCE: Duration = Duration::from_secs(90);

/// The location of Calico's objects.
pub(crate) enum Calico {
    Etcd(String),
    Kubernetes(ApiGroup),
}

/// Running watches. They stop on drop.
pub(crate) struct Listening {
    stop: CancellationToken,
    health: Vec<WatchHealth>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Clone, Default)]
pub(crate) struct Heard {
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    synced: bool,
    known: BTreeMap<String, String>,
    lost: BTreeSet<String>,
    events: usize,
}

impl Heard {
    /// Subscribes to a watch; `show` returns the part of an object to compare.
    pub(crate) fn to<T: Watched>(
        feed: &mut Subscribers<T>,
        show: impl Fn(&T) -> String + Send + 'static,
    ) -> Heard {
        let heard = Heard::default();
        let mut cache = Cache::<T::Key, String>::default();
        let state = heard.state.clone();
        feed.subscribe(move |event: &Event<'_, T>| {
            let changed = cache.apply(event, |object| Some(show(object)));
            let mut state = state.lock().unwrap();
            state.events += 1;
            state.synced = cache.is_synced();
            for key in changed {
                match cache.get(&key) {
                    Some(value) => _ = state.known.insert(key.to_string(), value.clone()),
                    None => {
                        state.known.remove(&key.to_string());
                        state.lost.insert(key.to_string());
                    }
                }
            }
        });
        heard
    }

    /// Waits until the watch is synced and the reported objects are exactly `expected`.
    pub(crate) fn becomes(&self, expected: &BTreeMap<String, String>) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            {
                let state = self.state.lock().unwrap();
                if state.synced && state.known == *expected {
                    return;
                }
                assert!(
                    Instant::now() < deadline,
                    "{:?}\nis not\n{expected:?}",
                    state.known
                );
            }
            thread::sleep(Duration::from_millis(10));
        }
    }

    pub(crate) fn lost(&self) -> BTreeSet<String> {
        std::mem::take(&mut self.state.lock().unwrap().lost)
    }

    pub(crate) fn events(&self) -> usize {
        self.state.lock().unwrap().events
    }
}

impl Listening {
    pub(crate) fn start(
        calico: Calico,
        kubeconfig: Option<PathBuf>,
        subscribe: impl FnOnce(&mut Watches),
    ) -> Listening {
        let mut watches = Watches::default();
        subscribe(&mut watches);
        let stop = CancellationToken::new();
        let (token, (sender, health)) = (stop.clone(), std::sync::mpsc::channel());
        let thread = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async {
                let context = context(calico, kubeconfig, token).await;
                let running = watches.start(&context);
                sender.send(running.health().to_vec()).unwrap();
                running.stopped().await;
            });
        });
        Listening {
            stop,
            health: health.recv().unwrap(),
            thread: Some(thread),
        }
    }

    pub(crate) fn health(&self, kind: &str) -> &WatchHealth {
        self.health.iter().find(|feed| feed.kind == kind).unwrap()
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.stop.cancel();
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(thread::panicking() || ended.is_none_or(|ended| ended.is_ok()));
    }
}

async fn context(calico: Calico, kubeconfig: Option<PathBuf>, stop: CancellationToken) -> Context {
    let deadline = DEFAULT_DEADLINE;
    let (overrides, kubeconfig) = match kubeconfig {
        Some(file) => (Default::default(), vec![file]),
        // No server listens there, and no request is sent.
        None => {
            let server = Some("http://127.0.0.1:1".to_owned());
            (
                datastore::config::Overrides {
                    server,
                    ..Default::default()
                },
                Vec::new(),
            )
        }
    };
    let kubernetes = KubernetesConfig {
        kubeconfig,
        overrides,
        deadline,
        ..KubernetesConfig::default()
    };
    let (mode, config) = match calico {
        Calico::Etcd(endpoint) => {
            let config = EtcdConfig {
                endpoints: vec![endpoint],
                credentials: None,
                tls: None,
                deadline,
            };
            (Mode::Etcd, DatastoreConfig::Etcd(Box::new(config)))
        }
        Calico::Kubernetes(group) => {
            let config = KubernetesConfig {
                group: Some(group),
                ..kubernetes.clone()
            };
            (
                Mode::Kubernetes(group),
                DatastoreConfig::Kubernetes(Box::new(config)),
            )
        }
    };
    let settings = merge(
        &Environment::read(Variables::NONE).unwrap(),
        &default_configuration(),
        mode,
    )
    .settings;
    Context {
        kubernetes: datastore::kubernetes::client(&kubernetes).await.unwrap(),
        calico: Arc::new(Datastore::open(&config).unwrap()),
        mode,
        settings: watch::channel(Arc::new(settings)).1,
        leadership: Leadership::always(),
        metrics: Metrics::new(),
        same_cluster: Default::default(),
        watchdog: Watchdog::default(),
        stop,
    }
}

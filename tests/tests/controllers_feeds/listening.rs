//! Feeds at work in a thread of their own, and what their listeners hear.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use datastore::config::EtcdConfig;
use datastore::{Datastore, DatastoreConfig, KubernetesConfig};
use kube_controllers::context::{Context, Mode};
use kube_controllers::feed::{Cache, Event, Feed, FeedHealth, Feeds};
use kube_controllers::runtime::Leadership;
use kube_controllers::settings::{Environment, default_configuration, merge};
use kube_controllers::telemetry::Metrics;
use kube_controllers::watched::Watched;
use libcalico::kubernetes::ApiGroup;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// How long changes may take to be heard.
const PATIENCE: Duration = Duration::from_secs(90);

/// Where Calico's objects are.
pub(crate) enum Calico {
    /// Endpoint.
    Etcd(String),
    Kubernetes(ApiGroup),
}

/// Running feeds. They end when this is dropped.
pub(crate) struct Listening {
    stop: CancellationToken,
    health: Vec<FeedHealth>,
    thread: Option<JoinHandle<()>>,
}

/// What one listener knows, as text.
#[derive(Clone, Default)]
pub(crate) struct Heard {
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    synced: bool,
    known: BTreeMap<String, String>,
    /// All that was ever taken out.
    lost: BTreeSet<String>,
    events: usize,
}

impl Heard {
    /// Listens to a feed; `show` says what of an object is compared.
    pub(crate) fn to<T: Watched>(feed: &mut Feed<T>, show: impl Fn(&T) -> String + Send + 'static) -> Heard {
        let heard = Heard::default();
        let mut cache = Cache::<T::Key, String>::default();
        let state = heard.state.clone();
        feed.subscribe(move |event: &Event<'_, T>| {
            let changed = cache.follow(event, |object| Some(show(object)));
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

    /// Waits until exactly this is known.
    pub(crate) fn becomes(&self, expected: &BTreeMap<String, String>) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            {
                let state = self.state.lock().unwrap();
                if state.synced && state.known == *expected {
                    return;
                }
                assert!(Instant::now() < deadline, "{:?}\nis not\n{expected:?}", state.known);
            }
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// What was taken out since the last call.
    pub(crate) fn lost(&self) -> BTreeSet<String> {
        std::mem::take(&mut self.state.lock().unwrap().lost)
    }

    /// Events so far.
    pub(crate) fn events(&self) -> usize {
        self.state.lock().unwrap().events
    }
}

impl Listening {
    /// Starts what `subscribe` listens to.
    pub(crate) fn start(calico: Calico, kubeconfig: Option<PathBuf>, subscribe: impl FnOnce(&mut Feeds)) -> Listening {
        let mut feeds = Feeds::default();
        subscribe(&mut feeds);
        let stop = CancellationToken::new();
        let (token, (sender, health)) = (stop.clone(), std::sync::mpsc::channel());
        let thread = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let context = context(calico, kubeconfig, token).await;
                let running = feeds.start(&context);
                sender.send(running.health().to_vec()).unwrap();
                running.stopped().await;
            });
        });
        Listening { stop, health: health.recv().unwrap(), thread: Some(thread) }
    }

    /// How the feed of a kind is doing.
    pub(crate) fn health(&self, kind: &str) -> &FeedHealth {
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
    let deadline = Duration::from_secs(5);
    let (overrides, kubeconfig) = match kubeconfig {
        Some(file) => (Default::default(), vec![file]),
        // Nobody is there, and nobody asks.
        None => {
            let server = Some("http://127.0.0.1:1".to_owned());
            (datastore::kubernetes::config::Overrides { server, ..Default::default() }, Vec::new())
        }
    };
    let kubernetes = KubernetesConfig { kubeconfig, overrides, deadline, ..KubernetesConfig::default() };
    let (mode, config) = match calico {
        Calico::Etcd(endpoint) => {
            let config = EtcdConfig { endpoints: vec![endpoint], credentials: None, tls: None, deadline };
            (Mode::Etcd, DatastoreConfig::Etcd(config))
        }
        Calico::Kubernetes(group) => {
            let config = KubernetesConfig { group: Some(group), ..kubernetes.clone() };
            (Mode::Kubernetes(group), DatastoreConfig::Kubernetes(Box::new(config)))
        }
    };
    let settings = merge(&Environment::read(|_| None).unwrap(), &default_configuration(), mode).settings;
    Context {
        kubernetes: datastore::kubernetes::client(&kubernetes).await.unwrap(),
        calico: Arc::new(Datastore::open(&config).unwrap()),
        mode,
        settings: watch::channel(Arc::new(settings)).1,
        leadership: Leadership::always(),
        metrics: Metrics::new(),
        stop,
    }
}

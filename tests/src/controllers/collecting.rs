//! Garbage collection at work in a thread of its own, whose clock a test puts forward.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use datastore::config::EtcdConfig;
use datastore::{Datastore, DatastoreConfig, KubernetesConfig};
use kube_controllers::context::{Context, Controller, Mode};
use kube_controllers::feed::Feeds;
use kube_controllers::gc::{Clock, GarbageCollection};
use kube_controllers::logging::captured::Captured;
use kube_controllers::readiness;
use kube_controllers::runtime::{Leadership, Tenure};
use kube_controllers::settings::{Environment, LogSeverity, Settings, default_configuration, merge};
use kube_controllers::telemetry::Metrics;
use libcalico::kubernetes::ApiGroup;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::etcd::ENDPOINT as ETCD;

/// The grace period of the tests.
pub const GRACE: Duration = Duration::from_secs(3);
/// How long something that must come may take on a slow machine.
pub const SOON: Duration = Duration::from_secs(60);
/// How long a test watches that nothing happens.
pub const QUIET: Duration = Duration::from_secs(5);

/// Garbage collection at work. It ends when this is dropped.
#[allow(missing_debug_implementations, reason = "a part has none")]
pub struct Collecting {
    stop: CancellationToken,
    /// What it is told.
    pub settings: watch::Sender<Arc<Settings>>,
    /// Whether it leads.
    pub tenure: watch::Sender<Tenure>,
    metrics: Metrics,
    log: Captured,
    clock: Clock,
    thread: Option<JoinHandle<()>>,
}

impl Collecting {
    /// Starts to collect with the rights of a kubeconfig.
    ///
    /// # Panics
    /// When its thread cannot start.
    pub fn start(group: Option<ApiGroup>, kubeconfig: PathBuf, settings: Settings) -> Collecting {
        let stop = CancellationToken::new();
        let (settings, received) = watch::channel(Arc::new(settings));
        let (tenure, leads) = watch::channel(Tenure::Always);
        let metrics = Metrics::new();
        let (token, shown) = (stop.clone(), metrics.clone());
        let (sender, receiver) = std::sync::mpsc::channel();
        let thread = thread::spawn(move || {
            let (log, _logging) = Captured::on_this_thread(LogSeverity::Debug);
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let calico = Arc::new(Datastore::open(&calico(group, &kubeconfig)).unwrap());
                let (leadership, lock) = readiness::guard(Leadership::new(leads), calico.clone(), || (), token.clone());
                let context = Context {
                    kubernetes: datastore::kubernetes::client(&kubernetes(&kubeconfig, None)).await.unwrap(),
                    calico,
                    mode: mode(group),
                    settings: received,
                    leadership,
                    metrics: shown,
                    stop: token,
                };
                let mut feeds = Feeds::default();
                let collection = GarbageCollection::new(&context, &mut feeds);
                sender.send((collection.clock(), log)).unwrap();
                let running = feeds.start(&context);
                tokio::join!(collection.run(context), lock);
                running.stopped().await;
            });
        });
        let (clock, log) = receiver.recv().unwrap();
        Collecting { stop, settings, tenure, metrics, log, clock, thread: Some(thread) }
    }

    /// Puts the clock of grace periods forward until something is so.
    ///
    /// # Panics
    /// When it does not become so.
    #[track_caller]
    pub fn as_time_goes_by(&self, step: Duration, what: &str, mut is_so: impl FnMut() -> bool) {
        within(SOON, what, || {
            self.clock.put_forward(step);
            thread::sleep(Duration::from_millis(200));
            is_so()
        });
    }

    /// Returns the lines that were logged so far.
    pub fn log(&self) -> String {
        self.log.text()
    }

    /// What a scrape shows.
    ///
    /// # Panics
    /// When there are none.
    pub fn metrics(&self) -> String {
        self.metrics.text().unwrap()
    }

    /// Puts the clock of grace periods forward, and waits until the next pass is over, which may have begun before.
    ///
    /// # Panics
    /// When no pass ends.
    #[track_caller]
    pub fn pass_after(&self, step: Duration) {
        let before = self.passes();
        self.clock.put_forward(step);
        within(SOON, "a pass", || self.passes() > before);
    }

    /// Returns how often everything was looked at.
    ///
    /// # Panics
    /// When there are no metrics.
    pub fn full_passes(&self) -> u64 {
        self.passes_of("{scope=\"full\"}")
    }

    fn passes(&self) -> u64 {
        self.passes_of("")
    }

    /// Returns how many passes there were whose labels begin with `labels`.
    fn passes_of(&self, labels: &str) -> u64 {
        let count = format!("kube_controllers_gc_pass_duration_seconds_count{labels}");
        let text = self.metrics();
        let counts = text.lines().filter(|line| line.starts_with(&count));
        counts.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum()
    }

    /// Waits until a line is shown.
    ///
    /// # Panics
    /// When it is not shown.
    #[track_caller]
    pub fn shows(&self, line: &str) {
        within(SOON, line, || self.metrics().lines().any(|shown| shown == line));
    }

    /// Waits until the first pass is over.
    ///
    /// # Panics
    /// When it does not look.
    #[track_caller]
    pub fn has_looked(&self) {
        within(SOON, "a first pass", || {
            self.metrics().contains("kube_controllers_gc_pass_duration_seconds_count{scope=\"full\"} ")
        });
    }
}

impl Drop for Collecting {
    fn drop(&mut self) {
        self.stop.cancel();
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(thread::panicking() || ended.is_none_or(|ended| ended.is_ok()));
    }
}

/// The settings of the tests.
///
/// # Panics
/// When the defaults are none.
pub fn settings(group: Option<ApiGroup>) -> Settings {
    let settings = merge(&Environment::read(|_| None).unwrap(), &default_configuration(), mode(group)).settings;
    Settings { leak_grace_period: Some(GRACE), ..settings }
}

fn mode(group: Option<ApiGroup>) -> Mode {
    group.map_or(Mode::Etcd, Mode::Kubernetes)
}

/// Waits for something.
///
/// # Panics
/// When it does not become so.
#[track_caller]
pub fn within(limit: Duration, what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + limit;
    while !is_so() {
        assert!(Instant::now() < deadline, "not within {limit:?}: {what}");
        thread::sleep(Duration::from_millis(50));
    }
}

fn kubernetes(kubeconfig: &Path, group: Option<ApiGroup>) -> KubernetesConfig {
    let deadline = Duration::from_secs(10);
    KubernetesConfig { kubeconfig: vec![kubeconfig.to_owned()], deadline, group, ..KubernetesConfig::default() }
}

/// How Calico's objects are reached: in etcd, or as those of a group with the rights of a kubeconfig.
pub fn calico(group: Option<ApiGroup>, kubeconfig: &Path) -> DatastoreConfig {
    match group {
        None => DatastoreConfig::Etcd(EtcdConfig {
            endpoints: vec![ETCD.into()],
            credentials: None,
            tls: None,
            deadline: Duration::from_secs(10),
        }),
        Some(_) => DatastoreConfig::Kubernetes(Box::new(kubernetes(kubeconfig, group))),
    }
}

//! Garbage collection in a separate thread, with a clock that a test can advance.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use datastore::config::EtcdConfig;
use datastore::{Datastore, DatastoreConfig, KubernetesConfig};
use kube_controllers::context::Context;
use kube_controllers::datastore_lock;
use kube_controllers::gc::{Clock, GarbageCollection};
use kube_controllers::leader::{Leadership, LeadershipTerm};
use kube_controllers::logging::captured::Captured;
use kube_controllers::runtime::Controller;
use kube_controllers::settings::{
    Environment, LogSeverity, Mode, Settings, default_configuration, merge,
};
use kube_controllers::status::Watchdog;
use kube_controllers::telemetry::Metrics;
use kube_controllers::watches::Watches;
use libcalico::kubernetes::ApiGroup;
use libcalico::variables::Variables;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::etcd::ENDPOINT as ETCD;

/// The grace period of the tests.
pub const GRACE: Duration = Duration::from_secs(3);
/// Timeout of an expected effect, on a slow machine.
pub const SOON: Duration = Duration::from_secs(60);

/// A running garbage collection. It stops on drop.
#[allow(missing_debug_implementations, reason = "a part has none")]
pub struct Collecting {
    stop: CancellationToken,
    /// The settings of garbage collection, which a test may replace.
    pub settings: watch::Sender<Arc<Settings>>,
    /// The leadership of the replica, which a test may change.
    pub term: watch::Sender<LeadershipTerm>,
    metrics: Metrics,
    log: Captured,
    clock: Clock,
    thread: Option<JoinHandle<()>>,
}

impl Collecting {
    /// Starts garbage collection with the rights of a kubeconfig. `group` is `None` if Calico's
    /// objects are in etcd.
    pub fn start(group: Option<ApiGroup>, kubeconfig: PathBuf, settings: Settings) -> Collecting {
        let stop = CancellationToken::new();
        let (settings, received) = watch::channel(Arc::new(settings));
        let (term, leads) = watch::channel(LeadershipTerm::Always);
        let metrics = Metrics::new();
        let (token, shown) = (stop.clone(), metrics.clone());
        let (sender, receiver) = std::sync::mpsc::channel();
        let thread = thread::spawn(move || {
            let (log, _logging) = Captured::on_this_thread(LogSeverity::Debug);
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async {
                let calico = Arc::new(Datastore::open(&calico(group, &kubeconfig)).unwrap());
                let (leadership, lock) = datastore_lock::guard(
                    Leadership::new(leads),
                    calico.clone(),
                    || (),
                    token.clone(),
                );
                let context = Context {
                    kubernetes: datastore::kubernetes::client(&kubernetes(&kubeconfig, None))
                        .await
                        .unwrap(),
                    calico,
                    mode: mode(group),
                    settings: received,
                    leadership,
                    metrics: shown,
                    same_cluster: Default::default(),
                    watchdog: Watchdog::default(),
                    stop: token,
                };
                let mut watches = Watches::default();
                let collection = GarbageCollection::new(&context, &mut watches);
                sender.send((collection.clock(), log)).unwrap();
                let running = watches.start(&context);
                tokio::join!(collection.run(context), lock);
                running.stopped().await;
            });
        });
        let (clock, log) = receiver.recv().unwrap();
        Collecting {
            stop,
            settings,
            term,
            metrics,
            log,
            clock,
            thread: Some(thread),
        }
    }

    /// Advances the clock of grace periods in steps until a condition holds.
    #[track_caller]
    pub fn as_time_goes_by(&self, step: Duration, what: &str, mut is_so: impl FnMut() -> bool) {
        within(SOON, what, || {
            self.clock.advance(step);
            thread::sleep(Duration::from_millis(200));
            is_so()
        });
    }

    /// Returns the lines that were logged so far.
    pub fn log(&self) -> String {
        self.log.text()
    }

    /// Returns the metrics as a scrape shows them.
    pub fn metrics(&self) -> String {
        self.metrics.text().unwrap()
    }

    /// Advances the clock of grace periods and waits until a pass ends, which may have begun
    /// before.
    #[track_caller]
    pub fn pass_after(&self, step: Duration) {
        let before = self.passes();
        self.clock.advance(step);
        within(SOON, "a pass", || self.passes() > before);
    }

    /// Returns the number of full passes so far.
    pub fn full_passes(&self) -> u64 {
        self.passes_of("{scope=\"full\"}")
    }

    fn passes(&self) -> u64 {
        self.passes_of("")
    }

    fn passes_of(&self, labels: &str) -> u64 {
        let count = format!("kube_controllers_gc_pass_duration_seconds_count{labels}");
        let text = self.metrics();
        let counts = text.lines().filter(|line| line.starts_with(&count));
        counts
            .filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok())
            .sum()
    }

    /// Waits until the metrics contain a line.
    #[track_caller]
    pub fn shows(&self, line: &str) {
        within(SOON, line, || {
            self.metrics().lines().any(|shown| shown == line)
        });
    }

    /// Waits until the first full pass is over.
    #[track_caller]
    pub fn has_looked(&self) {
        within(SOON, "a first pass", || {
            self.metrics()
                .contains("kube_controllers_gc_pass_duration_seconds_count{scope=\"full\"} ")
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

/// Returns the settings of the tests.
pub fn settings(group: Option<ApiGroup>) -> Settings {
    let settings = merge(
        &Environment::read(Variables::NONE).unwrap(),
        &default_configuration(),
        mode(group),
    )
    .settings;
    Settings {
        leak_grace_period: Some(GRACE),
        ..settings
    }
}

fn mode(group: Option<ApiGroup>) -> Mode {
    group.map_or(Mode::Etcd, Mode::Kubernetes)
}

/// Waits until a condition holds.
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
    KubernetesConfig {
        kubeconfig: vec![kubeconfig.to_owned()],
        deadline,
        group,
        ..KubernetesConfig::default()
    }
}

/// Returns the configuration of Calico's datastore: etcd, or the objects of a group with the rights
/// of a kubeconfig.
pub fn calico(group: Option<ApiGroup>, kubeconfig: &Path) -> DatastoreConfig {
    match group {
        None => DatastoreConfig::Etcd(Box::new(EtcdConfig {
            endpoints: vec![ETCD.into()],
            credentials: None,
            tls: None,
            deadline: Duration::from_secs(10),
        })),
        Some(_) => DatastoreConfig::Kubernetes(Box::new(kubernetes(kubeconfig, group))),
    }
}

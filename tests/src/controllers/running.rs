//! [`RunningControllers`]: some controllers of kube-controllers in a thread of the test.

use std::fmt::Debug;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use datastore::config::{DEFAULT_DEADLINE, EtcdConfig, Overrides};
use datastore::{Datastore, DatastoreConfig, KubernetesConfig};
use futures::future::{BoxFuture, FutureExt, join_all, ready};
use kube_controllers::context::Context;
use kube_controllers::datastore_lock;
use kube_controllers::leader::{Leadership, LeadershipTerm};
use kube_controllers::logging::captured::Captured;
use kube_controllers::runtime::Controller;
use kube_controllers::settings::{
    Environment, LogSeverity, Mode, Settings, default_configuration, merge,
};
use kube_controllers::status::Watchdog;
use kube_controllers::telemetry::Metrics;
use kube_controllers::watches::{WatchHealth, Watches};
use libcalico::kubernetes::ApiGroup;
use libcalico::variables::Variables;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::await_that;
use crate::etcd::ENDPOINT;

/// Timeout of [`becomes`].
const PATIENCE: Duration = Duration::from_secs(90);

/// Time for which [`stays`] looks at a value.
pub const CALM: Duration = Duration::from_secs(2);

/// The work of controllers.
pub type Work = Vec<BoxFuture<'static, ()>>;

/// The servers of controllers, and the rights on them.
#[derive(Debug, Clone)]
pub struct Connection {
    kubernetes: KubernetesConfig,
    calico: DatastoreConfig,
    mode: Mode,
}

/// Controllers in a thread of the test, without the process around them. They stop on drop.
///
/// ```text
/// let connection = Connection::new(cluster.group, cluster.api.admin_kubeconfig());
/// let settings = default_settings(cluster.group);
/// let running = RunningControllers::start(&connection, settings, |context, watches| {
///     vec![controller::<HostEndpoints>(context, watches)]
/// });
/// running.set(|settings| settings.host_endpoints.enabled = true);
/// ```
#[allow(missing_debug_implementations, reason = "a part has none")]
pub struct RunningControllers {
    stop: CancellationToken,
    settings: watch::Sender<Arc<Settings>>,
    term: watch::Sender<LeadershipTerm>,
    metrics: Metrics,
    log: Captured,
    watches: Vec<WatchHealth>,
    thread: Option<JoinHandle<()>>,
}

impl Connection {
    /// Returns a connection to the servers of the host with the rights of a kubeconfig. `group` is
    /// `None` if Calico's objects are in etcd.
    pub fn new(group: Option<ApiGroup>, kubeconfig: PathBuf) -> Connection {
        Connection {
            kubernetes: kubernetes(kubeconfig.clone(), None, DEFAULT_DEADLINE),
            calico: calico(group, kubeconfig, DEFAULT_DEADLINE),
            mode: mode(group),
        }
    }

    /// Returns a connection to an etcd with Calico's objects. No server listens at the address of
    /// the API server.
    pub fn without_kubernetes(etcd_endpoint: String) -> Connection {
        let overrides = Overrides {
            server: Some("http://127.0.0.1:1".into()),
            ..Overrides::default()
        };
        Connection {
            kubernetes: KubernetesConfig {
                overrides,
                deadline: DEFAULT_DEADLINE,
                ..KubernetesConfig::default()
            },
            calico: etcd(etcd_endpoint, DEFAULT_DEADLINE),
            mode: Mode::Etcd,
        }
    }
}

impl RunningControllers {
    /// Starts controllers: `subscribe` subscribes them to watches and returns their work. The
    /// replica is the leader, and writes also to a locked datastore.
    pub fn start(
        connection: &Connection,
        settings: Settings,
        subscribe: impl FnOnce(&Context, &mut Watches) -> Work + Send + 'static,
    ) -> RunningControllers {
        Self::launch(connection, settings, false, subscribe)
    }

    /// Starts controllers as [`RunningControllers::start`] does. They create the objects that an
    /// empty datastore lacks, and do not write to a locked datastore.
    pub fn start_with_lock(
        connection: &Connection,
        settings: Settings,
        subscribe: impl FnOnce(&Context, &mut Watches) -> Work + Send + 'static,
    ) -> RunningControllers {
        Self::launch(connection, settings, true, subscribe)
    }

    fn launch(
        connection: &Connection,
        settings: Settings,
        observes_lock: bool,
        subscribe: impl FnOnce(&Context, &mut Watches) -> Work + Send + 'static,
    ) -> RunningControllers {
        let stop = CancellationToken::new();
        let (settings, received) = watch::channel(Arc::new(settings));
        let (term, elected) = watch::channel(LeadershipTerm::Always);
        let metrics = Metrics::new();
        let (connection, token, shared) = (connection.clone(), stop.clone(), metrics.clone());
        let (sender, receiver) = std::sync::mpsc::channel();
        let thread = thread::spawn(move || {
            let (log, _logging) = Captured::on_this_thread(LogSeverity::Debug);
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async {
                let calico = Arc::new(Datastore::open(&connection.calico).unwrap());
                let mut leadership = Leadership::new(elected);
                let mut lock = ready(()).boxed_local();
                if observes_lock {
                    let (guarded, follow) =
                        datastore_lock::guard(leadership, calico.clone(), || (), token.clone());
                    (leadership, lock) = (guarded, follow.boxed_local());
                }
                let kubernetes = datastore::kubernetes::client(&connection.kubernetes);
                let context = Context {
                    kubernetes: kubernetes.await.unwrap(),
                    calico,
                    mode: connection.mode,
                    settings: received,
                    leadership,
                    metrics: shared,
                    same_cluster: Default::default(),
                    watchdog: Watchdog::default(),
                    stop: token,
                };
                let mut watches = Watches::default();
                let work = subscribe(&context, &mut watches);
                let running = watches.start(&context);
                sender.send((log, running.health().to_vec())).unwrap();
                tokio::join!(join_all(work), lock);
                running.stopped().await;
            });
        });
        let (log, watches) = receiver.recv().unwrap();
        RunningControllers {
            stop,
            settings,
            term,
            metrics,
            log,
            watches,
            thread: Some(thread),
        }
    }

    /// Changes the settings.
    pub fn set(&self, change: impl FnOnce(&mut Settings)) {
        self.settings
            .send_modify(|settings| change(Arc::make_mut(settings)));
    }

    /// Makes the replica the leader, or another one.
    pub fn set_term(&self, term: LeadershipTerm) {
        self.term.send_replace(term);
    }

    /// Returns the lines that were logged so far.
    pub fn log(&self) -> String {
        self.log.text()
    }

    /// Returns the metrics as a scrape shows them.
    pub fn metrics(&self) -> String {
        self.metrics.text().unwrap()
    }

    /// Returns true if the metrics contain this line.
    pub fn has_metric(&self, line: &str) -> bool {
        self.metrics().lines().any(|shown| shown == line)
    }

    /// Returns the health of the watch of a kind with subscribers.
    pub fn watch(&self, kind: &str) -> &WatchHealth {
        self.watches.iter().find(|one| one.kind == kind).unwrap()
    }
}

impl Drop for RunningControllers {
    fn drop(&mut self) {
        self.stop.cancel();
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(thread::panicking() || ended.is_none_or(|ended| ended.is_ok()));
    }
}

/// Subscribes a controller to watches, and returns its work.
pub fn controller<C: Controller>(
    context: &Context,
    watches: &mut Watches,
) -> BoxFuture<'static, ()> {
    C::new(context, watches).run(context.clone()).boxed()
}

/// Returns the settings of an installation without any setting.
pub fn default_settings(group: Option<ApiGroup>) -> Settings {
    let environment = Environment::read(Variables::NONE).unwrap();
    merge(&environment, &default_configuration(), mode(group)).settings
}

/// Returns the mode of kube-controllers with Calico's objects in a group, or in etcd.
pub fn mode(group: Option<ApiGroup>) -> Mode {
    group.map_or(Mode::Etcd, Mode::Kubernetes)
}

/// Waits until a value is `expected`.
#[track_caller]
pub fn becomes<T: PartialEq + Debug>(expected: T, found: impl Fn() -> T) {
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

/// Asserts that a value is `expected` for the time [`CALM`].
#[track_caller]
pub fn stays<T: PartialEq + Debug>(expected: T, found: impl Fn() -> T) {
    let end = Instant::now() + CALM;
    while Instant::now() < end {
        assert_eq!(found(), expected);
        thread::sleep(Duration::from_millis(100));
    }
}

/// Waits until a condition holds.
#[track_caller]
pub fn within(limit: Duration, what: &str, mut is_so: impl FnMut() -> bool) {
    let waited = await_that(limit, || Ok(is_so()));
    assert!(waited.is_ok(), "not within {limit:?}: {what}");
}

/// Returns the configuration of Calico's datastore: the etcd of the host, or the objects of a group
/// with the rights of a kubeconfig.
pub(super) fn calico(
    group: Option<ApiGroup>,
    kubeconfig: PathBuf,
    deadline: Duration,
) -> DatastoreConfig {
    match group {
        None => etcd(ENDPOINT.into(), deadline),
        Some(_) => DatastoreConfig::Kubernetes(Box::new(kubernetes(kubeconfig, group, deadline))),
    }
}

fn etcd(endpoint: String, deadline: Duration) -> DatastoreConfig {
    DatastoreConfig::Etcd(Box::new(EtcdConfig {
        endpoints: vec![endpoint],
        credentials: None,
        tls: None,
        deadline,
    }))
}

fn kubernetes(
    kubeconfig: PathBuf,
    group: Option<ApiGroup>,
    deadline: Duration,
) -> KubernetesConfig {
    KubernetesConfig {
        kubeconfig: vec![kubeconfig],
        deadline,
        group,
        ..KubernetesConfig::default()
    }
}

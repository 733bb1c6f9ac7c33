//! The metrics at `/metrics`.
//!
//! Common names are kept: `workqueue_*`, `rest_client_*` and `leader_election_master_status` are
//! client-go's, `controller_runtime_*` is controller-runtime's, and `process_*` is every
//! exporter's. Our own names begin with `kube_controllers_`. The help text of a metric must not
//! contain the name of another metric, because upstream's tests search the whole text for names
//! (KC-153).

mod api_requests;
mod labeled;
mod migration;
mod process;
mod reconciles;
mod unfinished;

pub use labeled::{WatchMetrics, WorkerMetrics};
pub use migration::{CopiedObjects, MigrationFamilies};
pub use reconciles::{ReconcileMetrics, ReconcileResult};

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use datastore::RequestObserver;
use node_process::metrics;
use prometheus::core::Collector;
use prometheus::proto::MetricFamily;
use prometheus::{Histogram, IntGaugeVec, Registry, TextEncoder};
use tokio::time::Instant;

use api_requests::ApiRequestMetrics;
use labeled::{WatchFamilies, WorkerFamilies};
use migration::MigrationDuration;
use process::ProcessMetrics;
use reconciles::ReconcileFamilies;
use unfinished::UnfinishedWork;

use crate::in_progress::InProgress;

/// The metrics of the process. Cheap to clone; all clones share them.
#[derive(Clone)]
pub struct Metrics {
    shared: Arc<Shared>,
}

struct Shared {
    /// Metrics that exist for the life of the process.
    registry: Registry,
    /// Metrics that controllers have registered.
    controller_registry: Mutex<Registry>,
    workers: WorkerFamilies,
    unfinished: UnfinishedWork,
    reconciles: ReconcileFamilies,
    watches: WatchFamilies,
    requests: ApiRequestMetrics,
    replica: ReplicaMetrics,
    migration_duration: MigrationDuration,
    migration: OnceLock<MigrationFamilies>,
}

metrics! {
    struct ReplicaMetrics {
        /// 1 if this replica is the leader, else 0.
        leader_status: IntGaugeVec = "leader_election_master_status"["name"],
        /// 1 if an enabled controller lacks its role, else 0.
        missing_rights: IntGaugeVec = "kube_controllers_missing_rights"["role"],
        /// 1, with the version of the program.
        build: IntGaugeVec = "kube_controllers_build_info"["version"],
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Metrics {
    /// Creates the metrics that exist from the start.
    pub fn new() -> Self {
        let registry = Registry::new();
        register(&registry, ProcessMetrics::new());
        let shared = Shared {
            workers: register(&registry, WorkerFamilies::new()),
            unfinished: register(&registry, UnfinishedWork::new()),
            reconciles: register(&registry, ReconcileFamilies::new()),
            watches: register(&registry, WatchFamilies::new()),
            requests: register(&registry, ApiRequestMetrics::new()),
            replica: register(&registry, ReplicaMetrics::new()),
            migration_duration: register(&registry, MigrationDuration::new()),
            migration: OnceLock::new(),
            registry,
            controller_registry: Mutex::default(),
        };
        let build = &shared.replica.build;
        build.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1);
        Metrics {
            shared: Arc::new(shared),
        }
    }

    /// Adds a controller's own metrics, until [`Metrics::remove_controllers`]. Fails if a
    /// controller has already added a metric with the same name.
    pub fn register(&self, collector: impl Collector + 'static) -> Result<(), prometheus::Error> {
        self.controller_registry().register(Box::new(collector))
    }

    /// Removes everything that [`Metrics::register`] added, and the state behind it.
    pub fn remove_controllers(&self) {
        *self.controller_registry() = Registry::new();
    }

    /// Returns the metrics of one controller's work.
    pub fn worker(&self, controller: &str) -> WorkerMetrics {
        self.shared.workers.with_label(controller)
    }

    /// Returns the keys that the workers of one controller are processing, also if the controller
    /// has started again. The value of a key is the time at which a worker took it.
    pub fn in_progress(&self, controller: &str) -> InProgress<Instant> {
        self.shared.unfinished.of(controller)
    }

    /// Returns the metrics of one controller's reconciles.
    pub fn reconciles(&self, controller: &str) -> ReconcileMetrics {
        ReconcileMetrics::new(&self.shared.reconciles, controller)
    }

    /// Returns the metrics of a migration to `projectcalico.org/v3`. They exist from the first call
    /// on.
    pub fn migration(&self) -> MigrationFamilies {
        let Shared {
            registry,
            migration,
            ..
        } = &*self.shared;
        migration
            .get_or_init(|| register(registry, MigrationFamilies::new()))
            .clone()
    }

    /// Returns the metric of the times that migrations took.
    pub fn migration_duration(&self) -> Histogram {
        self.shared.migration_duration.seconds.clone()
    }

    /// Returns the receiver of the outcome of each request to an API server.
    pub fn request_observer(&self) -> Arc<dyn RequestObserver> {
        Arc::new(self.shared.requests.clone())
    }

    /// Returns the metrics of the watch of one kind.
    pub fn watch(&self, kind: &str) -> WatchMetrics {
        self.shared.watches.with_label(kind)
    }

    /// Sets the metric that shows if this replica is the leader by the Lease of that name.
    pub fn set_leader(&self, lease: &str, is_leader: bool) {
        self.shared
            .replica
            .leader_status
            .with_label_values(&[lease])
            .set(i64::from(is_leader));
    }

    /// Sets the metric that shows if an enabled controller lacks its role. `role` is the part of
    /// the role's name after `calico-kube-controllers-`. Returns true if the metric showed a
    /// missing role before.
    pub fn set_missing_rights(&self, role: &str, is_missing: bool) -> bool {
        let gauge = self
            .shared
            .replica
            .missing_rights
            .with_label_values(&[role]);
        let was_missing = gauge.get() != 0;
        gauge.set(i64::from(is_missing));
        was_missing
    }

    /// Returns all metrics in the text format of Prometheus.
    pub fn text(&self) -> Result<String, prometheus::Error> {
        TextEncoder::new().encode_to_string(&self.gather())
    }

    fn gather(&self) -> Vec<MetricFamily> {
        let mut families = self.shared.registry.gather();
        // Clones the registry to release the lock: a collector may take a while, and a controller
        // may register metrics then.
        let controller_registry = self.controller_registry().clone();
        families.extend(controller_registry.gather());
        families.sort_by(|one, other| one.name().cmp(other.name()));
        families
    }

    fn controller_registry(&self) -> MutexGuard<'_, Registry> {
        self.shared
            .controller_registry
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// Registers metrics. The names of all metrics are constant and different, so the registration
/// cannot fail.
fn register<C: Collector + Clone + 'static>(registry: &Registry, metrics: C) -> C {
    registry
        .register(Box::new(metrics.clone()))
        .expect("registered once, in a new registry");
    metrics
}

#[cfg(test)]
mod dashboard_tests;
#[cfg(test)]
mod tests;

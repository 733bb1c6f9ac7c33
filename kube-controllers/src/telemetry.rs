//! The metrics at `/metrics`.
//!
//! Common names are kept: `workqueue_*`, `rest_client_*` and `leader_election_master_status` are
//! client-go's, `controller_runtime_*` is controller-runtime's, and `process_*` is every
//! exporter's. Our own names begin with `kube_controllers_`. The help text of a metric must not
//! contain the name of another metric, because upstream's tests search the whole text for names
//! (KC-153).

mod api_requests;
mod in_progress;
mod labeled;
mod migration;
mod reconciles;

pub use in_progress::{InProgress, UnitInProgress};
pub use labeled::{WatchMetrics, WorkerMetrics};
pub(crate) use migration::{CopiedObjects, MigrationFamilies};
pub use reconciles::{ReconcileMetrics, ReconcileResult};

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use datastore::RequestObserver;
use procfs::process::{LimitValue, Process, Stat};
use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{Counter, Gauge, Histogram, IntGaugeVec, Opts, Registry, TextEncoder};

use api_requests::ApiRequestMetrics;
use labeled::{WatchMetricVecs, WorkerMetricVecs, register};
use reconciles::ReconcileMetricVecs;

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
    workers: WorkerMetricVecs,
    reconciles: ReconcileMetricVecs,
    watches: WatchMetricVecs,
    requests: ApiRequestMetrics,
    leader_status: IntGaugeVec,
    missing_rights: IntGaugeVec,
    migration_duration: Histogram,
    migration: OnceLock<MigrationFamilies>,
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
        let leader_status = Opts::new(
            "leader_election_master_status",
            "1 if this replica is the leader, else 0.",
        );
        let missing_rights = Opts::new(
            "kube_controllers_missing_rights",
            "1 if an enabled controller lacks its role, else 0.",
        );
        let build = Opts::new(
            "kube_controllers_build_info",
            "1, with the version of the program.",
        );
        let build = register(&registry, IntGaugeVec::new(build, &["version"]));
        build.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1);
        register(&registry, ProcessMetrics::new());
        let shared = Shared {
            workers: WorkerMetricVecs::new(&registry),
            reconciles: ReconcileMetricVecs::new(&registry),
            watches: WatchMetricVecs::new(&registry),
            requests: ApiRequestMetrics::new(&registry),
            leader_status: register(&registry, IntGaugeVec::new(leader_status, &["name"])),
            missing_rights: register(&registry, IntGaugeVec::new(missing_rights, &["role"])),
            migration_duration: migration::register_duration(&registry),
            migration: OnceLock::new(),
            registry,
            controller_registry: Mutex::default(),
        };
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
        self.shared.workers.metrics(controller)
    }

    /// Returns the metrics of one controller's reconciles.
    pub fn reconciles(&self, controller: &str) -> ReconcileMetrics {
        self.shared.reconciles.metrics(controller)
    }

    /// Returns the metrics of a migration to `projectcalico.org/v3`. They exist from the first call
    /// on.
    pub(crate) fn migration(&self) -> MigrationFamilies {
        let Shared {
            registry,
            migration_duration,
            migration,
            ..
        } = &*self.shared;
        migration
            .get_or_init(|| MigrationFamilies::new(registry, migration_duration.clone()))
            .clone()
    }

    /// Returns the receiver of the outcome of each request to an API server.
    pub fn request_observer(&self) -> Arc<dyn RequestObserver> {
        Arc::new(self.shared.requests.clone())
    }

    /// Returns the metrics of the watch of one kind.
    pub fn watch(&self, kind: &str) -> WatchMetrics {
        self.shared.watches.metrics(kind)
    }

    /// Sets the metric that shows if this replica is the leader by the Lease of that name.
    pub fn set_leader(&self, lease: &str, is_leader: bool) {
        self.shared
            .leader_status
            .with_label_values(&[lease])
            .set(i64::from(is_leader));
    }

    /// Sets the metric that shows if an enabled controller lacks its role. `role` is the part of
    /// the role's name after `calico-kube-controllers-`. Returns true if the metric showed a
    /// missing role before.
    pub fn set_missing_rights(&self, role: &str, is_missing: bool) -> bool {
        let gauge = self.shared.missing_rights.with_label_values(&[role]);
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

/// The `process_*` metrics, with the names that every exporter uses.
#[derive(Clone)]
struct ProcessMetrics {
    processor_time: Counter,
    gauges: Vec<(Gauge, ReadValue)>,
    descriptions: Vec<Desc>,
}

/// A function that reads one value from the kernel's data; `None` if the value is unreadable.
type ReadValue = fn(&Process, &Stat) -> Option<f64>;

const GAUGES: [(&str, &str, ReadValue); 6] = [
    (
        "process_resident_memory_bytes",
        "Memory in use.",
        |_, stat| Some((stat.rss * procfs::page_size()) as f64),
    ),
    (
        "process_virtual_memory_bytes",
        "Address space in use.",
        |_, stat| Some(stat.vsize as f64),
    ),
    ("process_threads", "Threads.", |_, stat| {
        Some(stat.num_threads as f64)
    }),
    ("process_open_fds", "Open files.", |process, _| {
        process.fd_count().ok().map(|count| count as f64)
    }),
    (
        "process_max_fds",
        "Maximum number of open files.",
        |process, _| match process.limits().ok()?.max_open_files.soft_limit {
            LimitValue::Value(limit) => Some(limit as f64),
            LimitValue::Unlimited => Some(f64::INFINITY),
        },
    ),
    (
        "process_start_time_seconds",
        "Time at which the process was started, in seconds since 1970.",
        |_, stat| {
            Some(
                procfs::boot_time_secs().ok()? as f64
                    + stat.starttime as f64 / procfs::ticks_per_second() as f64,
            )
        },
    ),
];

impl ProcessMetrics {
    fn new() -> prometheus::Result<Self> {
        let processor_time = Counter::new(
            "process_cpu_seconds_total",
            "Processor time spent, user and system.",
        )?;
        let mut gauges = Vec::new();
        for (name, help, read) in GAUGES {
            gauges.push((Gauge::new(name, help)?, read));
        }
        let of_gauges = gauges.iter().flat_map(|(gauge, _)| gauge.desc());
        let descriptions = of_gauges.chain(processor_time.desc()).cloned().collect();
        Ok(ProcessMetrics {
            processor_time,
            gauges,
            descriptions,
        })
    }
}

impl Collector for ProcessMetrics {
    fn desc(&self) -> Vec<&Desc> {
        self.descriptions.iter().collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let read = Process::myself().and_then(|process| process.stat().map(|stat| (process, stat)));
        let Ok((process, stat)) = read else {
            return Vec::new();
        };
        let used = (stat.utime + stat.stime) as f64 / procfs::ticks_per_second() as f64;
        self.processor_time
            .inc_by((used - self.processor_time.get()).max(0.0));
        let mut families = self.processor_time.collect();
        for (gauge, read) in &self.gauges {
            if let Some(value) = read(&process, &stat) {
                gauge.set(value);
                families.extend(gauge.collect());
            }
        }
        families
    }
}

#[cfg(test)]
mod dashboard_tests;
#[cfg(test)]
mod tests;

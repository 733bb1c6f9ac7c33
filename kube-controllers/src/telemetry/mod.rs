//! The metrics at `/metrics`.
//!
//! Common names are kept: `workqueue_*` and `leader_election_master_status` are client-go's, and `process_*` is every
//! exporter's. Our own names begin with `kube_controllers_`. The help text of a metric must not contain the name of
//! another metric, because upstream's tests search the whole text for names (KC-153).

mod feed;
mod migration;
mod process;
mod work;

pub use feed::FeedMetrics;
pub use work::Work;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use prometheus::core::Collector;
use prometheus::proto::MetricFamily;
use prometheus::{IntGaugeVec, Opts, Registry, TextEncoder};

use crate::runtime::Watchdog;

/// The metrics of the process. Cheap to clone; all clones share them.
#[derive(Clone)]
pub struct Metrics {
    shared: Arc<Shared>,
}

struct Shared {
    /// Metrics that exist for the life of the process.
    registry: Registry,
    /// Metrics that controllers have registered.
    of_controllers: Mutex<Registry>,
    work: work::Vectors,
    feeds: feed::Vectors,
    leads: IntGaugeVec,
    watchdog: Watchdog,
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
        let leads = Opts::new("leader_election_master_status", "Whether this replica leads (1) or stands by (0).");
        let build = Opts::new("kube_controllers_build_info", "1, with the version that runs.");
        let build = registered(&registry, IntGaugeVec::new(build, &["version"]));
        build.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1);
        registered(&registry, process::ProcessMetrics::new());
        migration::migration_duration(&registry);
        let shared = Shared {
            work: work::Vectors::new(&registry),
            feeds: feed::Vectors::new(&registry),
            leads: registered(&registry, IntGaugeVec::new(leads, &["name"])),
            registry,
            of_controllers: Mutex::default(),
            watchdog: Watchdog::default(),
        };
        Metrics { shared: Arc::new(shared) }
    }

    /// Adds a controller's own metrics, until [`Metrics::forget_controllers`]. Fails if a metric has the same name.
    pub fn register(&self, collector: impl Collector + 'static) -> Result<(), prometheus::Error> {
        self.of_controllers().register(Box::new(collector))
    }

    /// Removes metrics that [`Metrics::register`] added.
    pub fn unregister(&self, collector: impl Collector + 'static) -> Result<(), prometheus::Error> {
        self.of_controllers().unregister(Box::new(collector))
    }

    /// Removes everything that [`Metrics::register`] added, and the state behind it: these controllers have ended, and
    /// new ones start.
    pub fn forget_controllers(&self) {
        *self.of_controllers() = Registry::new();
    }

    /// Returns the watchdog, which detects work that is stuck.
    pub fn watchdog(&self) -> &Watchdog {
        &self.shared.watchdog
    }

    /// Returns the metrics of one controller's work.
    pub fn work(&self, controller: &str) -> Work {
        self.shared.work.of(controller)
    }

    /// Returns the metrics of the watch of one kind.
    pub fn feed(&self, kind: &str) -> FeedMetrics {
        self.shared.feeds.of(kind)
    }

    /// Sets the metric that shows if this replica is the leader by the Lease of that name.
    pub fn show_leader(&self, lease: &str, leads: bool) {
        self.shared.leads.with_label_values(&[lease]).set(i64::from(leads));
    }

    /// Returns all metrics in the text format of Prometheus.
    pub fn text(&self) -> Result<String, prometheus::Error> {
        TextEncoder::new().encode_to_string(&self.gather())
    }

    /// Returns all metrics, sorted by name.
    fn gather(&self) -> Vec<MetricFamily> {
        let mut families = self.shared.registry.gather();
        // Clones the registry to release the lock: a collector may take a while, and others may register meanwhile.
        let of_controllers = self.of_controllers().clone();
        families.extend(of_controllers.gather());
        families.sort_by(|one, other| one.name().cmp(other.name()));
        families
    }

    fn of_controllers(&self) -> MutexGuard<'_, Registry> {
        self.shared.of_controllers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Registers a metric of this module. All its names are valid and different.
fn registered<C: Collector + Clone + 'static>(registry: &Registry, collector: prometheus::Result<C>) -> C {
    let collector = collector.expect("a constant name and constant labels, made in every test");
    registry.register(Box::new(collector.clone())).expect("registered once, in a new registry");
    collector
}

#[cfg(test)]
mod dashboard_tests;
#[cfg(test)]
mod tests;

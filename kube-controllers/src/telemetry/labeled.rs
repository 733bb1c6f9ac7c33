//! Metrics with one label: those of workers, by controller, and those of watches, by kind.

use prometheus::core::Collector;
use prometheus::{
    Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts,
    Registry,
};

use super::in_progress::{InProgress, InProgressVec};

/// Bucket limits in seconds, from work that only reads a cache to requests at an unreachable
/// datastore.
pub(super) const BUCKETS: [f64; 12] = [
    0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 60.0,
];

/// Metrics of one controller's work.
#[derive(Debug, Clone)]
pub struct WorkerMetrics<G = IntGauge, H = Histogram, C = IntCounter, P = InProgress> {
    /// Number of waiting keys; 0 while this replica may not write.
    pub depth: G,
    /// Number of keys that were added while this replica might write, and of those that waited when
    /// it began to.
    pub adds: C,
    /// Time that keys waited while this replica might write, in seconds.
    pub waited: H,
    /// Time that the work on one key took, in seconds.
    pub duration: H,
    /// The keys that workers are processing.
    pub in_progress: P,
    /// Number of failures that are retried.
    pub retries: C,
    /// Number of failures that are not retried.
    pub permanent_failures: C,
    /// Number of panics that were caught.
    pub panics: C,
}

pub(super) type WorkerMetricVecs =
    WorkerMetrics<IntGaugeVec, HistogramVec, IntCounterVec, InProgressVec>;

impl WorkerMetricVecs {
    pub(super) fn new(registry: &Registry) -> Self {
        let label = &["name"];
        let counter =
            |name, help| register(registry, IntCounterVec::new(Opts::new(name, help), label));
        let histogram = |name, help| {
            let opts = HistogramOpts::new(name, help).buckets(BUCKETS.to_vec());
            register(registry, HistogramVec::new(opts, label))
        };
        let depth = Opts::new("workqueue_depth", "Keys that wait for a worker.");
        WorkerMetricVecs {
            depth: register(registry, IntGaugeVec::new(depth, label)),
            adds: counter("workqueue_adds_total", "Keys that were added to the queue."),
            waited: histogram(
                "workqueue_queue_duration_seconds",
                "Time that keys waited for a worker, in seconds.",
            ),
            duration: histogram(
                "workqueue_work_duration_seconds",
                "Time that the work on one key took, in seconds.",
            ),
            in_progress: register(registry, InProgressVec::new()),
            retries: counter("workqueue_retries_total", "Failures that are tried again."),
            permanent_failures: counter(
                "kube_controllers_permanent_failures_total",
                "Failures that need a change of an object or of the settings.",
            ),
            panics: counter(
                "kube_controllers_panics_total",
                "Panics in workers, caught and tried again.",
            ),
        }
    }

    pub(super) fn metrics(&self, controller: &str) -> WorkerMetrics {
        let label = &[controller];
        WorkerMetrics {
            depth: self.depth.with_label_values(label),
            adds: self.adds.with_label_values(label),
            waited: self.waited.with_label_values(label),
            duration: self.duration.with_label_values(label),
            in_progress: self.in_progress.in_progress(controller),
            retries: self.retries.with_label_values(label),
            permanent_failures: self.permanent_failures.with_label_values(label),
            panics: self.panics.with_label_values(label),
        }
    }
}

/// Metrics of the watch of one kind.
#[derive(Debug, Clone)]
pub struct WatchMetrics<G = IntGauge, C = IntCounter> {
    /// Number of watches that ended and were started again, with or without a list.
    pub restarts: C,
    /// Number of full lists.
    pub lists: C,
    /// Number of events, including objects of lists.
    pub events: C,
    /// Number of objects that were omitted because they cannot be read.
    pub unreadable: C,
    /// 1 after the first complete list, 0 before.
    pub synced: G,
}

pub(super) type WatchMetricVecs = WatchMetrics<IntGaugeVec, IntCounterVec>;

impl WatchMetricVecs {
    pub(super) fn new(registry: &Registry) -> Self {
        let label = &["kind"];
        let counter =
            |name, help| register(registry, IntCounterVec::new(Opts::new(name, help), label));
        let synced = Opts::new(
            "kube_controllers_feed_synced",
            "1 once all objects of the kind have been listed.",
        );
        WatchMetricVecs {
            restarts: counter(
                "kube_controllers_watch_restarts_total",
                "Watches that ended and were started again.",
            ),
            lists: counter("kube_controllers_lists_total", "Full lists of a kind."),
            events: counter(
                "kube_controllers_events_total",
                "Objects that were listed, changed or deleted.",
            ),
            unreadable: counter(
                "kube_controllers_unreadable_objects_total",
                "Objects left out because they cannot be read.",
            ),
            synced: register(registry, IntGaugeVec::new(synced, label)),
        }
    }

    pub(super) fn metrics(&self, kind: &str) -> WatchMetrics {
        let label = &[kind];
        WatchMetrics {
            restarts: self.restarts.with_label_values(label),
            lists: self.lists.with_label_values(label),
            events: self.events.with_label_values(label),
            unreadable: self.unreadable.with_label_values(label),
            synced: self.synced.with_label_values(label),
        }
    }
}

/// Registers a metric. The names of all metrics are constant, valid and different, so the
/// registration cannot fail.
pub(super) fn register<C: Collector + Clone + 'static>(
    registry: &Registry,
    collector: prometheus::Result<C>,
) -> C {
    let collector = collector.expect("a constant name and constant labels, made in every test");
    registry
        .register(Box::new(collector.clone()))
        .expect("registered once, in a new registry");
    collector
}

//! Metrics of queues and workers.

use prometheus::{
    Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry,
};

use super::registered;

/// Bucket limits in seconds, from work that only reads a cache to requests at an unreachable datastore.
const BUCKETS: [f64; 12] = [0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 60.0];

/// Metrics of one controller's work.
#[derive(Debug, Clone)]
pub struct Work {
    /// Number of waiting keys.
    pub depth: IntGauge,
    /// Time that keys waited, in seconds.
    pub waited: Histogram,
    /// Time that the work on one key took, in seconds.
    pub duration: Histogram,
    /// Number of failures that are retried.
    pub retries: IntCounter,
    /// Number of failures that are not retried.
    pub permanent_failures: IntCounter,
    /// Number of panics that were caught.
    pub panics: IntCounter,
}

pub(super) struct Vectors {
    depth: IntGaugeVec,
    waited: HistogramVec,
    duration: HistogramVec,
    retries: IntCounterVec,
    permanent_failures: IntCounterVec,
    panics: IntCounterVec,
}

impl Vectors {
    pub(super) fn new(registry: &Registry) -> Self {
        let label = &["name"];
        let counter = |name, help| registered(registry, IntCounterVec::new(Opts::new(name, help), label));
        let histogram = |name, help| {
            let opts = HistogramOpts::new(name, help).buckets(BUCKETS.to_vec());
            registered(registry, HistogramVec::new(opts, label))
        };
        let depth = Opts::new("workqueue_depth", "Keys that wait to be worked on.");
        Vectors {
            depth: registered(registry, IntGaugeVec::new(depth, label)),
            waited: histogram("workqueue_queue_duration_seconds", "How long keys waited for a worker."),
            duration: histogram("workqueue_work_duration_seconds", "How long the work on one key took."),
            retries: counter("workqueue_retries_total", "Failures that are tried again."),
            permanent_failures: counter(
                "kube_controllers_permanent_failures_total",
                "Failures that are not tried again before something changes.",
            ),
            panics: counter("kube_controllers_panics_total", "Panics in workers, caught and tried again."),
        }
    }

    pub(super) fn of(&self, controller: &str) -> Work {
        let label = &[controller];
        Work {
            depth: self.depth.with_label_values(label),
            waited: self.waited.with_label_values(label),
            duration: self.duration.with_label_values(label),
            retries: self.retries.with_label_values(label),
            permanent_failures: self.permanent_failures.with_label_values(label),
            panics: self.panics.with_label_values(label),
        }
    }
}

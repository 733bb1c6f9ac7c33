//! Metrics with one label: those of workers, by controller, and those of watches, by kind.

use node_process::metrics;
use prometheus::{Histogram, IntCounter, IntGauge};

/// Bucket limits in seconds, from work that only reads a cache to requests at an unreachable
/// datastore.
pub(super) const BUCKETS: [f64; 12] = [
    0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 60.0,
];

metrics! {
    /// Metrics of one controller's work. A replica that may not write has a depth of 0, and counts
    /// the keys that wait once it may.
    pub struct WorkerMetrics of WorkerFamilies["name"] {
        /// Keys that wait for a worker.
        pub depth: IntGauge = "workqueue_depth",
        /// Keys that were added to the queue.
        pub adds: IntCounter = "workqueue_adds_total",
        /// Time that keys waited for a worker, in seconds.
        pub waited: Histogram = "workqueue_queue_duration_seconds" in BUCKETS,
        /// Time that the work on one key took, in seconds.
        pub duration: Histogram = "workqueue_work_duration_seconds" in BUCKETS,
        /// Failures that are tried again.
        pub retries: IntCounter = "workqueue_retries_total",
        /// Failures that need a change of an object or of the settings.
        pub permanent_failures: IntCounter = "kube_controllers_permanent_failures_total",
        /// Panics in workers, caught and tried again.
        pub panics: IntCounter = "kube_controllers_panics_total",
    }
}

metrics! {
    /// Metrics of the watch of one kind.
    pub struct WatchMetrics of WatchFamilies["kind"] {
        /// Watches that ended and were started again.
        pub restarts: IntCounter = "kube_controllers_watch_restarts_total",
        /// Full lists of a kind.
        pub lists: IntCounter = "kube_controllers_lists_total",
        /// Objects that were listed, changed or deleted.
        pub events: IntCounter = "kube_controllers_events_total",
        /// Objects left out because they cannot be read.
        pub unreadable: IntCounter = "kube_controllers_unreadable_objects_total",
        /// 1 once all objects of the kind have been listed.
        pub synced: IntGauge = "kube_controllers_feed_synced",
    }
}

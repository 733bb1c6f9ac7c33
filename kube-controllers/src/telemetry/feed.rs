//! Metrics of watches.

use prometheus::{IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry};

use super::registered;

/// Metrics of the watch of one kind.
#[derive(Debug, Clone)]
pub struct FeedMetrics {
    /// Number of watches that ended and were started again, with or without a list.
    pub restarts: IntCounter,
    /// Number of full lists.
    pub lists: IntCounter,
    /// Number of events, including objects of lists.
    pub events: IntCounter,
    /// Number of objects that were omitted because they cannot be read.
    pub unreadable: IntCounter,
    /// 1 after the first complete list.
    pub synced: IntGauge,
}

pub(super) struct Vectors {
    restarts: IntCounterVec,
    lists: IntCounterVec,
    events: IntCounterVec,
    unreadable: IntCounterVec,
    synced: IntGaugeVec,
}

impl Vectors {
    pub(super) fn new(registry: &Registry) -> Self {
        let label = &["kind"];
        let counter = |name, help| registered(registry, IntCounterVec::new(Opts::new(name, help), label));
        let synced = Opts::new("kube_controllers_feed_synced", "Whether everything of the kind that exists is known.");
        Vectors {
            restarts: counter("kube_controllers_watch_restarts_total", "Watches that ended and were begun anew."),
            lists: counter("kube_controllers_lists_total", "Full lists of a kind."),
            events: counter("kube_controllers_events_total", "Objects that came, changed or went, as they were told."),
            unreadable: counter(
                "kube_controllers_unreadable_objects_total",
                "Objects left out because they cannot be read.",
            ),
            synced: registered(registry, IntGaugeVec::new(synced, label)),
        }
    }

    pub(super) fn of(&self, kind: &str) -> FeedMetrics {
        let label = &[kind];
        FeedMetrics {
            restarts: self.restarts.with_label_values(label),
            lists: self.lists.with_label_values(label),
            events: self.events.with_label_values(label),
            unreadable: self.unreadable.with_label_values(label),
            synced: self.synced.with_label_values(label),
        }
    }
}

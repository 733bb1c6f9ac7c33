//! The metrics of feeds.

use prometheus::{IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry};

use super::registered;

/// The metrics of one feed.
#[derive(Debug, Clone)]
pub struct FeedMetrics {
    /// Watches that ended and were begun anew, with or without a list.
    pub restarts: IntCounter,
    /// Full lists.
    pub lists: IntCounter,
    /// Events, those of lists included.
    pub events: IntCounter,
    /// Objects that could not be read and were left out.
    pub unreadable: IntCounter,
    /// 1 once everything that exists was named.
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

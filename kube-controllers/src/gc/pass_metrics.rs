use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use prometheus::core::Collector;
use prometheus::{
    HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts,
};

use super::GarbageCollection;
use super::handles::RepairedHandles;
use crate::runtime::Controller;
use crate::telemetry::{Metrics, ReconcileMetrics, ReconcileResult};

/// Bucket limits in seconds, from a pass over a few addresses to a pass that waits for the API
/// server.
const PASS: [f64; 10] = [0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 60.0];

#[derive(Clone)]
pub(super) struct PassMetrics {
    pub(super) leaked: IntCounter,
    pub(super) reclaimed: IntCounter,
    pub(super) reported_leaks: IntCounter,
    handles: IntCounterVec,
    wrong_handles: IntGauge,
    failures: IntCounterVec,
    duration: HistogramVec,
    last_full: IntGauge,
    awaited: IntGaugeVec,
    conflicts: IntGaugeVec,
    reconciles: ReconcileMetrics,
    /// True if a phase has failed since the last pass that was recorded.
    has_failed: Arc<AtomicBool>,
}

impl PassMetrics {
    pub(super) fn new(metrics: &Metrics) -> Result<Self, prometheus::Error> {
        let counter = |name, help| registered(metrics, IntCounter::new(name, help));
        let gauge = |name, help| registered(metrics, IntGauge::new(name, help));
        let counts = |name, help, label| {
            registered(metrics, IntCounterVec::new(Opts::new(name, help), &[label]))
        };
        let gauges = |name, help, label| {
            registered(metrics, IntGaugeVec::new(Opts::new(name, help), &[label]))
        };
        let opts = HistogramOpts::new(
            "kube_controllers_gc_pass_duration_seconds",
            "Duration of a pass, in seconds.",
        );
        Ok(PassMetrics {
            leaked: counter(
                "kube_controllers_gc_leaked_total",
                "Addresses that were confirmed to be leaked.",
            )?,
            reclaimed: counter(
                "kube_controllers_gc_reclaimed_total",
                "Leaked addresses that were released.",
            )?,
            reported_leaks: counter(
                "kube_controllers_gc_reported_total",
                "Leaked addresses that were reported and not released, because GC_MODE is report.",
            )?,
            handles: counts(
                "kube_controllers_gc_handles_mended_total",
                "Repaired handles with a wrong count.",
                "how",
            )?,
            wrong_handles: gauge(
                "kube_controllers_gc_wrong_handles",
                "Handles that have a wrong count at present.",
            )?,
            failures: counts(
                "kube_controllers_gc_failures_total",
                "Failures, by the phase of the pass.",
                "phase",
            )?,
            duration: registered(
                metrics,
                HistogramVec::new(opts.buckets(PASS.to_vec()), &["scope"]),
            )?,
            last_full: gauge(
                "kube_controllers_gc_last_full_pass_timestamp_seconds",
                "Time of the last pass over all entries, in seconds since 1970.",
            )?,
            awaited: gauges(
                "kube_controllers_gc_awaited",
                "1 for each kind that must be listed before the first pass.",
                "kind",
            )?,
            conflicts: gauges(
                "kube_controllers_gc_conflicting_addresses",
                "Addresses that running pods report and that IPAM has free, or for another owner, \
                 for two minutes.",
                "held",
            )?,
            reconciles: metrics.reconciles(GarbageCollection::NAME),
            has_failed: Arc::default(),
        })
    }

    /// Records whether a required kind has not been listed yet.
    pub(super) fn set_awaited(&self, kind: &str, awaited: bool) {
        self.awaited
            .with_label_values(&[kind])
            .set(i64::from(awaited));
    }

    /// Records the numbers of conflicting addresses that are free, and that are allocated to
    /// another owner.
    pub(super) fn set_conflicts(&self, free: usize, another: usize) {
        for (held, n) in [("free", free), ("another", another)] {
            self.conflicts
                .with_label_values(&[held])
                .set(i64::try_from(n).unwrap_or(i64::MAX));
        }
    }

    pub(super) fn count_failure(&self, phase: &str) {
        self.failures.with_label_values(&[phase]).inc();
        self.has_failed.store(true, Ordering::Relaxed);
    }

    pub(super) fn record_repairs(&self, repaired: RepairedHandles, wrong: usize) {
        for (how, n) in [
            ("deleted", repaired.deleted),
            ("corrected", repaired.corrected),
        ] {
            if n > 0 {
                self.handles.with_label_values(&[how]).inc_by(n as u64);
            }
        }
        (0..repaired.failed).for_each(|_| self.count_failure("handles"));
        self.wrong_handles
            .set(i64::try_from(wrong).unwrap_or(i64::MAX));
    }

    /// Records the end of a pass. `full` is the Unix time of the end in seconds if the pass
    /// assessed all entries, and `None` if it assessed only the changed ones.
    pub(super) fn record_pass(&self, took: Duration, full: Option<i64>) {
        let scope = if full.is_some() { "full" } else { "changed" };
        self.duration
            .with_label_values(&[scope])
            .observe(took.as_secs_f64());
        if let Some(at) = full {
            self.last_full.set(at);
        }
    }

    /// Records a pass of the leader as one reconcile, which failed if one of its phases has. The
    /// passes of a standby write nothing and are left out.
    pub(super) fn record_reconcile(&self, took: Duration, leads: bool) {
        let has_failed = self.has_failed.swap(false, Ordering::Relaxed);
        if leads {
            self.reconciles.record(
                if has_failed {
                    ReconcileResult::Error
                } else {
                    ReconcileResult::Success
                },
                took,
            );
        }
    }
}

fn registered<C: Collector + Clone + 'static>(
    metrics: &Metrics,
    collector: prometheus::Result<C>,
) -> prometheus::Result<C> {
    let collector = collector?;
    metrics.register(collector.clone())?;
    Ok(collector)
}

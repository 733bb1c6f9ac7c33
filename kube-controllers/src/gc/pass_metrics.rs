use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use node_process::metrics;
use prometheus::{HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec};

use super::GarbageCollection;
use super::handles::RepairedHandles;
use crate::runtime::Controller;
use crate::telemetry::{Metrics, ReconcileMetrics, ReconcileResult};

/// Bucket limits in seconds, from a pass over a few addresses to a pass that waits for the API
/// server.
const PASS: [f64; 10] = [0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 60.0];

metrics! {
    pub(super) struct PassFamilies {
        /// Addresses that were confirmed to be leaked.
        pub(super) leaked: IntCounter = "kube_controllers_gc_leaked_total",
        /// Leaked addresses that were released.
        pub(super) reclaimed: IntCounter = "kube_controllers_gc_reclaimed_total",
        /// Leaked addresses that were reported and not released, because GC_MODE is report.
        pub(super) reported_leaks: IntCounter = "kube_controllers_gc_reported_total",
        /// Repaired handles with a wrong count.
        handles: IntCounterVec = "kube_controllers_gc_handles_restored_total"["how"],
        /// Handles that have a wrong count at present.
        wrong_handles: IntGauge = "kube_controllers_gc_wrong_handles",
        /// Failures, by the phase of the pass.
        failures: IntCounterVec = "kube_controllers_gc_failures_total"["phase"],
        /// Duration of a pass, in seconds.
        duration: HistogramVec = "kube_controllers_gc_pass_duration_seconds"["scope"] in PASS,
        /// Time of the last pass over all entries, in seconds since 1970.
        last_full: IntGauge = "kube_controllers_gc_last_full_pass_timestamp_seconds",
        /// 1 for each kind that must be listed before the first pass.
        awaited: IntGaugeVec = "kube_controllers_gc_awaited"["kind"],
        /// Addresses that running pods report and that IPAM has free, or for another owner, for
        /// two minutes.
        conflicts: IntGaugeVec = "kube_controllers_gc_conflicting_addresses"["held"],
    }
}

#[derive(Clone)]
/// The metrics of passes.
pub struct PassMetrics {
    pub(super) families: PassFamilies,
    reconciles: ReconcileMetrics,
    /// True if a phase has failed since the last pass that was recorded.
    has_failed: Arc<AtomicBool>,
}

impl PassMetrics {
    /// Creates and registers the metrics.
    pub fn new(metrics: &Metrics) -> Result<Self, prometheus::Error> {
        let families = PassFamilies::new();
        metrics.register(families.clone())?;
        Ok(PassMetrics {
            families,
            reconciles: metrics.reconciles(GarbageCollection::NAME),
            has_failed: Arc::default(),
        })
    }

    /// Records whether a required kind has not been listed yet.
    pub(super) fn set_awaited(&self, kind: &str, awaited: bool) {
        self.families
            .awaited
            .with_label_values(&[kind])
            .set(i64::from(awaited));
    }

    /// Records the numbers of conflicting addresses that are free, and that are allocated to
    /// another owner.
    pub(super) fn set_conflicts(&self, free: usize, another: usize) {
        for (held, n) in [("free", free), ("another", another)] {
            self.families
                .conflicts
                .with_label_values(&[held])
                .set(i64::try_from(n).unwrap_or(i64::MAX));
        }
    }

    pub(super) fn count_failure(&self, phase: &str) {
        self.families.failures.with_label_values(&[phase]).inc();
        self.has_failed.store(true, Ordering::Relaxed);
    }

    pub(super) fn record_repairs(&self, repaired: RepairedHandles, wrong: usize) {
        for (how, n) in [
            ("deleted", repaired.deleted),
            ("corrected", repaired.corrected),
        ] {
            if n > 0 {
                self.families
                    .handles
                    .with_label_values(&[how])
                    .inc_by(n as u64);
            }
        }
        (0..repaired.failed).for_each(|_| self.count_failure("handles"));
        self.families
            .wrong_handles
            .set(i64::try_from(wrong).unwrap_or(i64::MAX));
    }

    /// Records the end of a pass. `full` is the Unix time of the end in seconds if the pass
    /// assessed all entries, and `None` if it assessed only the changed ones.
    pub(super) fn record_pass(&self, took: Duration, full: Option<i64>) {
        let scope = if full.is_some() { "full" } else { "changed" };
        self.families
            .duration
            .with_label_values(&[scope])
            .observe(took.as_secs_f64());
        if let Some(at) = full {
            self.families.last_full.set(at);
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

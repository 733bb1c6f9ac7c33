//! [`ReconcileMetrics`]: the results and the durations of reconciles, with controller-runtime's
//! names.

use std::time::Duration;

use node_process::metrics;
use prometheus::{Histogram, HistogramVec, IntCounter, IntCounterVec};

use super::labeled::BUCKETS;

/// The result of one reconcile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReconcileResult {
    /// The key succeeded, and waits for a change.
    Success,
    /// The key succeeded, and is processed again after a time.
    RequeueAfter,
    /// The key failed, and is tried again.
    Error,
    /// The key failed, and is not tried again before a change.
    TerminalError,
}

/// Metrics of one controller's reconciles.
#[derive(Debug, Clone)]
pub struct ReconcileMetrics {
    success: IntCounter,
    requeue_after: IntCounter,
    error: IntCounter,
    errors: IntCounter,
    terminal_errors: IntCounter,
    duration: Histogram,
}

metrics! {
    pub(super) struct ReconcileFamilies {
        /// Reconciles by result; a pass of garbage collection is one.
        total: IntCounterVec = "controller_runtime_reconcile_total"["controller", "result"],
        // Also those that are not tried again, as in controller-runtime.
        /// Failed reconciles.
        errors: IntCounterVec = "controller_runtime_reconcile_errors_total"["controller"],
        /// Failed reconciles that are not tried again before a change of an object or of the
        /// settings.
        terminal_errors: IntCounterVec =
            "controller_runtime_terminal_reconcile_errors_total"["controller"],
        /// Time of a reconcile, in seconds.
        duration: HistogramVec =
            "controller_runtime_reconcile_time_seconds"["controller"] in BUCKETS,
    }
}

impl ReconcileMetrics {
    pub(super) fn new(families: &ReconcileFamilies, controller: &str) -> Self {
        let result = |result| families.total.with_label_values(&[controller, result]);
        let label = &[controller];
        ReconcileMetrics {
            success: result("success"),
            requeue_after: result("requeue_after"),
            error: result("error"),
            errors: families.errors.with_label_values(label),
            terminal_errors: families.terminal_errors.with_label_values(label),
            duration: families.duration.with_label_values(label),
        }
    }

    /// Records a reconcile that has ended.
    pub fn record(&self, result: ReconcileResult, took: Duration) {
        self.duration.observe(took.as_secs_f64());
        match result {
            ReconcileResult::Success => self.success.inc(),
            ReconcileResult::RequeueAfter => self.requeue_after.inc(),
            ReconcileResult::Error | ReconcileResult::TerminalError => {
                self.error.inc();
                self.errors.inc();
                if result == ReconcileResult::TerminalError {
                    self.terminal_errors.inc();
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Metrics;
    use super::*;

    #[test]
    fn each_result_has_its_series_and_terminal_errors_count_as_errors() {
        let metrics = Metrics::new();
        let reconciles = metrics.reconciles("policy");
        let shown = |expected: &str| {
            let text = metrics.text().expect("encodes");
            assert!(
                text.lines().any(|line| line == expected),
                "{expected}\n{text}"
            );
        };
        for result in ["success", "requeue_after", "error"] {
            shown(&format!(
                "controller_runtime_reconcile_total{{controller=\"policy\",result=\"{result}\"}} 0"
            ));
        }
        let results = [
            ReconcileResult::Success,
            ReconcileResult::Success,
            ReconcileResult::RequeueAfter,
            ReconcileResult::Error,
            ReconcileResult::Error,
            ReconcileResult::TerminalError,
        ];
        results
            .iter()
            .for_each(|result| reconciles.record(*result, Duration::from_millis(3)));
        for (result, count) in [("success", 2), ("requeue_after", 1), ("error", 3)] {
            shown(&format!(
                "controller_runtime_reconcile_total{{controller=\"policy\",result=\"{result}\"}} \
                 {count}"
            ));
        }
        shown("controller_runtime_reconcile_errors_total{controller=\"policy\"} 3");
        shown("controller_runtime_terminal_reconcile_errors_total{controller=\"policy\"} 1");
        shown("controller_runtime_reconcile_time_seconds_count{controller=\"policy\"} 6");
    }

    #[test]
    fn duration_of_a_reconcile_is_counted_in_seconds() {
        let metrics = Metrics::new();
        metrics
            .reconciles("policy")
            .record(ReconcileResult::Success, Duration::from_millis(250));
        let text = metrics.text().expect("encodes");
        let name = "controller_runtime_reconcile_time_seconds";
        for (series, value) in [
            ("_sum{controller=\"policy\"}", "0.25"),
            ("_bucket{controller=\"policy\",le=\"0.1\"}", "0"),
            ("_bucket{controller=\"policy\",le=\"0.5\"}", "1"),
        ] {
            let expected = format!("{name}{series} {value}");
            assert!(
                text.lines().any(|line| line == expected),
                "{expected}\n{text}"
            );
        }
    }
}

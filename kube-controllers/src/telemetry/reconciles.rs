//! [`ReconcileMetrics`]: the results and the durations of reconciles, with controller-runtime's
//! names.

use std::time::Duration;

use prometheus::{
    Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, Opts, Registry,
};

use super::labeled::{BUCKETS, register};

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
    /// Failures, also those that are not tried again, as in controller-runtime.
    errors: IntCounter,
    terminal_errors: IntCounter,
    duration: Histogram,
}

pub(super) struct ReconcileMetricVecs {
    total: IntCounterVec,
    errors: IntCounterVec,
    terminal_errors: IntCounterVec,
    duration: HistogramVec,
}

impl ReconcileMetrics {
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

impl ReconcileMetricVecs {
    pub(super) fn new(registry: &Registry) -> Self {
        let counter = |name, help, labels: &[&str]| {
            register(registry, IntCounterVec::new(Opts::new(name, help), labels))
        };
        let duration = HistogramOpts::new(
            "controller_runtime_reconcile_time_seconds",
            "Time of a reconcile, in seconds.",
        );
        ReconcileMetricVecs {
            total: counter(
                "controller_runtime_reconcile_total",
                "Reconciles by result; a pass of garbage collection is one.",
                &["controller", "result"],
            ),
            errors: counter(
                "controller_runtime_reconcile_errors_total",
                "Failed reconciles.",
                &["controller"],
            ),
            terminal_errors: counter(
                "controller_runtime_terminal_reconcile_errors_total",
                "Failed reconciles that are not tried again before a change of an object or of the \
                 settings.",
                &["controller"],
            ),
            duration: register(
                registry,
                HistogramVec::new(duration.buckets(BUCKETS.to_vec()), &["controller"]),
            ),
        }
    }

    pub(super) fn metrics(&self, controller: &str) -> ReconcileMetrics {
        let result = |result| self.total.with_label_values(&[controller, result]);
        let label = &[controller];
        ReconcileMetrics {
            success: result("success"),
            requeue_after: result("requeue_after"),
            error: result("error"),
            errors: self.errors.with_label_values(label),
            terminal_errors: self.terminal_errors.with_label_values(label),
            duration: self.duration.with_label_values(label),
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

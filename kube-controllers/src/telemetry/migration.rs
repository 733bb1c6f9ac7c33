//! [`MigrationFamilies`]: the metrics of a migration to `projectcalico.org/v3`, with upstream's
//! names (MIG-77).
//!
//! `calico_migration_locked_seconds` and `calico_migration_late_writes` are this program's. Each
//! value of a label is of a closed list, so that no name of an object becomes a label.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use libcalico::migration::Phase;
use node_process::metrics;
use node_process::metrics::{Family, Metric};
use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{Gauge, Histogram, HistogramVec, IntCounterVec, IntGauge, IntGaugeVec};
use time::OffsetDateTime;

const PHASES: [(Phase, &str); 6] = [
    (Phase::Pending, "pending"),
    (Phase::Migrating, "migrating"),
    (
        Phase::WaitingForConflictResolution,
        "waiting_for_conflict_resolution",
    ),
    (Phase::Converged, "converged"),
    (Phase::Complete, "complete"),
    (Phase::Failed, "failed"),
];

const DURATION: [f64; 15] = doubling(1.0);
const KIND_DURATION: [f64; 12] = doubling(0.1);

metrics! {
    /// The only metric of migrations that upstream exposes from the start of the process, without
    /// any migration (KC-155).
    pub(super) struct MigrationDuration {
        /// Duration of a datastore migration, in seconds.
        pub(super) seconds: Histogram = "calico_migration_duration_seconds" in DURATION,
    }
}

metrics! {
    /// The metrics of a migration.
    pub struct MigrationFamilies {
        /// Objects of a migration, by the outcome.
        resources: IntCounterVec = "calico_migration_resources_total"["kind", "outcome"],
        /// Objects that could not be migrated.
        errors: IntCounterVec = "calico_migration_resource_errors_total"["kind"],
        /// Requests of a migration that were sent again.
        pub retries: IntCounterVec = "calico_migration_retries_total"["kind", "operation"],
        /// 1 for the present phase of the migration, else 0.
        phase: IntGaugeVec = "calico_migration_phase"["phase"],
        /// Time to migrate one kind, in seconds.
        kind_duration: HistogramVec =
            "calico_migration_type_duration_seconds"["kind"] in KIND_DURATION,
        /// Time for which no pod could start or end because of a migration, in seconds.
        pub locked: ElapsedSeconds = "calico_migration_locked_seconds",
        /// Objects that were written in v1 after v3 was opened.
        pub late_writes: IntGauge = "calico_migration_late_writes",
    }
}

/// The results of one pass over the objects of a kind.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct CopiedObjects {
    /// Objects that were copied.
    pub migrated: usize,
    /// Objects whose copy was complete already.
    pub skipped: usize,
    /// Objects that another object of v3 prevents from being copied.
    pub conflicts: usize,
    /// Objects that could not be copied.
    pub errors: usize,
    /// Duration of the pass in seconds.
    pub seconds: f64,
}

impl MigrationFamilies {
    /// Sets the present phase. `None` removes all phases.
    pub fn set_phase(&self, present: Option<Phase>) {
        if present.is_none() {
            self.phase.reset();
            return;
        }
        for (phase, label) in PHASES {
            self.phase
                .with_label_values(&[label])
                .set(i64::from(present == Some(phase)));
        }
    }

    /// Adds the results of one pass over the objects of a kind. `kind` is the kind in v3.
    pub fn add_copied(&self, kind: &str, copied: CopiedObjects) {
        let CopiedObjects {
            migrated,
            skipped,
            conflicts,
            errors,
            seconds,
        } = copied;
        for (outcome, number) in [
            ("migrated", migrated),
            ("skipped", skipped),
            ("conflict", conflicts),
        ] {
            self.resources
                .with_label_values(&[kind, outcome])
                .inc_by(number as u64);
        }
        self.errors.with_label_values(&[kind]).inc_by(errors as u64);
        self.kind_duration
            .with_label_values(&[kind])
            .observe(seconds);
    }
}

/// Returns bucket limits, each twice the one before it.
const fn doubling<const N: usize>(first: f64) -> [f64; N] {
    let mut limits = [first; N];
    let mut next = 1;
    while next < N {
        limits[next] = 2.0 * limits[next - 1];
        next += 1;
    }
    limits
}

/// A gauge of the seconds between two times. It grows until the second time is known, and has no
/// sample before the first time is known.
#[derive(Debug, Clone)]
pub struct ElapsedSeconds {
    gauge: Gauge,
    span: Arc<Mutex<Option<TimeSpan>>>,
}

#[derive(Debug, Clone, Copy)]
struct TimeSpan {
    began: OffsetDateTime,
    ended: Option<OffsetDateTime>,
}

impl ElapsedSeconds {
    /// Sets both times. `ended` is `None` while the time goes on.
    pub fn set(&self, began: OffsetDateTime, ended: Option<OffsetDateTime>) {
        *self.span() = Some(TimeSpan { began, ended });
    }

    /// Sets the second time, if the time goes on.
    pub fn end(&self, now: OffsetDateTime) {
        if let Some(span) = &mut *self.span() {
            span.ended.get_or_insert(now);
        }
    }

    fn span(&self) -> MutexGuard<'_, Option<TimeSpan>> {
        self.span.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Family for ElapsedSeconds {
    fn declared(metric: &Metric) -> Self {
        ElapsedSeconds {
            gauge: Gauge::declared(metric),
            span: Arc::default(),
        }
    }
}

impl Collector for ElapsedSeconds {
    fn desc(&self) -> Vec<&Desc> {
        self.gauge.desc()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let Some(TimeSpan { began, ended }) = *self.span() else {
            return Vec::new();
        };
        let elapsed = ended.unwrap_or_else(OffsetDateTime::now_utc) - began;
        self.gauge.set(elapsed.as_seconds_f64().max(0.0));
        self.gauge.collect()
    }
}

#[cfg(test)]
mod tests {
    use time::Duration;

    use super::super::Metrics;
    use super::*;

    fn samples(metrics: &Metrics) -> Vec<String> {
        let text = metrics.text().unwrap();
        let ours = text
            .lines()
            .filter(|line| line.starts_with("calico_migration") && !line.contains("_bucket{"));
        ours.map(str::to_owned).collect()
    }

    #[test]
    fn families_exist_from_the_first_use_on() {
        let metrics = Metrics::new();
        assert_eq!(samples(&metrics).len(), 2, "sum and count of the duration");
        let families = metrics.migration();
        families.set_phase(Some(Phase::Converged));
        families.retries.with_label_values(&["Tier", "get"]).inc();
        // Another user has the same metrics.
        metrics.migration().late_writes.set(2);
        let found = samples(&metrics);
        for expected in [
            "calico_migration_phase{phase=\"converged\"} 1",
            "calico_migration_phase{phase=\"waiting_for_conflict_resolution\"} 0",
            "calico_migration_retries_total{kind=\"Tier\",operation=\"get\"} 1",
            "calico_migration_late_writes 2",
        ] {
            assert!(
                found.iter().any(|line| line == expected),
                "{expected}: {found:?}"
            );
        }
        assert_eq!(
            found
                .iter()
                .filter(|line| line.starts_with("calico_migration_phase{"))
                .count(),
            PHASES.len()
        );
        families.set_phase(None);
        assert!(
            !samples(&metrics)
                .iter()
                .any(|line| line.starts_with("calico_migration_phase{"))
        );
    }

    #[test]
    fn each_pass_adds_to_the_counters_of_the_kind() {
        let metrics = Metrics::new();
        let copied = CopiedObjects {
            migrated: 3,
            skipped: 2,
            conflicts: 1,
            errors: 4,
            seconds: 0.3,
        };
        metrics.migration().add_copied("IPPool", copied);
        metrics.migration().add_copied(
            "IPPool",
            CopiedObjects {
                skipped: 5,
                ..CopiedObjects::default()
            },
        );
        let found = samples(&metrics);
        for expected in [
            "calico_migration_resources_total{kind=\"IPPool\",outcome=\"migrated\"} 3",
            "calico_migration_resources_total{kind=\"IPPool\",outcome=\"skipped\"} 7",
            "calico_migration_resources_total{kind=\"IPPool\",outcome=\"conflict\"} 1",
            "calico_migration_resource_errors_total{kind=\"IPPool\"} 4",
            "calico_migration_type_duration_seconds_count{kind=\"IPPool\"} 2",
        ] {
            assert!(
                found.iter().any(|line| line == expected),
                "{expected}: {found:?}"
            );
        }
        let text = metrics.text().unwrap();
        let buckets: Vec<&str> = text
            .lines()
            .filter(|line| line.starts_with("calico_migration_type_duration_seconds_bucket{"))
            .collect();
        assert_eq!(buckets.len(), 13, "12 limits, and the rest: {buckets:?}");
        for limit in ["le=\"0.1\"", "le=\"0.2\"", "le=\"204.8\"", "le=\"+Inf\""] {
            assert_eq!(
                buckets.iter().filter(|line| line.contains(limit)).count(),
                1,
                "{limit}: {buckets:?}"
            );
        }
    }

    #[test]
    fn elapsed_time_has_a_sample_once_it_began_and_is_constant_once_it_ended() {
        let metrics = Metrics::new();
        let locked = metrics.migration().locked;
        let shown = || -> Option<f64> {
            let found = samples(&metrics);
            found
                .iter()
                .find_map(|line| line.strip_prefix("calico_migration_locked_seconds "))?
                .parse()
                .ok()
        };
        locked.end(OffsetDateTime::now_utc());
        assert_eq!(shown(), None);
        let began = OffsetDateTime::now_utc() - Duration::hours(1);
        locked.set(began, None);
        assert!(shown() >= Some(3600.0));
        locked.end(began + Duration::seconds(14));
        assert_eq!(shown(), Some(14.0));
        locked.end(began + Duration::seconds(20));
        assert_eq!(shown(), Some(14.0));
    }
}

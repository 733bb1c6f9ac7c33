//! [`MigrationMetrics`]: shows the status of a migration and its results as metrics (MIG-77).

use std::sync::Arc;

use kube_controllers::telemetry::{CopiedObjects, Metrics, MigrationFamilies};
use libcalico::migration::{MigrationStatus, Phase};
use prometheus::{Histogram, IntCounterVec};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// The metrics of the migration, which exist once the API server serves its kind. The phases
/// disappear with the last clone, that is, when this replica is no longer the leader.
#[derive(Debug, Clone)]
pub(super) struct MigrationMetrics {
    term: Arc<Term>,
}

#[derive(Debug)]
struct Term {
    families: MigrationFamilies,
    /// Times from the start of the copying to the opening of v3, in seconds.
    duration: Histogram,
}

impl Drop for Term {
    fn drop(&mut self) {
        self.families.set_phase(None);
    }
}

impl MigrationMetrics {
    /// Registers the metrics, or returns those of an earlier term of this process as leader.
    pub(super) fn register(metrics: &Metrics) -> Self {
        MigrationMetrics {
            term: Arc::new(Term {
                families: metrics.migration(),
                duration: metrics.migration_duration(),
            }),
        }
    }

    /// Returns the counter of repeated requests, with the labels kind and operation.
    pub(super) fn retries(&self) -> IntCounterVec {
        self.families().retries.clone()
    }

    /// Shows the phase, from the first read of the controlling object on (MB-25), and the time for
    /// which pods are or were blocked.
    pub(super) fn show(&self, status: &MigrationStatus) {
        self.families().set_phase(Some(status.phase));
        let (locked, released) = (&self.families().locked, time_of_release(status));
        let is_open = matches!(status.phase, Phase::Converged | Phase::Complete);
        match status.datastore_locked_at {
            Some(began) if released.is_some() || !is_open => locked.set(began, released),
            // A failed attempt has ended, or upstream's controller has opened v3, which writes no
            // condition.
            _ => locked.end(OffsetDateTime::now_utc()),
        }
    }

    /// Removes the phases, because there is no controlling object.
    pub(super) fn clear(&self) {
        self.families().set_phase(None);
    }

    /// Adds the results of a pass over the objects of a kind to the counters. `kind` is the kind in
    /// v3.
    pub(super) fn count_objects(&self, kind: &str, copied: CopiedObjects) {
        self.families().add_copied(kind, copied);
    }

    /// Observes the time from the start of the copying to the opening of v3, if the status shows
    /// both.
    pub(super) fn observe_duration(&self, status: &MigrationStatus) {
        if let (Some(began), Some(opened)) = (status.started_at, time_of_release(status)) {
            self.term
                .duration
                .observe((opened - began).as_seconds_f64().max(0.0));
        }
    }

    /// Sets the number of objects that a program has written in v1 after v3 was opened.
    pub(super) fn set_late_writes(&self, objects: usize) {
        self.families()
            .late_writes
            .set(i64::try_from(objects).unwrap_or(i64::MAX));
    }

    fn families(&self) -> &MigrationFamilies {
        &self.term.families
    }
}

/// Returns the time from which pods could start and end again, or `None` if they cannot, or if the
/// time is unknown.
fn time_of_release(status: &MigrationStatus) -> Option<OffsetDateTime> {
    let blocked = status
        .conditions
        .iter()
        .find(|condition| condition["type"] == "PodsBlocked");
    let released = blocked.filter(|condition| condition["status"] == "False")?;
    OffsetDateTime::parse(released["lastTransitionTime"].as_str()?, &Rfc3339).ok()
}

#[cfg(test)]
mod tests {
    use libcalico::migration::condition;
    use time::Duration;

    use super::*;

    fn locked_at(began: OffsetDateTime) -> MigrationStatus {
        MigrationStatus {
            phase: Phase::Migrating,
            datastore_locked_at: Some(began),
            ..MigrationStatus::default()
        }
    }

    fn sample(metrics: &Metrics, name: &str) -> Option<String> {
        let text = metrics.text().unwrap();
        text.lines()
            .find_map(|line| Some(line.strip_prefix(name)?.strip_prefix(' ')?.to_owned()))
    }

    #[test]
    fn time_under_the_lock_ends_with_the_condition() {
        let began = OffsetDateTime::UNIX_EPOCH;
        let mut status = locked_at(began);
        assert_eq!(time_of_release(&status), None);
        status.conditions = vec![condition(
            "PodsBlocked",
            true,
            "DatastoreLocked",
            "m",
            began,
        )];
        assert_eq!(time_of_release(&status), None);
        let opened = began + Duration::seconds(14);
        status.conditions = vec![condition("PodsBlocked", false, "V3Opened", "m", opened)];
        assert_eq!(time_of_release(&status), Some(opened));

        let metrics = Metrics::new();
        MigrationMetrics::register(&metrics).show(&status);
        assert_eq!(
            sample(&metrics, "calico_migration_locked_seconds").as_deref(),
            Some("14")
        );
    }

    #[test]
    fn lock_of_a_failed_attempt_ends_with_the_status_that_reports_it() {
        let metrics = Metrics::new();
        let shown = MigrationMetrics::register(&metrics);
        shown.show(&locked_at(OffsetDateTime::now_utc()));
        shown.show(&MigrationStatus::default());
        let first = sample(&metrics, "calico_migration_locked_seconds");
        assert!(first.is_some());
        assert_eq!(sample(&metrics, "calico_migration_locked_seconds"), first);
    }

    #[test]
    fn phase_disappears_with_the_object_and_with_the_term_of_the_leader() {
        let metrics = Metrics::new();
        let migrating = || sample(&metrics, "calico_migration_phase{phase=\"migrating\"}");
        let shown = MigrationMetrics::register(&metrics);
        let status = locked_at(OffsetDateTime::UNIX_EPOCH);
        shown.show(&status);
        assert_eq!(migrating().as_deref(), Some("1"));
        shown.clear();
        assert_eq!(migrating(), None);

        let shared = shown.clone();
        shown.show(&status);
        drop(shown);
        assert_eq!(migrating().as_deref(), Some("1"));
        drop(shared);
        assert_eq!(migrating(), None);
    }
}

//! The part of a migration under the lock: copies the objects and opens v3, or unlocks v1 again.

use std::time::Duration;

use kube_controllers::telemetry::CopiedObjects;
use libcalico::kubernetes::ApiGroup;
use libcalico::migration::{MIGRATION_NAME, Phase, condition};
use serde_json::Value;
use time::OffsetDateTime;

use super::super::abort::{self, Copies};
use super::super::attempts::{LockTimer, Withdrawals, is_overdue};
use super::super::copy::{Category, Copier, KindCount, Outcome};
use super::super::marks::V1Lock;
use super::super::metrics::MigrationMetrics;
use super::super::object::{Control, set_condition, set_conflicts};
use super::super::requests::{Problem, Requests};
use super::super::{api_service, end, late_writes, listing, lock, v3_access};
use super::preparation::{conditions_of, conflict_message, listed};
use super::{DRAINING, IDLE, MIGRATING, Migration, Next, RETRY, WAITING};

const STANDSTILL: &str = "no object could be copied for five minutes";
const OVERDUE: &str = "v1 was locked for half an hour, and kube-controllers ended again and again";
const RESTORED: &str = "another program restores APIService v3.projectcalico.org, which hides \
                        projectcalico.org/v3, again and again; stop that program";
const WRONG_GROUP: &str = "v3 is open, but CALICO_API_GROUP of kube-controllers is \
                           crd.projectcalico.org/v1; leave it empty \
                           (deploy/components/migrate-to-v3)";

/// A reason to unlock v1 before v3 is open.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct LockedFailure {
    pub(super) phase: Phase,
    pub(super) cause: String,
    pub(super) conditions: Vec<Value>,
}

impl LockedFailure {
    fn pending(cause: String) -> Self {
        LockedFailure {
            phase: Phase::Pending,
            cause,
            conditions: Vec::new(),
        }
    }

    /// Returns the failure for a pass with conflicts or refused objects, and `None` if all objects
    /// are in v3.
    fn of(outcome: &Outcome) -> Option<Self> {
        let (conflicts, refused) = (
            outcome.total(Category::Conflict),
            outcome.total(Category::Refused),
        );
        if conflicts > 0 {
            let (cause, conditions) = (conflict_message(conflicts), conditions_of(outcome));
            return Some(LockedFailure {
                phase: Phase::WaitingForConflictResolution,
                cause,
                conditions,
            });
        }
        let (named, count) = (
            listed(outcome.list(Category::Refused), refused),
            listing::counted(refused),
        );
        (refused > 0)
            .then(|| Self::pending(format!("projectcalico.org/v3 refuses {count}: {named}")))
    }
}

impl Migration {
    /// Copies all objects under the lock, and opens v3. Unlocks v1 after a conflict, a refused
    /// object, or five minutes without a finished object; after a temporary failure, v1 stays
    /// locked until the next pass.
    pub(super) async fn copy(&mut self, control: &mut Control) -> Result<Next, Problem> {
        if self.failure.is_some() {
            return self.finish_release(control).await;
        }
        if self.is_overdue(control) {
            return self
                .release(control, LockedFailure::pending(OVERDUE.to_owned()))
                .await;
        }
        self.withdrawals = Withdrawals::default();
        let metrics = self.metrics().clone();
        let timer: &LockTimer = self.timer.get_or_insert_with(LockTimer::start);
        let copied = tokio::select! {
            biased;
            copied = copy_all(&self.requests, control, timer, &metrics) => copied,
            () = timer.expired() => Ok(Some(LockedFailure::pending(STANDSTILL.to_owned()))),
        };
        match copied {
            Ok(None) => self.converge(control).await,
            Ok(Some(failure)) => self.release(control, failure).await,
            Err(Problem::Refused { text, .. }) => {
                self.release(control, LockedFailure::pending(text)).await
            }
            Err(Problem::Transient(text))
                if self.timer.as_ref().is_some_and(LockTimer::has_expired) =>
            {
                self.release(
                    control,
                    LockedFailure::pending(format!("{STANDSTILL}: {text}")),
                )
                .await
            }
            Err(problem) => Err(problem),
        }
    }

    /// Returns true if this process has found v1 locked for too long. It unlocks v1 then.
    fn is_overdue(&self, control: &Control) -> bool {
        self.timer.is_none() && is_overdue(control.status.datastore_locked_at)
    }

    /// Removes an aggregated API server that another program has restored under the lock. If that
    /// is refused, or the other program does not stop, the lock ends as after any standstill,
    /// unless v3 may have been open.
    pub(super) async fn uncover(
        &mut self,
        control: &mut Control,
        v1: V1Lock,
    ) -> Result<Next, Problem> {
        let is_overdue = self.is_overdue(control);
        if !is_overdue {
            self.timer.get_or_insert_with(LockTimer::start);
        }
        let taken = api_service::take_away(&self.requests, control).await;
        let is_over = is_overdue || self.timer.as_ref().is_some_and(LockTimer::has_expired);
        let cause = match taken {
            Err(Problem::Refused { text, .. }) => text,
            Err(Problem::Transient(text)) if is_over => text,
            Ok(()) | Err(Problem::Lost) if is_overdue => OVERDUE.to_owned(),
            Ok(()) | Err(Problem::Lost) if is_over => RESTORED.to_owned(),
            taken => return taken.map(|()| Next::After(Duration::ZERO)),
        };
        let phase = control.status.phase;
        if v1 == V1Lock::ByMigration {
            // A failed migration stays failed.
            let phase = if phase == Phase::Failed {
                phase
            } else {
                Phase::Pending
            };
            return self
                .release(
                    control,
                    LockedFailure {
                        phase,
                        cause,
                        conditions: Vec::new(),
                    },
                )
                .await;
        }
        let text = format!(
            "APIService v3.projectcalico.org hides whether v3 is open, and v1 stays locked: {cause}"
        );
        control.report(&self.requests, phase, &text).await?;
        Ok(Next::After(RETRY))
    }

    /// Unlocks v1 after a failure, and begins the pause before the next attempt. An earlier failure
    /// stays the cause.
    pub(super) async fn release(
        &mut self,
        control: &mut Control,
        failure: LockedFailure,
    ) -> Result<Next, Problem> {
        if self.failure.is_none() {
            tracing::warn!(
                object = MIGRATION_NAME, cause = %failure.cause, "migration: failed under the lock",
            );
            self.attempts.fail();
            self.failure = Some(failure);
        }
        self.finish_release(control).await
    }

    /// Closes v3, then unlocks v1. Repeated until v1 is unlocked.
    pub(super) async fn finish_release(&mut self, control: &mut Control) -> Result<Next, Problem> {
        let Some(failure) = self.failure.clone() else {
            return Ok(Next::After(WAITING));
        };
        let LockedFailure {
            phase,
            mut cause,
            conditions,
        } = failure;
        // Behind an aggregated API server, an abort would not reach the copies.
        let copies = if control.saved_api_service().is_some() {
            Copies::Delete
        } else {
            Copies::Keep
        };
        if let Some(refused) =
            abort::restore(&self.requests, control, copies, &mut self.withdrawals).await?
        {
            cause = format!("{cause}; {refused}");
        }
        let pause = self
            .attempts
            .remaining_pause()
            .unwrap_or_default()
            .as_secs()
            .div_ceil(60);
        let message = match phase {
            Phase::Failed => format!("{cause}; the datastore is not locked"),
            _ => format!(
                "{cause}; the datastore is not locked, and the next attempt begins in {pause} \
                 minutes"
            ),
        };
        control
            .write_status(&self.requests, |status| {
                (status.phase, status.message) = (phase, message);
                status.started_at = None;
                set_conflicts(status, conditions);
            })
            .await?;
        (self.timer, self.failure) = (None, None);
        Ok(Next::After(WAITING))
    }

    /// Restores the state before the migration after an interruption, or after the deletion of the
    /// object, and then lets the API server remove the deleted object.
    pub(super) async fn restore(&mut self, control: &mut Control) -> Result<Next, Problem> {
        if let Some(refused) = abort::restore(
            &self.requests,
            control,
            Copies::Delete,
            &mut self.withdrawals,
        )
        .await?
        {
            control
                .report(&self.requests, control.status.phase, &refused)
                .await?;
            return Ok(Next::After(IDLE));
        }
        if !control.is_being_deleted() {
            return Ok(Next::After(Duration::ZERO));
        }
        tracing::info!("migration: aborted; v1 is as it was before");
        control.remove_finalizer(&self.requests).await?;
        Ok(Next::After(IDLE))
    }

    /// Reports that v3 is open. A process that uses v1 has to end then; its successor uses v3.
    pub(super) async fn converge(&mut self, control: &mut Control) -> Result<Next, Problem> {
        (self.timer, self.failure) = (None, None);
        if let Err(problem) = end::report_open(&self.requests, control).await {
            // The successor reports it again.
            tracing::warn!(
                object = MIGRATION_NAME,
                "migration: cannot report that v3 is open: {problem}"
            );
        }
        if self.used == ApiGroup::V3 {
            return Ok(Next::After(Duration::ZERO));
        }
        if self.configured == Some(ApiGroup::CrdV1) {
            // A new process would use v1 again.
            control
                .report(&self.requests, Phase::Converged, WRONG_GROUP)
                .await?;
            return Ok(Next::After(IDLE));
        }
        Ok(Next::Ended(ApiGroup::V3))
    }
}

/// Copies all objects and opens v3. Returns the reason if v3 cannot take them.
async fn copy_all(
    requests: &Requests,
    control: &mut Control,
    timer: &LockTimer,
    metrics: &MigrationMetrics,
) -> Result<Option<LockedFailure>, Problem> {
    let now = OffsetDateTime::now_utc();
    // An object that was created again under the lock has no finalizer, and its deletion would
    // leave v1 locked.
    control.add_finalizer(requests).await?;
    control
        .write_status(requests, |status| {
            let text = if status.started_at.is_none() {
                DRAINING
            } else {
                MIGRATING
            };
            text.clone_into(&mut status.message);
            status.datastore_locked_at = status.datastore_locked_at.or(Some(now));
            set_conflicts(status, Vec::new());
            let text = "pods cannot start or end until v3 is open";
            set_condition(
                status,
                condition("PodsBlocked", true, "DatastoreLocked", text, now),
            );
        })
        .await?;
    timer.drained().await;
    let migration = control.uid().to_owned();
    let mut closed = v3_access::close(requests, &migration).await?;
    control
        .write_status(requests, |status| {
            status.phase = Phase::Migrating;
            MIGRATING.clone_into(&mut status.message);
            status.started_at = status
                .started_at
                .or_else(|| Some(OffsetDateTime::now_utc()));
        })
        .await?;
    let mut copier = Copier::new(requests, control, timer);
    let outcome = copier.all().await?;
    outcome
        .counts
        .iter()
        .for_each(|count| metrics.count_objects(count.kind, copied_objects(count)));
    if let Some(failure) = LockedFailure::of(&outcome) {
        return Ok(Some(failure));
    }
    while !copier.second_look().await? {}
    let seen = copier.seen_revision().to_owned();
    // A person may have unlocked v1, and then pods have started in v1 meanwhile.
    if !lock::confirm(requests).await? {
        return Err(Problem::Lost);
    }
    late_writes::record(&mut closed, &seen);
    v3_access::open(requests, closed, &migration).await?;
    Ok(None)
}

/// Returns the numbers of a kind, as the metrics count them.
fn copied_objects(count: &KindCount) -> CopiedObjects {
    CopiedObjects {
        migrated: count.of(Category::Copied),
        skipped: count.of(Category::Skipped),
        conflicts: count.of(Category::Conflict),
        errors: count.of(Category::Refused),
        seconds: count.took.as_secs_f64(),
    }
}

//! [`Migration`]: reads the state of the migration and takes the next step, in one pass after
//! another.

mod locked;
mod preparation;

use std::collections::BTreeSet;
use std::time::Duration;

use kube_controllers::telemetry::Metrics;
use libcalico::kubernetes::{ApiGroup, Resource};
use libcalico::migration::{DATASTORE_MIGRATIONS, GROUP, MIGRATION_NAME, Phase};
use serde_json::Value;
use time::OffsetDateTime;

use super::abort::{self, Copies};
use super::attempts::{Attempts, LockTimer, Withdrawals};
use super::checks::{self, Checked};
use super::late_writes::LateWrites;
use super::marks::{Marks, MigrationStep, V1Lock, V3Access, next_step};
use super::metrics::MigrationMetrics;
use super::object::{Control, PRE_GA};
use super::requests::{Problem, Requests};
use super::v3_access::Withdrawn;
use super::{api_service, end};
use locked::LockedFailure;

/// Pause between two looks for a controlling object, and between two looks at a migration that
/// needs no work.
const IDLE: Duration = Duration::from_secs(60);
/// Pause between two passes of a migration that waits for the cluster.
const WAITING: Duration = Duration::from_secs(10);
/// Pause after a pass that failed, and is to be continued.
const RETRY: Duration = Duration::from_secs(5);
/// Pause after another process has changed an object.
const LOST: Duration = Duration::from_secs(1);
/// Role with the rights of a migration, without the prefix that the roles of all controllers share.
const ROLE: &str = "migration";

/// Upstream's texts under the lock.
const DRAINING: &str = "Waiting for in-flight datastore writes to drain";
const MIGRATING: &str = "Migrating resources";

/// Time after the end of a migration within which late writes to v1 are looked for.
const LATE: Duration = Duration::from_secs(3600);

/// The end of a pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// The next pass is due after this time.
    After(Duration),
    /// Calico's objects are in this group now, and the process has to end.
    Ended(ApiGroup),
}

/// A migration, as one process runs it while it is the leader. Its fields are hints; the API server
/// has the state.
pub(super) struct Migration {
    requests: Requests,
    /// The group in the environment of this process.
    configured: Option<ApiGroup>,
    /// The group that this process uses.
    used: ApiGroup,
    namespace: String,
    process_metrics: Metrics,
    /// The metrics, once the API server serves the kind of the controlling object.
    metrics: Option<MigrationMetrics>,
    /// The resource of the controlling object, if the object existed in the last pass.
    resource: Option<Resource>,
    /// The uid of the controlling object to which the following fields belong.
    uid: String,
    attempts: Attempts,
    /// The progress under the lock, if this process has found v1 locked.
    timer: Option<LockTimer>,
    /// The failure under the lock after which v1 is to be unlocked.
    failure: Option<LockedFailure>,
    withdrawals: Withdrawals,
    late_writes: LateWrites,
    /// True if the last pass has found an unfinished migration without its object; `None` before
    /// the first look.
    is_abandoned: Option<bool>,
    /// Other controlling objects that this process has logged.
    ignored: BTreeSet<String>,
}

impl Migration {
    pub(super) fn new(
        requests: Requests,
        configured: Option<ApiGroup>,
        used: ApiGroup,
        namespace: String,
        process_metrics: Metrics,
    ) -> Self {
        Migration {
            requests,
            configured,
            used,
            namespace,
            process_metrics,
            metrics: None,
            resource: None,
            uid: String::new(),
            attempts: Attempts::default(),
            timer: None,
            failure: None,
            withdrawals: Withdrawals::default(),
            late_writes: LateWrites::default(),
            is_abandoned: None,
            ignored: BTreeSet::new(),
        }
    }

    /// Makes one pass. Safe to be dropped at any await.
    pub(super) async fn pass(&mut self) -> Next {
        let found = self.find().await;
        let is_forbidden = matches!(found, Err(Problem::Refused { code: 403, .. }));
        let is_served = self.metrics.is_some();
        if is_served && !self.process_metrics.set_missing_rights(ROLE, is_forbidden) && is_forbidden
        {
            tracing::warn!(
                hint = "apply deploy/components/migrate-to-v3",
                "the role calico-kube-controllers-migration is missing, not bound or outdated"
            );
        }
        let mut control = match found {
            Ok(Some(control)) => {
                self.is_abandoned = Some(false);
                control
            }
            Ok(None) => return self.without_object().await,
            Err(problem) => {
                tracing::debug!(%problem, "cannot read the controlling object of a migration");
                return Next::After(if is_forbidden { IDLE } else { RETRY });
            }
        };
        match self.advance(&mut control).await {
            Ok(next) => next,
            Err(Problem::Lost | Problem::MayNotWrite) => Next::After(LOST),
            Err(problem) => {
                let phase = control.status.phase;
                if let Err(error) = control
                    .report(&self.requests, phase, &problem.to_string())
                    .await
                {
                    tracing::warn!(
                        object = MIGRATION_NAME, cause = %problem,
                        "migration: cannot report: {error}",
                    );
                }
                Next::After(RETRY)
            }
        }
    }

    /// Ends a migration whose object was removed together with its finalizer: a person has aborted
    /// the migration, and nobody else would unlock v1. Waits for one pass, because a new object
    /// continues the migration. If the kind of the object is not served, a new leader looks for the
    /// lock once: most clusters have neither.
    async fn without_object(&mut self) -> Next {
        let is_served = self.metrics.is_some();
        let may_be_locked = self.used == ApiGroup::CrdV1 && self.is_abandoned != Some(false);
        if is_served || may_be_locked {
            match abort::is_abandoned(&self.requests, is_served).await {
                Ok(true) if self.is_abandoned == Some(true) => {
                    match abort::end_lock(&self.requests, "", Copies::Delete, &mut self.withdrawals)
                        .await
                    {
                        Ok(Withdrawn::Refused { text: problem, .. }) => {
                            tracing::warn!(%problem, "migration: cannot abort without its object");
                        }
                        Ok(_) => {
                            tracing::warn!("migration: aborted, because its object is missing")
                        }
                        Err(problem) => {
                            tracing::warn!(%problem, "migration: cannot abort without its object")
                        }
                    }
                }
                Ok(is_abandoned) => self.is_abandoned = Some(is_abandoned),
                Err(problem) => {
                    tracing::debug!(
                        %problem, "cannot look for the lock of a migration without its object",
                    )
                }
            }
        }
        Next::After(IDLE)
    }

    /// Returns the controlling object, or `None` if it is missing or its kind is not served.
    async fn find(&mut self) -> Result<Option<Control>, Problem> {
        if self.resource.is_none() {
            self.resource = self.discover().await?;
        }
        let Some(resource) = self.resource.take() else {
            return Ok(None);
        };
        if self.metrics.is_none() {
            let metrics = MigrationMetrics::register(&self.process_metrics);
            self.requests = self.requests.clone().counting(metrics.retries());
            self.metrics = Some(metrics);
        }
        let Some(control) = Control::read(&self.requests, resource).await? else {
            self.metrics().clear();
            self.report_others(&resource).await?;
            return Ok(None);
        };
        self.resource = Some(resource);
        if control.uid() != self.uid {
            control.uid().clone_into(&mut self.uid);
            (self.timer, self.failure, self.attempts) = (None, None, Attempts::default());
        }
        Ok(Some(control.shown_in(self.metrics())))
    }

    /// Returns the resource of the controlling object in the newest version that the API server
    /// serves.
    async fn discover(&self) -> Result<Option<Resource>, Problem> {
        let group = match self.requests.discover(&format!("/apis/{GROUP}")).await {
            Ok(group) => group,
            // Accounts outside of the group system:authenticated may lack this right.
            Err(Problem::Refused { code: 403, .. }) => None,
            Err(problem) => return Err(problem),
        };
        let Some(group) = group else { return Ok(None) };
        let is_served = |resource: &Resource| {
            let mut versions = group["versions"].as_array().into_iter().flatten();
            versions.any(|version| version["groupVersion"] == resource.api_version)
        };
        Ok([DATASTORE_MIGRATIONS, PRE_GA].into_iter().find(is_served))
    }

    /// Logs each object of the kind that starts no migration, once.
    async fn report_others(&mut self, resource: &Resource) -> Result<(), Problem> {
        let mut names = Vec::new();
        self.requests
            .pages(resource, true, async |page: Vec<Value>| {
                names.extend(
                    page.iter().filter_map(|object| {
                        object["metadata"]["name"].as_str().map(str::to_owned)
                    }),
                );
                Ok(())
            })
            .await?;
        for name in names.into_iter().filter(|name| name != MIGRATION_NAME) {
            if self.ignored.insert(name.clone()) {
                tracing::warn!(
                    object = name,
                    "migration: ignored; only an object {MIGRATION_NAME} starts a migration"
                );
            }
        }
        Ok(())
    }

    fn metrics(&mut self) -> &MigrationMetrics {
        self.metrics
            .get_or_insert_with(|| MigrationMetrics::register(&self.process_metrics))
    }

    async fn advance(&mut self, control: &mut Control) -> Result<Next, Problem> {
        let marks = match Marks::read(&self.requests, control).await {
            Err(Problem::Refused { code: 403, text }) => {
                let text = format!("Waiting for migration RBAC permissions: {text}");
                control
                    .report(&self.requests, control.status.phase, &text)
                    .await?;
                return Ok(Next::After(WAITING));
            }
            marks => marks?,
        };
        // The process that has unlocked v1 may have ended before its report.
        if marks.v1 == V1Lock::Unlocked
            && control
                .condition("PodsBlocked")
                .is_some_and(|found| found["status"] == "True")
        {
            end::report_unlocked(&self.requests, control).await?;
        }
        match next_step(&marks, control, self.used) {
            MigrationStep::Ignore => Ok(Next::After(IDLE)),
            MigrationStep::Rest => {
                if marks.v3 != V3Access::Open {
                    // An interrupted process may have left a saved APIService.
                    self.give_back_unused(control).await?;
                } else if is_recent(control.status.completed_at) {
                    self.find_late_writes().await;
                }
                Ok(Next::After(IDLE))
            }
            MigrationStep::DryRun => self.dry_run(control, &marks).await,
            MigrationStep::Check => self.check(control, &marks).await,
            MigrationStep::Uncover => self.uncover(control, marks.v1).await,
            MigrationStep::Copy => self.copy(control).await,
            MigrationStep::Release => {
                let cause = control.status.message.clone();
                self.release(
                    control,
                    LockedFailure {
                        phase: Phase::Failed,
                        cause,
                        conditions: Vec::new(),
                    },
                )
                .await
            }
            MigrationStep::GiveBack | MigrationStep::Abort => self.restore(control).await,
            MigrationStep::Converge => self.converge(control).await,
            MigrationStep::Finish => {
                if !control.is_being_deleted() {
                    control.add_finalizer(&self.requests).await?;
                }
                end::report_open(&self.requests, control).await?;
                self.find_late_writes().await;
                let check = checks::before_complete(&self.checked(control, &marks)).await?;
                let is_complete = end::finish(&self.requests, control, check).await?;
                Ok(Next::After(if is_complete {
                    Duration::ZERO
                } else {
                    WAITING
                }))
            }
            MigrationStep::RemoveV1 => {
                let check = checks::before_complete(&self.checked(control, &marks)).await?;
                let is_removed = end::remove_v1(&self.requests, control, check).await?;
                Ok(Next::After(if is_removed { IDLE } else { WAITING }))
            }
            MigrationStep::Hold(text) => {
                if !marks.v1.is_by_migration() && control.status.started_at.is_none() {
                    self.give_back_unused(control).await?;
                }
                control
                    .report(&self.requests, control.status.phase, text)
                    .await?;
                Ok(Next::After(WAITING))
            }
        }
    }

    /// Restores an aggregated API server that the migration has removed only to find out that it
    /// cannot begin. The pause bounds how often the clients of that server lack it, and begins also
    /// if the restoration fails after it has taken effect.
    async fn give_back_unused(&mut self, control: &mut Control) -> Result<(), Problem> {
        if control.saved_api_service().is_some() && self.attempts.remaining_pause().is_none() {
            self.attempts.fail();
        }
        api_service::give_back(&self.requests, control).await
    }

    /// Counts the objects that were written in v1 after v3 was opened. A failure is no reason to
    /// stop the migration.
    async fn find_late_writes(&mut self) {
        match self.late_writes.look(&self.requests).await {
            Ok(count) => self.metrics().set_late_writes(count),
            Err(problem) => {
                tracing::debug!(%problem, "cannot list the objects of v1 for late writes")
            }
        }
    }

    fn checked<'a>(&'a self, control: &'a Control, marks: &'a Marks) -> Checked<'a> {
        Checked {
            requests: &self.requests,
            control,
            marks,
            configured: self.configured,
            namespace: &self.namespace,
        }
    }
}

/// Returns true if the migration was complete less than an hour ago.
fn is_recent(completed_at: Option<OffsetDateTime>) -> bool {
    completed_at.is_some_and(|time| OffsetDateTime::now_utc() - time < LATE)
}

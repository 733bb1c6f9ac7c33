//! The part of a migration before the lock: the dry run, the checks, and the trial by the API
//! server.

use std::time::Duration;

use libcalico::kubernetes::ApiGroup;
use libcalico::migration::{DRY_RUN, Phase, cluster_information, condition, conflict_conditions};
use serde_json::Value;
use time::OffsetDateTime;
use tokio::time::Instant;

use super::super::attempts::LockTimer;
use super::super::checks::{self, Check};
use super::super::copy::{self, Category, Named, Outcome};
use super::super::marks::{Marks, V3Access};
use super::super::object::{Control, set_condition, set_conflicts};
use super::super::requests::{Problem, Requests};
use super::super::{api_service, listing, lock, report, v3_access};
use super::{DRAINING, IDLE, MIGRATING, Migration, Next, WAITING};

/// The pause after checks that did not pass, as a multiple of their time. They read each object,
/// and can fail for days.
const PAUSE_PER_CHECK: u32 = 10;
/// Greatest number of objects that a message names.
const MOST_NAMED: usize = 8;
/// Greatest length of the reason for one object in a message, in characters.
const LONGEST_REASON: usize = 200;

const CHECKING: &str = "checking the cluster and all objects before the lock";
/// A migration deletes copies without a source, and an abort all copies. So it does not begin
/// beside copies that may be in use.
const IN_USE: &str = "projectcalico.org/v3 is ready, and a former migration has copied";
const WAY_OUT: &str = "If pods use v3, restore the annotation \
                       migration.projectcalico.org/migrated-by of its ClusterInformation default; \
                       otherwise delete these copies";

/// The reason why a migration does not lock v1.
struct Refusal {
    phase: Phase,
    message: String,
    conditions: Vec<Value>,
}

impl Migration {
    /// Makes the requested dry run, if it has not been made. Locks nothing, and writes nothing but
    /// a ConfigMap and the status.
    pub(super) async fn dry_run(
        &mut self,
        control: &mut Control,
        marks: &Marks,
    ) -> Result<Next, Problem> {
        if control.saved_api_service().is_some() {
            api_service::give_back(&self.requests, control).await?;
            // The marks say that v3 is not aggregated.
            return Ok(Next::After(Duration::ZERO));
        }
        let Some(requested) = control.requested_dry_run().map(str::to_owned) else {
            return Ok(Next::After(WAITING));
        };
        let began = Instant::now();
        let text = match self.make_dry_run(control, marks, &requested).await {
            Ok(None) => return Ok(Next::After(WAITING)),
            Ok(Some(text)) => text,
            Err(problem @ (Problem::Transient(_) | Problem::Refused { .. })) => problem.to_string(),
            Err(problem) => return Err(problem),
        };
        control
            .report(&self.requests, Phase::Pending, &text)
            .await?;
        Ok(pause_after(began))
    }

    /// Makes the dry run, and reports its outcome. Returns the first reason for which a migration
    /// would not begin.
    async fn make_dry_run(
        &mut self,
        control: &mut Control,
        marks: &Marks,
        requested: &str,
    ) -> Result<Option<String>, Problem> {
        let check = checks::before_the_lock(&self.checked(control, marks)).await?;
        if let Check::Wait(text) | Check::Terminal(text) = check {
            return Ok(Some(text));
        }
        let is_compared = !marks.is_aggregated;
        if is_compared {
            if let Some(text) = copies_in_use(&self.requests).await? {
                return Ok(Some(text));
            }
            let written = v3_access::check(&self.requests, control.uid()).await;
            if let Some(text) = refusal_to_write(ApiGroup::V3, written)? {
                return Ok(Some(text));
            }
        }
        let outcome = copy::trial(&self.requests, is_compared).await?;
        report::write(&self.requests, &self.namespace, &outcome, is_compared).await?;
        let message = format!(
            "dry run: {} to copy, {} are in v3, {} conflicts, {} refused; see ConfigMap {}/{}. To \
             start, remove the annotation migration.projectcalico.org/dry-run",
            listing::counted(outcome.total(Category::Copied)),
            outcome.total(Category::Skipped),
            outcome.total(Category::Conflict),
            outcome.total(Category::Refused),
            self.namespace,
            report::NAME
        );
        let made = condition(
            "DryRun",
            true,
            "Finished",
            requested,
            OffsetDateTime::now_utc(),
        );
        control
            .write_status(&self.requests, |status| {
                status.phase = Phase::Pending;
                status.message = message;
                set_condition(status, made);
            })
            .await?;
        Ok(None)
    }

    /// Checks the cluster, locks v1, and copies the objects. Changes nothing of v1 and v3 before
    /// all checks have passed, except that an aggregated API server is removed for the last one.
    pub(super) async fn check(
        &mut self,
        control: &mut Control,
        marks: &Marks,
    ) -> Result<Next, Problem> {
        if self.failure.is_some() {
            return self.finish_release(control).await;
        }
        if let Some(pause) = self.attempts.remaining_pause() {
            // The restoration before the pause may have failed.
            api_service::give_back(&self.requests, control).await?;
            return Ok(Next::After(pause.min(WAITING)));
        }
        let message = control.status.message.as_str();
        // An interrupted process may have left the messages under the lock.
        if ["", DRAINING, MIGRATING].contains(&message) {
            control
                .report(&self.requests, Phase::Pending, CHECKING)
                .await?;
        }
        let began = Instant::now();
        match self.lock(control, marks).await {
            Ok(None) => {
                self.timer = Some(LockTimer::start());
                return self.copy(control).await;
            }
            Ok(Some(refusal)) => self.refuse(control, refusal).await?,
            // The failure can last for days. Until the next checks, the phase and the conflicts
            // stay.
            Err(problem @ (Problem::Transient(_) | Problem::Refused { .. })) => {
                self.give_back_unused(control).await?;
                control
                    .report(&self.requests, control.status.phase, &problem.to_string())
                    .await?;
            }
            Err(problem) => return Err(problem),
        }
        Ok(pause_after(began))
    }

    /// Locks v1 after all checks. Returns the first reason not to lock v1.
    async fn lock(
        &mut self,
        control: &mut Control,
        marks: &Marks,
    ) -> Result<Option<Refusal>, Problem> {
        let pending = |message| {
            Some(Refusal {
                phase: Phase::Pending,
                message,
                conditions: Vec::new(),
            })
        };
        match checks::before_the_lock(&self.checked(control, marks)).await? {
            Check::Passed => {}
            Check::Wait(message) => return Ok(pending(message)),
            Check::Terminal(message) => {
                return Ok(Some(Refusal {
                    phase: Phase::Failed,
                    message,
                    conditions: Vec::new(),
                }));
            }
        }
        let outcome = copy::trial(&self.requests, false).await?;
        let refused = outcome.total(Category::Refused);
        if refused > 0 {
            report::write(&self.requests, &self.namespace, &outcome, false).await?;
            let (named, place) = (
                listed(outcome.list(Category::Refused), refused),
                &self.namespace,
            );
            let (count, name) = (listing::counted(refused), report::NAME);
            return Ok(pending(format!(
                "{count} cannot be copied: {named}; see ConfigMap {place}/{name}"
            )));
        }
        if let Some(text) = refusal_to_write(
            ApiGroup::CrdV1,
            lock::check(&self.requests, control.uid()).await,
        )? {
            return Ok(pending(text));
        }
        control.add_finalizer(&self.requests).await?;
        match api_service::take_away(&self.requests, control).await {
            Err(Problem::Refused { text, .. }) => return Ok(pending(text)),
            taken => taken?,
        }
        if let Some(text) = copies_in_use(&self.requests).await? {
            return Ok(pending(text));
        }
        let outcome = copy::trial(&self.requests, true).await?;
        let refusal = refusal_of(&outcome);
        if refusal.is_some() {
            report::write(&self.requests, &self.namespace, &outcome, true).await?;
            return Ok(refusal);
        }
        if let Some(text) = refusal_to_write(
            ApiGroup::V3,
            v3_access::check(&self.requests, control.uid()).await,
        )? {
            return Ok(pending(text));
        }
        // A person may have asked for a dry run or deleted the object during the checks.
        control.read_again(&self.requests).await?;
        if control.annotation(DRY_RUN).is_some() {
            return Err(Problem::Lost);
        }
        match lock::lock(&self.requests, control.uid()).await {
            Ok(true) => Ok(None),
            Ok(false) => Ok(pending(checks::V1_IS_LOCKED.to_owned())),
            // Admission may refuse a write that it accepts in a dry run.
            Err(problem) => Ok(refusal_to_write(ApiGroup::CrdV1, Err(problem))?.and_then(pending)),
        }
    }

    /// Reports the refusal, and restores an aggregated API server.
    async fn refuse(&mut self, control: &mut Control, refusal: Refusal) -> Result<(), Problem> {
        self.give_back_unused(control).await?;
        let Refusal {
            phase,
            message,
            conditions,
        } = refusal;
        control
            .write_status(&self.requests, |status| {
                (status.phase, status.message) = (phase, message);
                set_conflicts(status, conditions);
            })
            .await
    }
}

/// Returns the pause after checks that began at this time and did not pass.
fn pause_after(began: Instant) -> Next {
    Next::After((PAUSE_PER_CHECK * began.elapsed()).clamp(WAITING, IDLE))
}

/// Returns the reason not to migrate beside copies of a former migration that programs may use.
///
/// # Errors
/// [`Problem::Lost`] if a former migration has opened v3, which an aggregated API server may have
/// hidden until now.
async fn copies_in_use(requests: &Requests) -> Result<Option<String>, Problem> {
    let information = requests.get(&cluster_information(ApiGroup::V3)).await?;
    match V3Access::of(information.as_ref()) {
        V3Access::Open | V3Access::MarkedAndLocked => return Err(Problem::Lost),
        V3Access::Missing | V3Access::Closed | V3Access::UnmarkedAndLocked => return Ok(None),
        V3Access::Unmarked => {}
    }
    let copies = copy::count_copies(requests).await?;
    Ok((copies > 0)
        .then(|| format!("{IN_USE} {copies} blocks, affinities, handles or settings. {WAY_OUT}")))
}

/// Returns the reason why the API server does not let the migration write the ClusterInformation of
/// a group.
fn refusal_to_write(
    group: ApiGroup,
    written: Result<(), Problem>,
) -> Result<Option<String>, Problem> {
    match written {
        Ok(()) => Ok(None),
        Err(Problem::Refused { text, .. }) => Ok(Some(format!(
            "{} refuses ClusterInformation/default: {text}",
            group.api_version()
        ))),
        Err(problem) => Err(problem),
    }
}

/// Returns the refusal for a trial with conflicts or refused objects. v1 is not locked while the
/// migration waits for a person (MIG-62).
fn refusal_of(outcome: &Outcome) -> Option<Refusal> {
    let (conflicts, refused) = (
        outcome.total(Category::Conflict),
        outcome.total(Category::Refused),
    );
    if conflicts > 0 {
        return Some(Refusal {
            phase: Phase::WaitingForConflictResolution,
            message: format!(
                "{}; the datastore is not locked",
                conflict_message(conflicts)
            ),
            conditions: conditions_of(outcome),
        });
    }
    let (named, count) = (
        listed(outcome.list(Category::Refused), refused),
        listing::counted(refused),
    );
    let message = format!("projectcalico.org/v3 refuses {count}: {named}");
    (refused > 0).then(|| Refusal {
        phase: Phase::Pending,
        message,
        conditions: Vec::new(),
    })
}

pub(super) fn conflict_message(conflicts: usize) -> String {
    format!("resolve {conflicts} resource conflicts to let the migration continue")
}

/// Returns upstream's conditions for the conflicts of an outcome (MIG-67).
pub(super) fn conditions_of(outcome: &Outcome) -> Vec<Value> {
    let names = outcome
        .list(Category::Conflict)
        .iter()
        .map(|named| named.object.as_str());
    conflict_conditions(
        names,
        outcome.total(Category::Conflict),
        OffsetDateTime::now_utc(),
    )
}

/// Returns the first objects with their reasons, and the number of the others.
pub(super) fn listed(named: &[Named], total: usize) -> String {
    let short = |reason: &str| reason.chars().take(LONGEST_REASON).collect::<String>();
    let mut texts: Vec<String> = named
        .iter()
        .take(MOST_NAMED)
        .map(|named| format!("{}: {}", named.object, short(&named.reason)))
        .collect();
    let others = total.saturating_sub(texts.len());
    if others > 0 {
        texts.push(format!("and {others} more"));
    }
    texts.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(conflicts: usize, refused: usize) -> Outcome {
        let mut outcome = Outcome::default();
        for (category, count) in [
            (Category::Conflict, conflicts),
            (Category::Refused, refused),
        ] {
            for number in 0..count {
                outcome.add(
                    "Tier",
                    category,
                    format!("Tier/t{number}"),
                    &"r".repeat(300),
                );
            }
        }
        outcome
    }

    #[test]
    fn conflicts_and_refused_objects_forbid_the_lock() {
        assert!(refusal_of(&outcome(0, 0)).is_none());
        let conflict = refusal_of(&outcome(40, 1)).unwrap();
        assert_eq!(conflict.phase, Phase::WaitingForConflictResolution);
        assert_eq!(conflict.conditions.len(), 33);
        let expected = "resolve 40 resource conflicts to let the migration continue; the datastore \
                        is not locked";
        assert_eq!(conflict.message, expected);
        let refused = refusal_of(&outcome(0, 1)).unwrap();
        assert_eq!(refused.phase, Phase::Pending);
        let expected = format!(
            "projectcalico.org/v3 refuses 1 object: Tier/t0: {}",
            "r".repeat(LONGEST_REASON)
        );
        assert_eq!(refused.message, expected);
        let refused = refusal_of(&outcome(0, 2)).unwrap();
        assert!(
            refused.message.contains(" refuses 2 objects: Tier/t0: "),
            "{}",
            refused.message
        );
    }

    #[test]
    fn long_lists_end_with_the_number_of_the_others() {
        let text = listed(outcome(0, 20).list(Category::Refused), 3000);
        assert!(text.ends_with("; and 2992 more"), "{text}");
        assert_eq!(text.matches("Tier/").count(), MOST_NAMED);
    }
}

//! The end of a migration: the wait for all programs, and the deletion of the definitions of v1
//! (MIG-63, MIG-70).

use libcalico::kubernetes::{ApiGroup, Location, Preconditions};
use libcalico::migration::{Phase, cluster_information, condition, definition_name, moved_kinds};
use serde_json::Value;
use time::OffsetDateTime;

use super::checks::{Check, DEFINITIONS};
use super::object::{Control, set_condition};
use super::requests::{Problem, Requests};

/// Upstream's texts.
const CONVERGED: &str = "Waiting for components to switch to v3 API group";
const COMPLETE: &str = "Migration complete";
const DELETION_PENDING: &str =
    "Deletion pending: migration is Converged and cannot be rolled back. Waiting for completion.";
const CLEANING_UP: &str = "Cleaning up v1 CRDs";

/// Reports that v3 is open, and for how long v1 was locked before.
pub(super) async fn report_open(requests: &Requests, control: &mut Control) -> Result<(), Problem> {
    if control.status.phase == Phase::Converged {
        return Ok(());
    }
    let now = OffsetDateTime::now_utc();
    let message = blocked_for(control.status.datastore_locked_at, now);
    tracing::info!("migration: v3 is open; {message}");
    control
        .write_status(requests, |status| {
            status.phase = Phase::Converged;
            CONVERGED.clone_into(&mut status.message);
            status.conditions.clear();
            set_condition(
                status,
                condition("PodsBlocked", false, "V3Opened", &message, now),
            );
        })
        .await
}

/// Reports that v1 is not locked any more, and for how long v1 was locked.
pub(super) async fn report_unlocked(
    requests: &Requests,
    control: &mut Control,
) -> Result<(), Problem> {
    let locked_at = control.status.datastore_locked_at;
    if locked_at.is_none() {
        return Ok(());
    }
    let now = OffsetDateTime::now_utc();
    control
        .write_status(requests, |status| {
            status.datastore_locked_at = None;
            set_condition(
                status,
                condition(
                    "PodsBlocked",
                    false,
                    "Unlocked",
                    &blocked_for(locked_at, now),
                    now,
                ),
            );
        })
        .await
}

fn blocked_for(locked_at: Option<OffsetDateTime>, now: OffsetDateTime) -> String {
    let locked = locked_at.map(|time| now - time).unwrap_or_default();
    format!(
        "no pod could start or end for {} s",
        locked.whole_seconds().max(0)
    )
}

/// Sets the phase `Complete` if the check finds that all programs use v3. Returns false if it does
/// not.
pub(super) async fn finish(
    requests: &Requests,
    control: &mut Control,
    check: Check,
) -> Result<bool, Problem> {
    match check {
        Check::Passed => {
            control
                .write_status(requests, |status| {
                    status.phase = Phase::Complete;
                    COMPLETE.clone_into(&mut status.message);
                    status.completed_at = status
                        .completed_at
                        .or_else(|| Some(OffsetDateTime::now_utc()));
                })
                .await?;
            // The process that opened v3 has ended, and its metrics with it.
            if let Some(metrics) = control.metrics() {
                metrics.observe_duration(&control.status);
            }
            Ok(true)
        }
        Check::Wait(text) | Check::Terminal(text) => {
            let text = if control.is_being_deleted() {
                format!("{DELETION_PENDING} {text}")
            } else {
                text
            };
            control.report(requests, Phase::Converged, &text).await?;
            Ok(false)
        }
    }
}

/// Deletes the definitions of v1 with all their objects, and then lets the API server remove the
/// controlling object. Returns false, and deletes nothing, if the check finds a program that still
/// uses v1.
pub(super) async fn remove_v1(
    requests: &Requests,
    control: &mut Control,
    check: Check,
) -> Result<bool, Problem> {
    if let Check::Wait(text) | Check::Terminal(text) = check {
        control.report(requests, Phase::Complete, &text).await?;
        return Ok(false);
    }
    control
        .report(requests, Phase::Complete, CLEANING_UP)
        .await?;
    let names = definitions_of_v1();
    report_others(requests, &names).await?;
    for name in &names {
        requests
            .delete(
                &Location::global(DEFINITIONS, name),
                &Preconditions::default(),
            )
            .await?;
    }
    tracing::info!(
        "migration: the definitions of {} are deleted",
        ApiGroup::CrdV1.name()
    );
    control.remove_finalizer(requests).await?;
    Ok(true)
}

/// Returns the names of the definitions that a migration has replaced.
fn definitions_of_v1() -> Vec<String> {
    let information = cluster_information(ApiGroup::CrdV1).resource;
    let mut names: Vec<String> = moved_kinds()
        .iter()
        .map(|kind| definition_name(&kind.v1))
        .collect();
    // The lock of v1 stays until then (MIG-60), and goes last: without it, an interrupted deletion
    // would leave an unlocked v1.
    names.push(definition_name(&information));
    names
}

/// Logs the definitions of other kinds of v1's group. They stay, and so do their objects.
async fn report_others(requests: &Requests, removed: &[String]) -> Result<(), Problem> {
    let suffix = format!(".{}", ApiGroup::CrdV1.name());
    let mut others = Vec::new();
    requests
        .pages(&DEFINITIONS, true, async |page: Vec<Value>| {
            let names = page
                .iter()
                .filter_map(|definition| definition["metadata"]["name"].as_str());
            others.extend(
                names
                    .filter(|name| name.ends_with(&suffix))
                    .map(str::to_owned),
            );
            Ok(())
        })
        .await?;
    others.retain(|name| !removed.contains(name));
    if !others.is_empty() {
        tracing::warn!(
            definitions = others.join(", "),
            "migration: definitions of other kinds stay"
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn definitions_to_delete_are_those_of_v1_and_the_lock_is_the_last() {
        let names = definitions_of_v1();
        assert_eq!(names.len(), 22);
        assert!(
            names
                .iter()
                .all(|name| name.ends_with(".crd.projectcalico.org")),
            "{names:?}"
        );
        assert_eq!(
            names.last().map(String::as_str),
            Some("clusterinformations.crd.projectcalico.org")
        );
    }
}

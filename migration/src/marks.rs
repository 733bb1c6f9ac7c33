//! [`Marks`]: the objects that show the state of a migration. [`next_step`]: the step that follows
//! from them.
//!
//! Each mark is written by compare-and-swap, and the phase of the controlling object only reports
//! the step. So a process can take over after any request of another process. The migration is
//! irrevocable as soon as the ClusterInformation of v3 is ready and marked: the plugins then use
//! v3. The lock of v1 is confirmed just before, and shows that v3 may have been open even after the
//! ClusterInformation of v3 is lost.

use libcalico::kubernetes::ApiGroup;
use libcalico::migration::{
    DRY_RUN, LOCKED_BY, MIGRATED_BY, Phase, V1_LOCKED_BY, cluster_information,
};
use serde_json::{Map, Value};

use super::api_service;
use super::object::Control;
use super::requests::{Problem, Requests};

/// The annotation of a ClusterInformation under a migration, with its former resourceVersion. Each
/// process writes another value, so that a late request of a former leader names an old
/// resourceVersion, and fails.
///
/// The request that opens v3 replaces the annotation of v3 by the mark `migrated-by` or
/// `locked-by`, by which plugins decide. So a ClusterInformation of v3 with the annotation was
/// never open, even if another program has set it ready, and a lock of v3 without the annotation
/// belongs to another program, and pods may use the copies.
///
/// v1 gets the annotation just before v3 is opened, and keeps it until v1 is unlocked: see
/// [`V1Lock::Confirmed`].
pub(super) const ATTEMPT: &str = "migration.projectcalico.org/attempt";

/// The annotation of a ClusterInformation of v3 that a migration has created and not opened yet,
/// with the uid of the migration.
pub(super) const CREATED_BY: &str = "migration.projectcalico.org/created-by";

/// The lock of v1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum V1Lock {
    /// v1 is ready: pods start and end in v1.
    Unlocked,
    /// A migration has locked v1, and has not opened v3.
    ByMigration,
    /// A migration has locked v1, and may have opened v3.
    Confirmed,
    /// A person or another program has locked v1.
    ByOthers,
    /// The ClusterInformation or its definition is missing.
    Missing,
}

/// The access of programs to v3, as its ClusterInformation shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum V3Access {
    /// Missing, or hidden by an aggregated API server.
    Missing,
    /// Ready, and not part of a migration yet.
    Unmarked,
    /// Under a migration of this program, and not opened yet. Plugins do not use v3, even if
    /// another program has set the object ready.
    Closed,
    /// Opened by a migration.
    Open,
    /// Marked, and locked by another program: after a migration had opened v3, or by upstream's
    /// migration.
    MarkedAndLocked,
    /// Locked, and not by a migration.
    UnmarkedAndLocked,
}

/// The state of a migration, as the API server shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Marks {
    pub(super) v1: V1Lock,
    pub(super) v3: V3Access,
    pub(super) finalizer: bool,
    /// True if an aggregated API server serves v3, and hides the ClusterInformation of v3.
    pub(super) is_aggregated: bool,
}

/// The work of a pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MigrationStep {
    /// The object is being deleted, and this program has no part in it.
    Ignore,
    /// Lists the outcome of a migration without any change.
    DryRun,
    /// Checks the cluster, locks v1, and goes on with `Copy`.
    Check,
    /// Removes the aggregated API server, which hides the objects of v3, from a migration under
    /// way.
    Uncover,
    /// Copies the objects under the lock, and opens v3.
    Copy,
    /// Unlocks v1 after a failure.
    Release,
    /// Gives back v3, after a process was interrupted when it had unlocked v1.
    GiveBack,
    /// Ends this process, which uses v1, after v3 was opened.
    Converge,
    /// Waits until all programs use v3.
    Finish,
    /// The migration does nothing until the object is deleted.
    Rest,
    /// Deletes the definitions of v1.
    RemoveV1,
    /// Restores the state before the migration.
    Abort,
    /// Waits for a person, because the objects contradict each other.
    Hold(&'static str),
}

const TWO_DATASTORES: &str = "v1 is not locked; two datastores are in use. If pods use v3, lock \
                              v1: set spec.datastoreReady of ClusterInformation default in \
                              crd.projectcalico.org/v1 to false; otherwise delete \
                              ClusterInformation default of projectcalico.org/v3";
/// The message for a migration that has opened v3 itself, so that pods use v3.
const V1_UNLOCKED: &str = "v1 is not locked; two datastores are in use. Lock v1: set \
                           spec.datastoreReady of ClusterInformation default in \
                           crd.projectcalico.org/v1 to false";
const LOCKED: &str = "ClusterInformation default of projectcalico.org/v3 is marked and locked, and \
                      not by this migration. If pods use v3, set its spec.datastoreReady to true; \
                      if v3 was never open, delete it";
const NOT_OPEN: &str = "projectcalico.org/v3 is in use, but its ClusterInformation default is \
                        missing, locked, hidden by an aggregated API server, or lacks the \
                        annotation migration.projectcalico.org/migrated-by; restore it";
const LOST: &str = "projectcalico.org/v3 may have been open, but its ClusterInformation default is \
                    missing or has lost its annotations. If pods use v3, restore it with \
                    spec.datastoreReady true and the annotation \
                    migration.projectcalico.org/migrated-by; if no pod has used v3, remove the \
                    annotation migration.projectcalico.org/attempt of ClusterInformation default \
                    in crd.projectcalico.org/v1, also where its annotation \
                    projectcalico.org/metadata contains that annotation";

impl Marks {
    /// Reads the ClusterInformation of both groups, and that of v3 only if no aggregated API server
    /// hides it.
    pub(super) async fn read(requests: &Requests, control: &Control) -> Result<Self, Problem> {
        let v1 = requests.get(&cluster_information(ApiGroup::CrdV1)).await?;
        let is_aggregated = api_service::aggregated(requests).await?.is_some();
        let v3 = if is_aggregated {
            None
        } else {
            requests.get(&cluster_information(ApiGroup::V3)).await?
        };
        Ok(Marks {
            v1: V1Lock::of(v1.as_ref()),
            v3: V3Access::of(v3.as_ref()),
            finalizer: control.has_finalizer(),
            is_aggregated,
        })
    }
}

impl V1Lock {
    /// Returns the lock that a ClusterInformation of v1 shows. The mark of a deleted object's
    /// migration counts too: the object that was created after it continues that migration.
    pub(super) fn of(information: Option<&Value>) -> Self {
        match information {
            None => V1Lock::Missing,
            Some(information) if is_ready(information) => V1Lock::Unlocked,
            Some(information) if !has_mark(information, V1_LOCKED_BY) => V1Lock::ByOthers,
            Some(information) if has_mark(information, ATTEMPT) => V1Lock::Confirmed,
            Some(_) => V1Lock::ByMigration,
        }
    }

    /// Returns true if a migration has locked v1.
    pub(super) fn is_by_migration(self) -> bool {
        matches!(self, V1Lock::ByMigration | V1Lock::Confirmed)
    }
}

impl V3Access {
    /// Returns the state that a ClusterInformation of v3 shows.
    pub(super) fn of(information: Option<&Value>) -> Self {
        let Some(information) = information else {
            return V3Access::Missing;
        };
        let is_marked = [MIGRATED_BY, LOCKED_BY]
            .iter()
            .any(|mark| has_mark(information, mark));
        match (is_marked, is_ready(information)) {
            (true, true) => V3Access::Open,
            (true, false) => V3Access::MarkedAndLocked,
            (false, _) if has_mark(information, ATTEMPT) => V3Access::Closed,
            (false, true) => V3Access::Unmarked,
            (false, false) => V3Access::UnmarkedAndLocked,
        }
    }
}

/// Returns true if the plugins may use the group of this ClusterInformation.
fn is_ready(information: &Value) -> bool {
    information["spec"]["datastoreReady"] == true
}

/// Sets whether programs may use the group of this ClusterInformation.
pub(super) fn set_ready(information: &mut Value, is_ready: bool) {
    if !information["spec"].is_object() {
        information["spec"] = Value::Object(Map::new());
    }
    information["spec"]["datastoreReady"] = is_ready.into();
}

/// Returns true if the object has the annotation `mark`.
pub(super) fn has_mark(information: &Value, mark: &str) -> bool {
    information["metadata"]["annotations"][mark].is_string()
}

/// Returns the step that follows from the marks. `used` is the group that this process uses.
pub(super) fn next_step(marks: &Marks, control: &Control, used: ApiGroup) -> MigrationStep {
    use MigrationStep::{
        Abort, Check, Converge, Copy, DryRun, Finish, GiveBack, Hold, Ignore, Release, RemoveV1,
        Rest, Uncover,
    };
    let (is_deleted, phase) = (control.is_being_deleted(), control.status.phase);
    match (marks.v3, phase) {
        _ if is_deleted && !marks.finalizer => Ignore,
        (V3Access::MarkedAndLocked, _) => Hold(LOCKED),
        (V3Access::Open, Phase::Converged | Phase::Complete) if marks.v1 == V1Lock::Unlocked => {
            Hold(V1_UNLOCKED)
        }
        (V3Access::Open, _) if marks.v1 == V1Lock::Unlocked => Hold(TWO_DATASTORES),
        (V3Access::Open, Phase::Complete) if is_deleted => RemoveV1,
        (V3Access::Open, Phase::Complete) => Rest,
        (V3Access::Open, _) if used != ApiGroup::V3 => Converge,
        (V3Access::Open, _) => Finish,
        (_, Phase::Converged | Phase::Complete) => Hold(NOT_OPEN),
        // Another program has restored the APIService under the lock. The state of v3 is unknown
        // until the APIService is gone again.
        _ if marks.v1.is_by_migration() && marks.is_aggregated => Uncover,
        // Only a v3 that is still closed was never open.
        (v3, _) if marks.v1 == V1Lock::Confirmed && v3 != V3Access::Closed => Hold(LOST),
        _ if is_deleted => Abort,
        (_, Phase::Failed) if marks.v1.is_by_migration() => Release,
        (V3Access::Closed, _) if marks.v1 == V1Lock::Unlocked => GiveBack,
        (_, Phase::Failed) => Rest,
        _ if marks.v1.is_by_migration() => Copy,
        _ if control.annotation(DRY_RUN).is_some() => DryRun,
        _ => Check,
    }
}

#[cfg(test)]
mod tests;

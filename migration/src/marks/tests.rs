use libcalico::kubernetes::Location;
use libcalico::migration::{DATASTORE_MIGRATIONS, FINALIZER, MIGRATION_NAME};
use serde_json::json;

use super::*;

const V1: ApiGroup = ApiGroup::CrdV1;
const V3: ApiGroup = ApiGroup::V3;

fn control(phase: &str, is_deleted: bool) -> Control {
    let mut metadata = json!({ "name": MIGRATION_NAME, "finalizers": [FINALIZER] });
    if is_deleted {
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    }
    let value = json!({ "metadata": metadata, "status": { "phase": phase } });
    Control::of(
        Location::global(DATASTORE_MIGRATIONS, MIGRATION_NAME),
        value,
    )
}

fn marks(v1: V1Lock, v3: V3Access) -> Marks {
    Marks {
        v1,
        v3,
        finalizer: true,
        is_aggregated: false,
    }
}

fn step(v1: V1Lock, v3: V3Access, phase: &str, is_deleted: bool, used: ApiGroup) -> MigrationStep {
    next_step(&marks(v1, v3), &control(phase, is_deleted), used)
}

#[test]
fn lock_and_access_are_read_from_readiness_and_marks() {
    let information = |is_ready: bool, mark: Option<&str>| {
        let mut metadata = json!({});
        if let Some(mark) = mark {
            metadata["annotations"][mark] = "u".into();
        }
        json!({ "metadata": metadata, "spec": { "datastoreReady": is_ready } })
    };
    let v1 = |is_ready, mark| V1Lock::of(Some(&information(is_ready, mark)));
    assert_eq!(V1Lock::of(None), V1Lock::Missing);
    assert_eq!(
        [v1(true, None), v1(true, Some(V1_LOCKED_BY))],
        [V1Lock::Unlocked, V1Lock::Unlocked]
    );
    assert_eq!(
        [v1(false, None), v1(false, Some(V1_LOCKED_BY))],
        [V1Lock::ByOthers, V1Lock::ByMigration]
    );
    let mut confirmed = information(false, Some(V1_LOCKED_BY));
    confirmed["metadata"]["annotations"][ATTEMPT] = "7".into();
    assert_eq!(V1Lock::of(Some(&confirmed)), V1Lock::Confirmed);

    let v3 = |is_ready, mark| V3Access::of(Some(&information(is_ready, mark)));
    assert_eq!(V3Access::of(None), V3Access::Missing);
    assert_eq!(
        [v3(true, None), v3(false, None)],
        [V3Access::Unmarked, V3Access::UnmarkedAndLocked]
    );
    for mark in [MIGRATED_BY, LOCKED_BY] {
        assert_eq!(
            [v3(true, Some(mark)), v3(false, Some(mark))],
            [V3Access::Open, V3Access::MarkedAndLocked],
            "{mark}"
        );
    }
    // Another program may set the field.
    assert_eq!(
        [v3(true, Some(ATTEMPT)), v3(false, Some(ATTEMPT))],
        [V3Access::Closed, V3Access::Closed]
    );
}

/// An old definition may have no schema.
#[test]
fn information_without_a_valid_spec_is_not_ready_and_can_be_locked() {
    for spec in [
        json!(null),
        json!("text"),
        json!([1]),
        json!({ "datastoreReady": "true" }),
    ] {
        let mut information = json!({ "metadata": {}, "spec": spec });
        assert!(!is_ready(&information), "{information}");
        for ready in [true, false] {
            set_ready(&mut information, ready);
            assert_eq!(information["spec"], json!({ "datastoreReady": ready }));
            assert_eq!(is_ready(&information), ready);
        }
    }
}

#[test]
fn step_before_v3_is_open_follows_the_lock_and_not_the_phase() {
    for phase in [
        "",
        "Pending",
        "Migrating",
        "WaitingForConflictResolution",
        "a later phase",
    ] {
        for v3 in [
            V3Access::Missing,
            V3Access::Unmarked,
            V3Access::Closed,
            V3Access::UnmarkedAndLocked,
        ] {
            for used in [V1, V3] {
                let of = |v1| step(v1, v3, phase, false, used);
                assert_eq!(
                    of(V1Lock::ByMigration),
                    MigrationStep::Copy,
                    "{phase} {v3:?}"
                );
                let unlocked = if v3 == V3Access::Closed {
                    MigrationStep::GiveBack
                } else {
                    MigrationStep::Check
                };
                assert_eq!(of(V1Lock::Unlocked), unlocked, "{phase} {v3:?}");
                for v1 in [V1Lock::ByOthers, V1Lock::Missing] {
                    assert_eq!(of(v1), MigrationStep::Check, "{phase} {v3:?} {v1:?}");
                }
            }
        }
    }
    assert_eq!(
        step(V1Lock::ByMigration, V3Access::Closed, "Failed", false, V1),
        MigrationStep::Release
    );
    assert_eq!(
        step(V1Lock::Unlocked, V3Access::Closed, "Failed", false, V1),
        MigrationStep::GiveBack
    );
    assert_eq!(
        step(V1Lock::Unlocked, V3Access::Missing, "Failed", false, V1),
        MigrationStep::Rest
    );
}

/// The object may be new, and its phase says nothing then.
#[test]
fn lock_for_a_v3_that_may_have_been_open_is_kept_unless_v3_is_closed() {
    for phase in [
        "",
        "Pending",
        "Migrating",
        "WaitingForConflictResolution",
        "Failed",
    ] {
        for is_deleted in [false, true] {
            let of = |v3| step(V1Lock::Confirmed, v3, phase, is_deleted, V1);
            for v3 in [
                V3Access::Missing,
                V3Access::Unmarked,
                V3Access::UnmarkedAndLocked,
            ] {
                assert_eq!(of(v3), MigrationStep::Hold(LOST), "{phase} {v3:?}");
            }
            let expected = match (is_deleted, phase) {
                (true, _) => MigrationStep::Abort,
                (false, "Failed") => MigrationStep::Release,
                (false, _) => MigrationStep::Copy,
            };
            assert_eq!(of(V3Access::Closed), expected, "{phase}");
            assert_eq!(of(V3Access::Open), MigrationStep::Converge, "{phase}");
        }
    }
}

/// The status may be lost: a person may have removed the object with its finalizer, and created it
/// again.
#[test]
fn locked_v3_that_was_open_is_neither_copied_to_nor_given_up() {
    for phase in [
        "",
        "Pending",
        "Migrating",
        "WaitingForConflictResolution",
        "Failed",
        "Converged",
        "Complete",
    ] {
        for is_deleted in [false, true] {
            for v1 in [
                V1Lock::Unlocked,
                V1Lock::ByMigration,
                V1Lock::Confirmed,
                V1Lock::ByOthers,
                V1Lock::Missing,
            ] {
                let step = step(v1, V3Access::MarkedAndLocked, phase, is_deleted, V3);
                assert_eq!(step, MigrationStep::Hold(LOCKED), "{phase} {v1:?}");
            }
        }
    }
}

#[test]
fn deletion_aborts_before_v3_is_open_and_never_after() {
    for phase in [
        "",
        "Pending",
        "Migrating",
        "WaitingForConflictResolution",
        "Failed",
    ] {
        for v1 in [
            V1Lock::Unlocked,
            V1Lock::ByMigration,
            V1Lock::ByOthers,
            V1Lock::Missing,
        ] {
            for v3 in [
                V3Access::Missing,
                V3Access::Unmarked,
                V3Access::Closed,
                V3Access::UnmarkedAndLocked,
            ] {
                assert_eq!(
                    step(v1, v3, phase, true, V1),
                    MigrationStep::Abort,
                    "{phase} {v1:?} {v3:?}"
                );
            }
        }
    }
    for phase in ["", "Pending", "Migrating", "Failed", "Converged"] {
        assert_eq!(
            step(V1Lock::ByMigration, V3Access::Open, phase, true, V1),
            MigrationStep::Converge,
            "{phase}"
        );
        assert_eq!(
            step(V1Lock::ByMigration, V3Access::Open, phase, true, V3),
            MigrationStep::Finish,
            "{phase}"
        );
    }
    for v1 in [
        V1Lock::ByMigration,
        V1Lock::Confirmed,
        V1Lock::ByOthers,
        V1Lock::Missing,
    ] {
        assert_eq!(
            step(v1, V3Access::Open, "Complete", true, V3),
            MigrationStep::RemoveV1
        );
        assert_eq!(
            step(v1, V3Access::Open, "Complete", false, V3),
            MigrationStep::Rest
        );
    }
}

/// An administrator may lock v3 for other reasons after the migration.
#[test]
fn contradictory_marks_after_v3_was_open_hold_the_migration() {
    for phase in ["Converged", "Complete"] {
        for is_deleted in [false, true] {
            for v3 in [
                V3Access::Missing,
                V3Access::Unmarked,
                V3Access::Closed,
                V3Access::UnmarkedAndLocked,
            ] {
                let of = |v1| step(v1, v3, phase, is_deleted, V3);
                assert_eq!(
                    of(V1Lock::ByMigration),
                    MigrationStep::Hold(NOT_OPEN),
                    "{phase} {v3:?}"
                );
                assert_eq!(
                    of(V1Lock::Unlocked),
                    MigrationStep::Hold(NOT_OPEN),
                    "{phase} {v3:?}"
                );
            }
            let step = step(V1Lock::Unlocked, V3Access::Open, phase, is_deleted, V3);
            assert_eq!(step, MigrationStep::Hold(V1_UNLOCKED), "{phase}");
        }
    }
}

/// Only a v3 of a former migration may be unused. Without the ClusterInformation of a v3 in use, no
/// pod starts.
#[test]
fn deletion_of_v3_is_advised_only_if_a_former_migration_has_opened_v3() {
    let advice = "delete ClusterInformation default of projectcalico.org/v3";
    for (phase, is_advised) in [
        ("", true),
        ("Pending", true),
        ("Converged", false),
        ("Complete", false),
    ] {
        let step = step(V1Lock::Unlocked, V3Access::Open, phase, false, V3);
        let MigrationStep::Hold(message) = step else {
            panic!("{phase}: {step:?}")
        };
        assert!(
            message.starts_with("v1 is not locked; two datastores are in use. "),
            "{message}"
        );
        assert_eq!(message.contains(advice), is_advised, "{phase}");
    }
}

#[test]
fn deleted_object_without_the_finalizer_is_ignored() {
    let marks = Marks {
        finalizer: false,
        ..marks(V1Lock::ByMigration, V3Access::Closed)
    };
    assert_eq!(
        next_step(&marks, &control("Migrating", true), V1),
        MigrationStep::Ignore
    );
}

#[test]
fn aggregated_api_server_under_the_lock_is_removed_before_anything_else() {
    for is_deleted in [false, true] {
        let hidden = Marks {
            is_aggregated: true,
            ..marks(V1Lock::ByMigration, V3Access::Missing)
        };
        let confirmed = Marks {
            v1: V1Lock::Confirmed,
            ..hidden
        };
        for locked in [hidden, confirmed] {
            assert_eq!(
                next_step(&locked, &control("Migrating", is_deleted), V1),
                MigrationStep::Uncover
            );
        }
        let unlocked = Marks {
            v1: V1Lock::Unlocked,
            ..hidden
        };
        let expected = if is_deleted {
            MigrationStep::Abort
        } else {
            MigrationStep::Check
        };
        assert_eq!(
            next_step(&unlocked, &control("Pending", is_deleted), V1),
            expected
        );
    }
}

#[test]
fn dry_run_is_made_only_while_no_migration_has_locked_v1() {
    let value = json!({ "metadata": { "annotations": { DRY_RUN: "first" } } });
    let control = Control::of(
        Location::global(DATASTORE_MIGRATIONS, MIGRATION_NAME),
        value,
    );
    let of = |v1| next_step(&marks(v1, V3Access::Missing), &control, V1);
    assert_eq!(
        [of(V1Lock::Unlocked), of(V1Lock::ByMigration)],
        [MigrationStep::DryRun, MigrationStep::Copy]
    );
}

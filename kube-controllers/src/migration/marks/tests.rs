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

fn marks(v1: V1Lock, v3: Door) -> Marks {
    Marks {
        v1,
        v3,
        finalizer: true,
        is_aggregated: false,
    }
}

fn step(v1: V1Lock, v3: Door, phase: &str, is_deleted: bool, used: ApiGroup) -> MigrationStep {
    next_step(&marks(v1, v3), &control(phase, is_deleted), used)
}

#[test]
fn locks_and_doors_are_read_from_readiness_and_marks() {
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
        [V1Lock::Open, V1Lock::Open]
    );
    assert_eq!(
        [v1(false, None), v1(false, Some(V1_LOCKED_BY))],
        [V1Lock::Others, V1Lock::Ours]
    );
    let mut confirmed = information(false, Some(V1_LOCKED_BY));
    confirmed["metadata"]["annotations"][ATTEMPT] = "7".into();
    assert_eq!(V1Lock::of(Some(&confirmed)), V1Lock::Confirmed);

    let v3 = |is_ready, mark| Door::of(Some(&information(is_ready, mark)));
    assert_eq!(Door::of(None), Door::Absent);
    assert_eq!(
        [v3(true, None), v3(false, None)],
        [Door::Unmarked, Door::Foreign]
    );
    for mark in [MIGRATED_BY, LOCKED_BY] {
        assert_eq!(
            [v3(true, Some(mark)), v3(false, Some(mark))],
            [Door::Open, Door::Locked],
            "{mark}"
        );
    }
    // Another program may set the field.
    assert_eq!(
        [v3(true, Some(ATTEMPT)), v3(false, Some(ATTEMPT))],
        [Door::Shut, Door::Shut]
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
fn step_before_the_door_is_open_follows_the_lock_and_not_the_phase() {
    for phase in [
        "",
        "Pending",
        "Migrating",
        "WaitingForConflictResolution",
        "a later phase",
    ] {
        for door in [Door::Absent, Door::Unmarked, Door::Shut, Door::Foreign] {
            for used in [V1, V3] {
                let of = |v1| step(v1, door, phase, false, used);
                assert_eq!(of(V1Lock::Ours), MigrationStep::Copy, "{phase} {door:?}");
                let unlocked = if door == Door::Shut {
                    MigrationStep::Retreat
                } else {
                    MigrationStep::Check
                };
                assert_eq!(of(V1Lock::Open), unlocked, "{phase} {door:?}");
                for v1 in [V1Lock::Others, V1Lock::Missing] {
                    assert_eq!(of(v1), MigrationStep::Check, "{phase} {door:?} {v1:?}");
                }
            }
        }
    }
    assert_eq!(
        step(V1Lock::Ours, Door::Shut, "Failed", false, V1),
        MigrationStep::Release
    );
    assert_eq!(
        step(V1Lock::Open, Door::Shut, "Failed", false, V1),
        MigrationStep::Retreat
    );
    assert_eq!(
        step(V1Lock::Open, Door::Absent, "Failed", false, V1),
        MigrationStep::Rest
    );
}

/// The object may be new, and its phase says nothing then.
#[test]
fn lock_for_a_v3_that_may_have_been_open_is_kept_unless_the_door_is_shut() {
    for phase in [
        "",
        "Pending",
        "Migrating",
        "WaitingForConflictResolution",
        "Failed",
    ] {
        for is_deleted in [false, true] {
            let of = |door| step(V1Lock::Confirmed, door, phase, is_deleted, V1);
            for door in [Door::Absent, Door::Unmarked, Door::Foreign] {
                assert_eq!(of(door), MigrationStep::Hold(LOST), "{phase} {door:?}");
            }
            let expected = match (is_deleted, phase) {
                (true, _) => MigrationStep::Abort,
                (false, "Failed") => MigrationStep::Release,
                (false, _) => MigrationStep::Copy,
            };
            assert_eq!(of(Door::Shut), expected, "{phase}");
            assert_eq!(of(Door::Open), MigrationStep::Converge, "{phase}");
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
                V1Lock::Open,
                V1Lock::Ours,
                V1Lock::Confirmed,
                V1Lock::Others,
                V1Lock::Missing,
            ] {
                let step = step(v1, Door::Locked, phase, is_deleted, V3);
                assert_eq!(step, MigrationStep::Hold(LOCKED), "{phase} {v1:?}");
            }
        }
    }
}

#[test]
fn deletion_aborts_before_the_door_is_open_and_never_after() {
    for phase in [
        "",
        "Pending",
        "Migrating",
        "WaitingForConflictResolution",
        "Failed",
    ] {
        for v1 in [V1Lock::Open, V1Lock::Ours, V1Lock::Others, V1Lock::Missing] {
            for door in [Door::Absent, Door::Unmarked, Door::Shut, Door::Foreign] {
                assert_eq!(
                    step(v1, door, phase, true, V1),
                    MigrationStep::Abort,
                    "{phase} {v1:?} {door:?}"
                );
            }
        }
    }
    for phase in ["", "Pending", "Migrating", "Failed", "Converged"] {
        assert_eq!(
            step(V1Lock::Ours, Door::Open, phase, true, V1),
            MigrationStep::Converge,
            "{phase}"
        );
        assert_eq!(
            step(V1Lock::Ours, Door::Open, phase, true, V3),
            MigrationStep::Finish,
            "{phase}"
        );
    }
    for v1 in [
        V1Lock::Ours,
        V1Lock::Confirmed,
        V1Lock::Others,
        V1Lock::Missing,
    ] {
        assert_eq!(
            step(v1, Door::Open, "Complete", true, V3),
            MigrationStep::RemoveV1
        );
        assert_eq!(
            step(v1, Door::Open, "Complete", false, V3),
            MigrationStep::Rest
        );
    }
}

/// An administrator may lock v3 for other reasons after the migration.
#[test]
fn contradictory_marks_after_the_door_was_open_hold_the_migration() {
    for phase in ["Converged", "Complete"] {
        for is_deleted in [false, true] {
            for door in [Door::Absent, Door::Unmarked, Door::Shut, Door::Foreign] {
                let of = |v1| step(v1, door, phase, is_deleted, V3);
                assert_eq!(
                    of(V1Lock::Ours),
                    MigrationStep::Hold(NOT_OPEN),
                    "{phase} {door:?}"
                );
                assert_eq!(
                    of(V1Lock::Open),
                    MigrationStep::Hold(NOT_OPEN),
                    "{phase} {door:?}"
                );
            }
            let step = step(V1Lock::Open, Door::Open, phase, is_deleted, V3);
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
        let step = step(V1Lock::Open, Door::Open, phase, false, V3);
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
        ..marks(V1Lock::Ours, Door::Shut)
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
            ..marks(V1Lock::Ours, Door::Absent)
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
            v1: V1Lock::Open,
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
    let of = |v1| next_step(&marks(v1, Door::Absent), &control, V1);
    assert_eq!(
        [of(V1Lock::Open), of(V1Lock::Ours)],
        [MigrationStep::DryRun, MigrationStep::Copy]
    );
}

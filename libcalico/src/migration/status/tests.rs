use serde_json::json;
use time::macros::datetime;

use super::*;

const NOW: OffsetDateTime = datetime!(2026-08-22 06:33:20.5 UTC);

#[test]
fn status_has_upstreams_fields() {
    let mut progress = Progress::of(21);
    progress.add(KindProgress {
        kind: "Tier".into(),
        migrated: 3,
        skipped: 1,
        conflicts: 0,
    });
    progress.complete(1);
    progress.current_type = "IPPool".into();
    let status = MigrationStatus {
        phase: Phase::Migrating,
        message: "Migrating resources".into(),
        datastore_locked_at: Some(NOW),
        started_at: Some(NOW),
        progress,
        conditions: vec![condition(
            "PodsBlocked",
            true,
            "DatastoreLocked",
            "no pod starts",
            NOW,
        )],
        ..MigrationStatus::default()
    };
    let stored = json!({
        "phase": "Migrating", "message": "Migrating resources",
        "datastoreLockedAt": "2026-08-22T06:33:20Z", "startedAt": "2026-08-22T06:33:20Z",
        "progress": {
            "totalTypes": 21, "completedTypes": 1, "typeProgress": "1 / 21",
            "currentType": "IPPool",
            "total": 4, "migrated": 3, "skipped": 1, "conflicts": 0,
            "typeDetails": [{"kind": "Tier", "migrated": 3, "skipped": 1, "conflicts": 0}],
        },
        "conditions": [{"type": "PodsBlocked", "status": "True", "reason": "DatastoreLocked",
            "message": "no pod starts", "lastTransitionTime": "2026-08-22T06:33:20Z"}],
    });
    assert_eq!(serde_json::to_value(&status).unwrap(), stored);
    let read: MigrationStatus = serde_json::from_value(stored.clone()).unwrap();
    assert_eq!(read.started_at, Some(datetime!(2026-08-22 06:33:20 UTC)));
    assert_eq!(serde_json::to_value(&read).unwrap(), stored);
}

#[test]
fn status_of_a_new_object_is_the_default() {
    for stored in [
        json!({}),
        json!({"phase": ""}),
        json!({"phase": null}),
        json!({"phase": "Later", "future": 1}),
    ] {
        assert_eq!(
            serde_json::from_value::<MigrationStatus>(stored.clone()).unwrap(),
            MigrationStatus::default(),
            "{stored}"
        );
    }
    let odd = json!({
        "startedAt": "today", "datastoreLockedAt": null,
        "completedAt": "2026-08-22T08:33:20.25+02:00",
    });
    let read: MigrationStatus = serde_json::from_value(odd).unwrap();
    assert_eq!((read.started_at, read.datastore_locked_at), (None, None));
    assert_eq!(
        read.completed_at,
        Some(datetime!(2026-08-22 06:33:20.25 UTC))
    );
}

#[test]
fn long_message_is_cut_when_written() {
    for (length, written) in [(1024, 1024), (1025, 1024), (100_000, 1024)] {
        let status = MigrationStatus {
            message: "ä".repeat(length),
            ..MigrationStatus::default()
        };
        let stored = serde_json::to_value(&status).unwrap();
        let message = stored["message"].as_str().unwrap();
        assert_eq!(message.chars().count(), written);
        assert_eq!(message.ends_with('…'), length > written);
    }
}

#[test]
fn conflicts_beyond_the_limit_are_counted() {
    for (total, last) in [
        (32, "Tier/t31: v3 resource exists with different spec"),
        (33, "1 more conflict not shown"),
        (40, "8 more conflicts not shown"),
    ] {
        let names: Vec<String> = (0..total).map(|number| format!("Tier/t{number}")).collect();
        let conditions = conflict_conditions(names.iter().map(String::as_str), total, NOW);
        assert_eq!(conditions.last().unwrap()["message"], last);
        assert_eq!(
            conditions
                .iter()
                .filter(|condition| condition["reason"] == "ResourceMismatch")
                .count(),
            32
        );
        assert!(
            conditions
                .iter()
                .all(|condition| condition["type"] == "Conflict")
        );
    }
    assert!(conflict_conditions([], 0, NOW).is_empty());
}

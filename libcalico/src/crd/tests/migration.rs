//! Tests of the definition of DatastoreMigration.

use serde_json::{Value, json};
use time::macros::datetime;

use super::super::migration::datastore_migration;
use super::api_server::{dropped, refusals};
use crate::migration::{
    KindProgress, MigrationStatus, Phase, Progress, conflict_conditions, moved_kinds,
};

fn schema() -> Value {
    datastore_migration()["spec"]["versions"][0]["schema"]["openAPIV3Schema"].clone()
}

fn refused(status: Value) -> Vec<String> {
    let object = json!({
        "metadata": {"name": "v1-to-v3"}, "spec": {"type": "APIServerToCRDs"}, "status": status,
    });
    refusals(&schema(), &object)
}

#[test]
fn written_status_is_stored_completely() {
    let now = datetime!(2026-08-22 06:33:20 UTC);
    let mut progress = Progress::of(21);
    for kind in moved_kinds() {
        let kind = kind.v3.kind.to_owned();
        progress.current_type.clone_from(&kind);
        progress.add(KindProgress {
            kind,
            migrated: 1,
            skipped: 2,
            conflicts: 3,
        });
    }
    let names: Vec<String> = (0..100)
        .map(|number| format!("NetworkPolicy/{}/p{number}", "n".repeat(253)))
        .collect();
    for phase in [
        Phase::Pending,
        Phase::Migrating,
        Phase::WaitingForConflictResolution,
        Phase::Converged,
        Phase::Complete,
        Phase::Failed,
    ] {
        let status = MigrationStatus {
            phase,
            message: "m".repeat(5000),
            datastore_locked_at: Some(now),
            started_at: Some(now),
            completed_at: Some(now),
            progress: progress.clone(),
            conditions: conflict_conditions(names.iter().map(String::as_str), names.len(), now),
        };
        let status = serde_json::to_value(&status).unwrap();
        assert_eq!(refused(status.clone()), [""; 0]);
        assert_eq!(dropped(&schema()["properties"]["status"], &status), [""; 0]);
    }
    assert_eq!(
        refused(serde_json::to_value(MigrationStatus::default()).unwrap()),
        [""; 0]
    );
}

#[test]
fn invalid_migration_is_refused() {
    let schema = schema();
    for (object, refusal) in [
        (json!({}), ": required"),
        (json!({"spec": {}}), ".spec: required"),
        (json!({"spec": {"type": "Other"}}), ".spec.type: enum"),
    ] {
        assert_eq!(refusals(&schema, &object), [refusal], "{object}");
    }
    for (status, refusal) in [
        (json!({"phase": "Done"}), ".status.phase: enum"),
        (
            json!({"message": "m".repeat(1025)}),
            ".status.message: maxLength",
        ),
        (json!({"startedAt": "now"}), ".status.startedAt: format"),
        (
            json!({"progress": {"typeDetails": [{"migrated": 1}]}}),
            ".status.progress.typeDetails[0]: required",
        ),
        (
            json!({"conditions": vec![json!({"type": "Conflict"}); 65]}),
            ".status.conditions: maxItems",
        ),
    ] {
        assert!(
            refused(status.clone()).contains(&refusal.to_owned()),
            "{refusal}: {:?}",
            refused(status)
        );
    }
}

/// An object that upstream's controller of an older version made is of `v1beta1`.
#[test]
fn both_versions_of_the_definition_have_upstreams_columns() {
    let definition = datastore_migration();
    let versions = definition["spec"]["versions"].as_array().unwrap();
    let named: Vec<_> = versions
        .iter()
        .map(|version| (&version["name"], &version["storage"]))
        .collect();
    assert_eq!(
        named,
        [
            (&json!("v1"), &json!(true)),
            (&json!("v1beta1"), &json!(false))
        ]
    );
    for version in versions {
        assert_eq!(
            (&version["served"], &version["schema"]["openAPIV3Schema"]),
            (&json!(true), &schema())
        );
        let columns: Vec<String> = version["additionalPrinterColumns"]
            .as_array()
            .unwrap()
            .iter()
            .map(|column| {
                format!(
                    "{} {} {}",
                    column["name"], column["jsonPath"], column["priority"]
                )
                .replace('"', "")
            })
            .collect();
        assert_eq!(
            columns,
            [
                "Phase .status.phase null",
                "Types .status.progress.typeProgress null",
                "Message .status.message null",
                "Age .metadata.creationTimestamp null",
                "Current Type .status.progress.currentType 1",
                "Migrated .status.progress.migrated 1",
                "Skipped .status.progress.skipped 1",
                "Conflicts .status.progress.conflicts 1",
            ]
        );
    }
}

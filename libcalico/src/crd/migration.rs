//! DatastoreMigration, the object that controls a migration from `crd.projectcalico.org/v1` to
//! `projectcalico.org/v3`.

use serde_json::{Value, json};

use super::custom_resource::{Condition, Field};
use super::structural::structural;
use crate::kubernetes::Resource;
use crate::migration::{
    DATASTORE_MIGRATIONS, GROUP, MIGRATION_TYPE, MigrationStatus, definition_name,
};

/// A column of `kubectl get`: name, type, path and description.
type Column = (&'static str, &'static str, &'static str, &'static str);

/// The columns of `kubectl get`.
const COLUMNS: [Column; 4] = [
    ("Phase", "string", ".status.phase", "Phase of the migration"),
    (
        "Types",
        "string",
        ".status.progress.typeProgress",
        "Number of kinds that are done, and of all",
    ),
    (
        "Message",
        "string",
        ".status.message",
        "Present step, or the reason for a wait",
    ),
    (
        "Age",
        "date",
        ".metadata.creationTimestamp",
        "Age of the object",
    ),
];
/// The further columns of `kubectl get -o wide`.
const WIDE_COLUMNS: [Column; 4] = [
    (
        "Current Type",
        "string",
        ".status.progress.currentType",
        "Kind that is being copied",
    ),
    (
        "Migrated",
        "integer",
        ".status.progress.migrated",
        "Number of objects that were created or replaced",
    ),
    (
        "Skipped",
        "integer",
        ".status.progress.skipped",
        "Number of objects that v3 had already",
    ),
    (
        "Conflicts",
        "integer",
        ".status.progress.conflicts",
        "Number of objects that v3 has with another content",
    ),
];

const ABOUT: &str = "A migration of Calico's objects from crd.projectcalico.org/v1 to \
                     projectcalico.org/v3. Only the object v1-to-v3 has an effect.";

/// Returns the definition. Older controllers of upstream use `v1beta1`, which has the same schema
/// (MIG-54).
pub(super) fn datastore_migration() -> Value {
    let Resource { kind, plural, .. } = DATASTORE_MIGRATIONS;
    let current = json!({
        "name": "v1",
        "served": true,
        "storage": true,
        "schema": { "openAPIV3Schema": schema() },
        "subresources": { "status": {} },
        "additionalPrinterColumns": columns(),
    });
    let mut earlier = current.clone();
    for (field, value) in [
        ("name", json!("v1beta1")),
        ("storage", json!(false)),
        ("deprecated", json!(true)),
    ] {
        earlier[field] = value;
    }
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": { "name": definition_name(&DATASTORE_MIGRATIONS) },
        "spec": {
            "group": GROUP,
            "names": {
                "kind": kind, "listKind": format!("{kind}List"), "plural": plural,
                "singular": kind.to_lowercase(),
            },
            "scope": "Cluster",
            "versions": [current, earlier],
        },
    })
}

fn columns() -> Vec<Value> {
    let wide = WIDE_COLUMNS.into_iter().map(column).map(|mut column| {
        // kubectl leaves columns with a priority out by default.
        column["priority"] = 1.into();
        column
    });
    COLUMNS.into_iter().map(column).chain(wide).collect()
}

fn column((name, kind, path, about): Column) -> Value {
    json!({ "name": name, "type": kind, "jsonPath": path, "description": about })
}

fn schema() -> Value {
    let mut schema = json!({
        "type": "object",
        "description": ABOUT,
        "required": ["spec"],
        "properties": {
            "apiVersion": {
                "type": "string", "description": "API group and version of this object.",
            },
            "kind": { "type": "string", "description": "Kind of this object." },
            "metadata": { "type": "object" },
            "spec": {
                "type": "object",
                "description": "The fields of this DatastoreMigration.",
                "required": ["type"],
                "properties": {
                    "type": {
                        "type": "string",
                        "description": "Objects to migrate.",
                        "enum": [MIGRATION_TYPE],
                        "maxLength": 64,
                    },
                },
            },
            "status": structural::<MigrationStatus>(),
        },
    });
    let mut object = Field::new(&mut schema);
    object
        .at("spec")
        .at("type")
        .rule("self == oldSelf", "type must not change");
    let mut status = object.at("status");
    status.set(
        "description",
        "Progress of the migration, as kube-controllers reports it.",
    );
    let mut conditions = status.at("conditions");
    conditions.set("items", structural::<Condition>());
    conditions
        .each()
        .at("observedGeneration")
        .set("format", "int64");
    let mut progress = status.at("progress");
    progress.at("typeProgress").set("maxLength", 64);
    progress.at("currentType").set("maxLength", 253);
    let mut details = progress.at("typeDetails");
    details
        .set("x-kubernetes-list-type", "map")
        .set("x-kubernetes-list-map-keys", ["kind"]);
    let mut detail = details.each();
    detail.required(&["kind"]);
    detail.at("kind").set("maxLength", 253);
    schema
}

//! The commands on the embedded datastore, and plans of imports. Real API servers are used by the
//! suites `migrate_import` and `golden_calicoctl`.

mod import_plan;

use std::path::Path;

use libcalico::api::{ClusterInformation, ClusterInformationSpec, Node, ObjectKey};
use libcalico::kubernetes::{ApiGroup, Codec, Request};
use libcalico::migration::IMPORTING;
use libcalico::migration::calicoctl_file::{CalicoctlFile, Pair, parse};
use libcalico::store::{Freshness, Range, RawEntry, Store, Write, WriteOp};
use node_process::process::block_on;
use serde_json::{Value, json};

use super::items::{Item, items};
use super::lock::lock_target;
use super::plan::{Plan, plan};
use super::report::Counts;
use super::target::{FormerImport, Target};
use crate::cli::testing::Shell;

const CREATED: &str = "2026-08-22T06:33:20Z";
const GROUPS: [ApiGroup; 2] = [ApiGroup::CrdV1, ApiGroup::V3];

fn shell_with_node() -> Shell {
    let shell = Shell::with_pool();
    let references = json!([{"orchestrator": "k8s", "nodeName": "node1"}]);
    shell.apply(&json!({
        "apiVersion": "projectcalico.org/v3", "kind": "Node", "metadata": {"name": "node1"},
        "spec": {"orchRefs": references},
    }));
    assert_eq!(
        shell
            .stored::<Node>(&ObjectKey::global("node1"))
            .unwrap()
            .spec
            .orch_refs
            .len(),
        1
    );
    shell
}

fn is_ready(shell: &Shell) -> Option<bool> {
    shell
        .stored::<ClusterInformation>(&ObjectKey::global("default"))
        .unwrap()
        .spec
        .datastore_ready
}

#[test]
fn lock_and_unlock_may_be_repeated() {
    let shell = Shell::new();
    for _ in 0..2 {
        assert_eq!(shell.ok(&["migrate", "lock"]), "Datastore locked.\n");
        assert_eq!(is_ready(&shell), Some(false));
    }
    assert_eq!(
        shell.json(&["migrate", "unlock"]),
        json!({"locked": false, "changed": true})
    );
    assert_eq!(
        shell.json(&["migrate", "unlock"]),
        json!({"locked": false, "changed": false})
    );
    assert_eq!(
        (is_ready(&shell), shell.ok(&["migrate", "unlock"]).as_str()),
        (Some(true), "Datastore unlocked.\n")
    );
}

#[test]
fn unlock_of_a_datastore_that_migrates_to_v3_is_refused() {
    let shell = Shell::new();
    shell.ok(&["migrate", "lock"]);
    let mut information = shell.json(&["get", "clusterinformation", "default"]);
    information["metadata"]["annotations"] =
        json!({"migration.projectcalico.org/v1-locked-by": "uid"});
    shell.apply(&information);
    let error = shell.error(&["migrate", "unlock"]);
    assert!(
        error.contains("kubectl delete datastoremigration v1-to-v3"),
        "{error}"
    );
    assert_eq!(is_ready(&shell), Some(false));
}

#[test]
fn unlock_after_an_incomplete_import_needs_force() {
    let shell = Shell::new();
    shell.ok(&["migrate", "lock"]);
    let mut information = shell.json(&["get", "clusterinformation", "default"]);
    information["metadata"]["annotations"] = json!({IMPORTING: "guid"});
    shell.apply(&information);
    let error = shell.error(&["migrate", "unlock"]);
    assert!(
        error.starts_with("an import into this datastore is incomplete"),
        "{error}"
    );
    assert_eq!(is_ready(&shell), Some(false));
    shell.ok(&["migrate", "unlock", "--force"]);
    assert_eq!(is_ready(&shell), Some(true));
    shell.ok(&["migrate", "lock"]);
    shell.ok(&["migrate", "unlock"]);
}

#[test]
fn export_requires_the_lock() {
    let shell = shell_with_node();
    let file = shell.dir.path().join("calico.yaml");
    let file = file.to_str().unwrap();
    let error = shell.error(&["migrate", "export", file]);
    assert!(
        error.starts_with("datastore is not locked. Run `calico-ipam migrate lock`"),
        "{error}"
    );
    assert!(!Path::new(file).exists());
    shell.ok(&["migrate", "lock"]);
    shell.ok(&["migrate", "export", file]);
}

#[test]
fn export_writes_a_private_file_with_pools_nodes_and_addresses() {
    use std::os::unix::fs::PermissionsExt;
    let shell = shell_with_node();
    let address = shell.allocate("a");
    shell.endpoint("a", &address);
    shell.ok(&["migrate", "lock"]);
    let path = shell.dir.path().join("calico.yaml");
    let file = path.to_str().unwrap();
    let ran = shell.run(&["migrate", "export", file, "-o", "json"]);
    let document: Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(
        (&document["ipam"], &document["omitted"]),
        (&json!(3), &json!({"workloadendpoints": 1})),
        "{ran:?}"
    );
    assert!(
        ran.notices
            .contains("note: not exported: 1 workloadendpoints"),
        "{ran:?}"
    );
    assert_eq!(
        std::fs::metadata(&path).unwrap().permissions().mode() & 0o777,
        0o600
    );
    let text = std::fs::read_to_string(&path).unwrap();
    let exported = parse(&text).unwrap();
    assert_eq!(
        (exported.ipam.blocks.len(), exported.ipam.handles.len()),
        (1, 1)
    );
    assert_eq!(shell.ok(&["migrate", "export"]), text);
    assert!(
        shell
            .error(&["migrate", "export", file])
            .contains("File exists")
    );
}

#[test]
fn export_with_a_node_unknown_to_kubernetes_writes_no_file() {
    let shell = Shell::with_pool();
    shell.ok(&["migrate", "lock"]);
    let ran = shell.run(&["migrate", "export"]);
    let error = ran.outcome.unwrap_err();
    assert!(
        error.starts_with("node node1 missing a 'k8s' orchestrator reference. Unable to export"),
        "{error}"
    );
    assert_eq!(ran.out, "");
}

#[test]
fn block_under_an_unreadable_path_is_not_left_out() {
    let shell = shell_with_node();
    let path = "/calico/ipam/v2/assignment/ipv4/block/10.9.0.0_29";
    let op = WriteOp::Create(b"{}".to_vec());
    block_on(shell.store.write_one(Write {
        kind: "IPAMBlock",
        path: path.into(),
        key: path.into(),
        op,
    }))
    .unwrap();
    shell.ok(&["migrate", "lock"]);
    let error = shell.error(&["migrate", "export"]);
    assert!(error.contains(path), "{error}");
}

#[test]
fn affinity_without_a_value_is_exported_as_confirmed() {
    let shell = shell_with_node();
    let path = "/calico/ipam/v2/host/node1/ipv4/block/10.9.0.0-29";
    let write = Write {
        kind: "BlockAffinity",
        path: path.into(),
        key: path.into(),
        op: WriteOp::Create(Vec::new()),
    };
    block_on(shell.store.write_one(write)).unwrap();
    shell.ok(&["migrate", "lock"]);
    let exported = parse(&shell.ok(&["migrate", "export"])).unwrap();
    let affinity = exported
        .ipam
        .affinities
        .iter()
        .find(|pair| pair.path == path)
        .unwrap();
    assert_eq!(
        affinity.value,
        json!({"state": "confirmed", "deleted": false})
    );
}

#[test]
fn import_into_another_datastore_than_an_api_server_is_refused() {
    let shell = Shell::new();
    let error = shell.error(&["migrate", "import", "-f", "/no/such"]);
    assert!(
        error.starts_with("invalid datastore type: local to import to for datastore migration. "),
        "{error}"
    );
}

/// Another version may continue an interrupted import.
#[test]
fn import_target_of_0_1_0_is_recognized_and_marked_unchanged() {
    let stored = include_str!("../../../../tests/formats/0.1.0/migration/import-target.json");
    let stored: ClusterInformation = serde_json::from_str(stored).unwrap();
    let guid = "0123456789abcdef0123456789abcdef";
    assert_eq!(FormerImport::of(&stored, guid), FormerImport::Incomplete);
    let source = ClusterInformationSpec {
        cluster_guid: guid.into(),
        calico_version: "v3.32.0".into(),
        ..ClusterInformationSpec::default()
    };
    let shell = Shell::new();
    block_on(lock_target(&shell.store, "the test's", &source)).unwrap();
    let written = shell
        .stored::<ClusterInformation>(&ObjectKey::global("default"))
        .unwrap();
    assert_eq!(written.metadata.annotations, stored.metadata.annotations);
    assert_eq!(written.spec, stored.spec);
}

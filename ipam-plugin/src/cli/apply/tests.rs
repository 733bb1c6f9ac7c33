use libcalico::api::{IpPool, IpamConfiguration, Node, ObjectKey};
use libcalico::ipam::{IpamConfig, IpamConfigKey};
use libcalico::store::Kind;
use serde_json::{Value, json};

use crate::cli::testing::Shell;

fn manifest(kind: &str, name: &str, spec: Value) -> Value {
    json!({
        "apiVersion": "projectcalico.org/v3", "kind": kind, "metadata": {"name": name},
        "spec": spec,
    })
}

fn applied(shell: &Shell, manifest: &Value) -> String {
    let ran = shell.apply(manifest);
    assert!(ran.outcome.is_ok(), "{:?}", ran.outcome);
    ran.out
}

fn refused(shell: &Shell, manifest: &Value) -> String {
    shell
        .apply(manifest)
        .outcome
        .expect_err("should be refused")
}

#[test]
fn apply_reports_created_unchanged_or_configured() {
    let shell = Shell::new();
    for (kind, name, spec, other) in [
        (
            "IPPool",
            "p",
            json!({"cidr": "10.1.0.0/16"}),
            json!({"cidr": "10.1.0.0/16", "disabled": true}),
        ),
        (
            "IPReservation",
            "r",
            json!({}),
            json!({"reservedCIDRs": ["10.1.0.0/30"]}),
        ),
        (
            "IPAMConfiguration",
            "default",
            json!({"strictAffinity": true}),
            json!({"strictAffinity": false}),
        ),
        (
            "Node",
            "n",
            json!({}),
            json!({"bgp": {"ipv4Address": "192.168.0.1/24"}}),
        ),
    ] {
        let (first, second) = (manifest(kind, name, spec), manifest(kind, name, other));
        let said: String = [&first, &first, &second, &second]
            .map(|manifest| applied(&shell, manifest))
            .concat();
        let line = |action: &str| format!("{kind} {name} {action}\n");
        assert_eq!(
            said,
            ["created", "unchanged", "configured", "unchanged"]
                .map(line)
                .concat()
        );
    }
    let locked = manifest(
        "ClusterInformation",
        "default",
        json!({"datastoreReady": false}),
    );
    assert_eq!(
        applied(&shell, &locked),
        "ClusterInformation default configured\n"
    );
}

#[test]
fn apply_accepts_several_documents_and_prints_json() {
    let shell = Shell::new();
    let node = "apiVersion: projectcalico.org/v3\nkind: Node\nmetadata:\n  name: ";
    let file = shell.file("nodes.yaml", &format!("{node}a\n---\n{node}b\n"));
    assert_eq!(
        shell.ok(&["apply", "-f", &file]),
        "Node a created\nNode b created\n"
    );
    let rows = shell.json(&["apply", "-f", &file]);
    assert_eq!(
        rows[1],
        json!({"kind": "Node", "name": "b", "action": "unchanged"})
    );
}

#[test]
fn invalid_document_prevents_all_writes_of_an_apply() {
    let shell = Shell::new();
    let good = manifest("Node", "good", json!({}));
    let error = refused(
        &shell,
        &json!([good, manifest("Node", "bad", json!({"bpg": {}}))]),
    );
    assert!(
        error.contains("Node: the field spec.bpg does not exist"),
        "{error}"
    );
    assert_eq!(shell.stored::<Node>(&ObjectKey::global("good")), None);
}

#[test]
fn apply_rejects_violations_of_the_api_rules() {
    let shell = Shell::with_pool();
    let overlap = refused(
        &shell,
        &manifest("IPPool", "other", json!({"cidr": "10.0.0.0/16"})),
    );
    assert!(
        overlap.contains("IPPool other: error with field IPPool.Spec.CIDR"),
        "{overlap}"
    );
    let moved = refused(
        &shell,
        &manifest(
            "IPPool",
            "default-ipv4-ippool",
            json!({"cidr": "10.0.0.0/25"}),
        ),
    );
    assert!(moved.contains("IPPool CIDR cannot be modified"), "{moved}");
    assert!(
        refused(
            &shell,
            &manifest("IPReservation", "r", json!({"reservedCIDRs": ["x"]}))
        )
        .contains("ReservedCIDRs")
    );
    assert!(
        refused(&shell, &manifest("IPAMConfiguration", "other", json!({})))
            .contains("other than \"default\"")
    );
    let limit = manifest(
        "IPAMConfiguration",
        "default",
        json!({"maxBlocksPerHost": 3}),
    );
    assert!(refused(&shell, &limit).contains("only be set together with strictAffinity"));
    assert_eq!(
        shell.stored::<IpamConfig>(&IpamConfigKey),
        None,
        "neither key is written"
    );

    // A pool that was deleted while its blocks were in use.
    shell.allocate("c1");
    let key = ObjectKey::global("default-ipv4-ippool");
    shell.remove(&IpPool::path(&key));
    let of_size = |size: u8| {
        manifest(
            "IPPool",
            &key.name,
            json!({"cidr": "10.0.0.0/24", "blockSize": size}),
        )
    };
    let resized = refused(&shell, &of_size(28));
    assert!(
        resized.contains("IPPool.Spec.BlockSize = '28' (IPPool blocksSize conflicts with existing"),
        "{resized}"
    );
    assert_eq!(
        (shell.stored::<IpPool>(&key), shell.blocks().len()),
        (None, 1)
    );
    assert_eq!(
        applied(&shell, &of_size(29)),
        "IPPool default-ipv4-ippool created\n"
    );
}

#[test]
fn apply_writes_ipam_settings_to_both_keys() {
    let shell = Shell::new();
    shell.put(
        "/calico/ipam/v2/config",
        r#"{"strict_affinity":false,"auto_allocate_blocks":true,"future":7}"#,
    );
    let wanted = manifest(
        "IPAMConfiguration",
        "default",
        json!({"strictAffinity": true, "maxBlocksPerHost": 4}),
    );
    assert_eq!(
        applied(&shell, &wanted),
        "IPAMConfiguration default configured\n"
    );
    let obeyed = shell.stored::<IpamConfig>(&IpamConfigKey).unwrap();
    assert!(obeyed.strict_affinity && obeyed.auto_allocate_blocks);
    assert_eq!(
        (obeyed.max_blocks_per_host, &obeyed.unknown["future"]),
        (4, &json!(7))
    );
    let v3 = shell
        .stored::<IpamConfiguration>(&ObjectKey::global("default"))
        .unwrap();
    assert_eq!(
        (v3.spec.strict_affinity, v3.spec.max_blocks_per_host),
        (true, 4)
    );
}

#[test]
fn apply_preserves_foreign_fields_of_the_stored_object() {
    let shell = Shell::new();
    let stored = json!({
        "kind": "IPPool", "apiVersion": "projectcalico.org/v3",
        "metadata": {
            "name": "p", "uid": "u", "creationTimestamp": "2026-08-22T06:33:20Z",
            "labels": {"old": "1"},
        },
        "spec": {"cidr": "10.1.0.0/16", "blockSize": 26, "future": true},
        "status": {"conditions": []},
    });
    let key = ObjectKey::global("p");
    shell.put(&IpPool::path(&key), &stored.to_string());
    let mut wanted = manifest(
        "IPPool",
        "p",
        json!({"cidr": "10.1.0.0/16", "natOutgoing": true}),
    );
    wanted["metadata"]["labels"] = json!({"new": "1"});
    wanted["metadata"]["uid"] = json!("other");
    applied(&shell, &wanted);
    let pool = shell.stored::<IpPool>(&key).unwrap();
    assert_eq!(
        (pool.metadata.uid.as_str(), pool.spec.nat_outgoing),
        ("u", true)
    );
    assert_eq!(pool.metadata.labels.keys().collect::<Vec<_>>(), ["new"]);
    assert_eq!(
        (&pool.spec.unknown["future"], pool.status),
        (&json!(true), Some(json!({"conditions": []})))
    );
}

#[test]
fn created_object_gets_a_new_uid() {
    let shell = Shell::new();
    let mut copied = manifest("Node", "n", json!({}));
    copied["metadata"]["uid"] = json!("of-another-datastore");
    copied["metadata"]["resourceVersion"] = json!("77");
    applied(&shell, &copied);
    let node = shell.stored::<Node>(&ObjectKey::global("n")).unwrap();
    assert_ne!(node.metadata.uid, "of-another-datastore");
    assert!(node.metadata.creation_timestamp.is_some());
}

#[test]
fn apply_with_a_stale_resource_version_is_rejected() {
    let shell = Shell::with_pool();
    let mut pool = shell.json(&["get", "ippool", "default-ipv4-ippool"]);
    pool["spec"]["natOutgoing"] = json!(true);
    assert_eq!(
        applied(&shell, &pool),
        "IPPool default-ipv4-ippool configured\n"
    );
    pool["spec"]["natOutgoing"] = json!(false);
    let error = refused(&shell, &pool);
    assert!(
        error.starts_with("IPPool(default-ipv4-ippool) changed since it was read"),
        "{error}"
    );
}

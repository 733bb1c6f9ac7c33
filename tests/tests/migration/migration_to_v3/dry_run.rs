//! A dry run: the outcome of each object in a ConfigMap, and no other write.

use integration_tests::controllers::{Controllers, Proxied};
use integration_tests::kubernetes::Request;
use libcalico::kubernetes::ApiGroup;
use libcalico::migration::DRY_RUN;
use serde_json::{Value, json};

use crate::migration_to_v3::migrated_cluster::{AUDITED, MigratedCluster, at, create, on};
use crate::migration_to_v3::objects::{CALICO_METADATA, NAMESPACE, affinity, handle, pool};

const REPORT: &str = "/api/v1/namespaces/kube-system/configmaps/calico-migration-v1-to-v3";
/// The uid of no object.
const UNKNOWN_OWNER: &str = "7f9c24e8-3b0a-4c5d-9e1f-a2b3c4d5e6f7";

/// Creates objects for each list of the report.
fn create_obstacles(cluster: &MigratedCluster<'_>) {
    let (admin, v1) = (cluster.servers.admin(), |kind, name| {
        at(ApiGroup::CrdV1, kind, None, name)
    });
    cluster.create_in_v3("IPPool", None, "pool4", &pool("10.65.0.0/16"));
    cluster.create_in_v3(
        "Tier",
        None,
        "security",
        &json!({ "order": 200, "defaultAction": "Pass" }),
    );
    cluster.create_in_v3("GlobalNetworkSet", None, "only-in-v3", &json!({}));
    cluster.create_in_v3("IPAMHandle", None, "other", &handle("other"));
    // v3 accepts four states of an affinity.
    let mut odd = affinity("odd");
    odd["cidr"] = "10.65.2.0/26".into();
    create(
        admin,
        &v1("BlockAffinity", "node1-10-65-2-0-26"),
        json!({}),
        &odd,
    );
    // `default.old` gets the name `old` in v3.
    let policy = json!({ "tier": "default", "selector": "all()" });
    create(
        admin,
        &at(ApiGroup::CrdV1, "NetworkPolicy", Some(NAMESPACE), "old"),
        json!({}),
        &policy,
    );
    let owner = json!({
        "apiVersion": ApiGroup::CrdV1.api_version(), "kind": "Tier", "name": "security",
        "uid": UNKNOWN_OWNER,
    });
    let metadata = json!({ "name": "owned", "ownerReferences": [owner] });
    let annotations = json!({ CALICO_METADATA: metadata.to_string() });
    create(
        admin,
        &v1("GlobalNetworkPolicy", "owned"),
        annotations,
        &policy,
    );
    // The API server would drop the field.
    let annotations =
        json!({ CALICO_METADATA: json!({ "name": "future", "unknown": true }).to_string() });
    create(
        admin,
        &v1("GlobalNetworkPolicy", "future"),
        annotations,
        &policy,
    );
}

/// Waits until the dry run with this text is made.
#[track_caller]
fn await_dry_run(cluster: &MigratedCluster<'_>, process: &Controllers, text: &str) {
    cluster.migration.until(process, "a dry run", || {
        cluster.migration.condition("DryRun")["message"] == text
    });
}

fn is_other_write(request: &Request) -> bool {
    let is_write = !matches!(request.verb.as_str(), "get" | "list" | "watch");
    let is_expected = matches!(
        request.resource.as_str(),
        "leases" | "configmaps" | "datastoremigrations/status"
    );
    is_write && !is_expected && !request.uri.contains("dryRun=All")
}

#[on(kubernetes_v1)]
fn dry_run_lists_each_outcome_and_writes_only_its_config_map(cluster: &MigratedCluster<'_>) {
    let (api, migration) = (cluster.servers.api, cluster.migration);
    assert!(cluster.start("one").terminate().unwrap().success());
    create_obstacles(cluster);
    let groups = [ApiGroup::CrdV1, ApiGroup::V3];
    let (before, audit) = (
        groups.map(|group| cluster.dump(group)),
        api.audit().unwrap(),
    );
    let account = Proxied::account(api, AUDITED).unwrap();
    migration.create(Some("first"));
    let setup = migration
        .setup("two")
        .env("KUBECONFIG", account.kubeconfig.display().to_string());
    let mut process = setup.start(cluster.servers.host, "two").unwrap();
    await_dry_run(cluster, &process, "first");

    let report = cluster.servers.get(REPORT)["data"].clone();
    for (list, line) in [
        ("copied", "IPAMBlock/10-65-1-0-26\n"),
        ("copied", "NetworkPolicy/suite/old\n"),
        ("skipped", "IPPool/pool4\n"),
        (
            "conflict",
            "Tier/security: v3 resource exists with different spec\n",
        ),
        ("conflict", "IPAMHandle/other: only v3 has the object"),
        ("refused", "BlockAffinity/node1-10-65-2-0-26: "),
        (
            "refused",
            "NetworkPolicy/suite/old: default.old has the same name in v3",
        ),
        ("refused", "GlobalNetworkPolicy/future: "),
        ("only-in-v3", "GlobalNetworkSet/only-in-v3\n"),
        (
            "left-out-owners",
            "GlobalNetworkPolicy/owned: owner Tier security (",
        ),
    ] {
        let text = report[list].as_str().unwrap();
        assert!(
            format!("\n{text}").contains(&format!("\n{line}")),
            "{list}: {line}\n{report:#}"
        );
    }
    let refused = report["refused"].as_str().unwrap();
    assert!(
        refused.contains("unknown field \"metadata.unknown\""),
        "{refused}"
    );
    let summary = report["summary"].as_str().unwrap();
    assert!(
        summary.contains("conflict: 2\n") && summary.contains("refused: 3\n"),
        "{summary}"
    );
    assert!(
        migration.message().starts_with("dry run: "),
        "{}",
        migration.message()
    );
    assert!(migration.is_ready(ApiGroup::CrdV1) && !migration.is_ready(ApiGroup::V3));

    migration.annotate(DRY_RUN, Some("second"));
    process.end_and_restart();
    await_dry_run(cluster, &process, "second");
    assert!(process.terminate().unwrap().success());
    let others: Vec<String> = audit
        .of(&account.user)
        .unwrap()
        .iter()
        .filter(|one| is_other_write(one))
        .map(Request::to_string)
        .collect();
    assert_eq!(others, Vec::<String>::new());
    assert_eq!(groups.map(|group| cluster.dump(group)), before);
    assert_eq!(migration.object()["metadata"]["finalizers"], Value::Null);
}

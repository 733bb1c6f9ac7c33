//! Tenants with the rights of `edit` in their namespaces, while v3 is served by definitions and v1
//! is locked.

use std::fs;

use anyhow::Result;
use integration_tests::controllers::{Controllers, PATIENCE, await_that};
use integration_tests::kubernetes::{ApiServer, Client};
use integration_tests::manifests::deploy;
use libcalico::kubernetes::{ApiGroup, Location};
use libcalico::migration::{MIGRATED_BY, SOURCE_REVISION};
use serde_json::{Value, json};

use crate::migration_to_v3::migrated_cluster::{MigratedCluster, at, create, on};
use crate::migration_to_v3::objects::{CALICO_METADATA, NAMESPACE};

const FORGED: &str = "7f9c24e8-3b0a-4c5d-9e1f-a2b3c4d5e6f7";

fn policy(name: &str) -> Location {
    at(ApiGroup::V3, "NetworkPolicy", Some(NAMESPACE), name)
}

fn other_spec() -> Value {
    json!({ "tier": "default", "selector": "app == 'theirs'" })
}

/// Returns a reference to an owner in v1.
fn owner(kind: &str, name: &str, uid: &Value) -> Value {
    json!({ "apiVersion": ApiGroup::CrdV1.api_version(), "kind": kind, "name": name, "uid": uid })
}

/// Gives the user `tenant` the rights of `edit` on Calico's policies in [`NAMESPACE`].
pub(crate) fn prepare(api: &ApiServer) -> Result<()> {
    api.admin().apply(&fs::read_to_string(deploy(
        "rbac/users/calico-user-roles.yaml",
    ))?)?;
    let role = json!({
        "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "calico-edit",
    });
    let user = json!({ "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "tenant" });
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
        "metadata": { "name": "tenant", "namespace": NAMESPACE }, "roleRef": role,
        "subjects": [user],
    });
    api.admin().apply_object(&binding).map(drop)
}

/// Returns a client of the tenant.
fn tenant(cluster: &MigratedCluster<'_>) -> Client {
    let api = cluster.servers.api;
    let client = api.client(&api.user("tenant", "tenants").unwrap()).unwrap();
    let probe = json!({
        "apiVersion": ApiGroup::V3.api_version(), "kind": "NetworkPolicy",
        "metadata": { "name": "probe", "namespace": NAMESPACE }, "spec": other_spec(),
    });
    let path = format!("{}?dryRun=All", policy("probe").collection());
    await_that(PATIENCE, || Ok(client.create(&path, &probe)?.code == 201)).unwrap();
    client
}

/// Asserts that the migration has failed under the lock, and holds no lock now.
#[track_caller]
fn assert_released(cluster: &MigratedCluster<'_>, process: &Controllers, named: &str) {
    let migration = cluster.migration;
    migration.await_message(process, "the datastore is not locked");
    assert_eq!(migration.phase(), "WaitingForConflictResolution");
    assert!(migration.is_ready(ApiGroup::CrdV1) && !migration.is_ready(ApiGroup::V3));
    let conflict = migration.condition("Conflict");
    assert!(
        conflict["message"].as_str().unwrap().starts_with(named),
        "{conflict}"
    );
    let blocked = migration.condition("PodsBlocked");
    assert_eq!(
        (&blocked["status"], &blocked["reason"]),
        (&json!("False"), &json!("Unlocked"))
    );
    process.await_log("the object is not copied", 1).unwrap();
}

/// Waits for the next attempt at a migration. Without a restart, kube-controllers pause for five
/// minutes at least.
fn await_next_lock(cluster: &MigratedCluster<'_>, process: &mut Controllers) {
    process.end_and_restart();
    cluster.await_lock(process);
}

/// Shows SEC-36.
#[on(kubernetes_v1)]
fn policies_of_a_tenant_cannot_hold_the_lock(cluster: &MigratedCluster<'_>) {
    let (migration, tenant) = (cluster.migration, tenant(cluster));
    let mut process = cluster.start("one");
    migration.create(None);

    // A conflict, within the ten seconds before the first copy.
    await_next_lock(cluster, &mut process);
    create(&tenant, &policy("web"), json!({}), &other_spec());
    assert_released(cluster, &process, "NetworkPolicy/suite/web: ");
    tenant.delete(&policy("web").url_path()).unwrap().success();

    // An edited copy: the former attempt has left it.
    let copy = cluster.in_v3("NetworkPolicy", Some(NAMESPACE), "old");
    assert!(
        copy["metadata"]["annotations"][MIGRATED_BY].is_string(),
        "{copy}"
    );
    await_next_lock(cluster, &mut process);
    tenant
        .patch(&policy("old").url_path(), &json!({ "spec": other_spec() }))
        .unwrap()
        .success();
    assert_released(cluster, &process, "NetworkPolicy/suite/old: ");
    let mut original = cluster.in_v3("NetworkPolicy", Some(NAMESPACE), "old");
    original["spec"] = copy["spec"].clone();
    tenant
        .replace(&policy("old").url_path(), &original)
        .unwrap()
        .success();

    // A copy that cannot be replaced, because its deletion waits for the tenant.
    await_next_lock(cluster, &mut process);
    let held = json!({ "metadata": { "finalizers": ["example.com/held"] } });
    tenant
        .patch(&policy("old").url_path(), &held)
        .unwrap()
        .success();
    tenant.delete(&policy("old").url_path()).unwrap().success();
    assert_released(cluster, &process, "NetworkPolicy/suite/old: ");
    let free = json!({ "metadata": { "finalizers": null } });
    tenant
        .patch(&policy("old").url_path(), &free)
        .unwrap()
        .success();

    process.end_and_restart();
    migration.await_open(&mut process);
    let copied = cluster.in_v3("NetworkPolicy", Some(NAMESPACE), "old");
    assert_eq!(copied["spec"], copy["spec"]);
}

/// Shows SEC-39.
#[on(kubernetes_v1)]
fn forged_marks_change_own_objects_only(cluster: &MigratedCluster<'_>) {
    let (admin, migration, tenant) = (cluster.servers.admin(), cluster.migration, tenant(cluster));
    cluster.servers.api.namespace("others").unwrap();
    let policy_of_others = at(ApiGroup::CrdV1, "NetworkPolicy", Some("others"), "shop");
    let spec = json!({ "tier": "default", "selector": "app == 'shop'" });
    let stored = create(admin, &policy_of_others, json!({}), &spec);
    let only_in_v3 = cluster.create_in_v3("NetworkSet", Some("others"), "shop", &json!({}));

    let forged = json!({ MIGRATED_BY: FORGED, SOURCE_REVISION: "1" });
    create(&tenant, &policy("web"), forged.clone(), &other_spec());
    create(&tenant, &policy("without-source"), forged, &other_spec());
    // References in the tenant's policy of v1: to an object of others, and to a tier under a
    // wrong name.
    let tier = cluster.servers.calico("tiers", "security")["metadata"]["uid"].clone();
    let owners = [
        owner("NetworkPolicy", "shop", &stored["metadata"]["uid"]),
        owner("Tier", "default", &tier),
    ];
    let metadata = json!({ "name": "owned", "ownerReferences": owners });
    let annotations = json!({ CALICO_METADATA: metadata.to_string() });
    create(
        admin,
        &at(ApiGroup::CrdV1, "NetworkPolicy", Some(NAMESPACE), "owned"),
        annotations,
        &spec,
    );

    let mut process = cluster.start("one");
    migration.create(None);
    process.end_and_restart();
    migration.await_open(&mut process);
    let own = |name: &str| cluster.in_v3("NetworkPolicy", Some(NAMESPACE), name);
    let source = admin
        .get(&at(ApiGroup::CrdV1, "NetworkPolicy", Some(NAMESPACE), "web").url_path())
        .unwrap();
    assert_eq!(
        own("web")["spec"]["selector"],
        source.success()["spec"]["selector"]
    );
    assert_eq!(
        own("web")["metadata"]["annotations"][MIGRATED_BY],
        migration.object()["metadata"]["uid"]
    );
    assert_eq!(own("without-source"), Value::Null);
    assert_eq!(own("owned")["metadata"]["ownerReferences"], Value::Null);
    assert_eq!(
        cluster.in_v3("NetworkSet", Some("others"), "shop"),
        only_in_v3
    );
    assert_eq!(
        cluster.in_v3("NetworkPolicy", Some("others"), "shop")["spec"]["selector"],
        spec["selector"]
    );
    process
        .await_log("a reference to an owner is not copied", 2)
        .unwrap();
}

use std::time::Duration;

use kube_controllers::rollout::DAEMON_SETS;
use libcalico::kubernetes::{ApiGroup, Location, PODS};
use libcalico::migration::{
    DATASTORE_MIGRATIONS, FINALIZER, FOLLOW, PLUGINS, cluster_information, definition_name,
};
use serde_json::{Value, json};

use super::{change, is_v1_locked, is_v1_ready};
use crate::NAMESPACE;
use crate::report::CONFIG_MAPS;
use crate::testing::{
    DEFINITIONS, MigratedCluster, ReceivedRequest, at, definition, failure, is_in_phase, object,
};

const MINUTE: Duration = Duration::from_secs(60);
const STATEMENT: &str =
    "annotate datastoremigration v1-to-v3 with migration.projectcalico.org/plugins=follow";

fn plugin() -> Location {
    daemon_set("calico-cni")
}

fn daemon_set(name: &str) -> Location {
    Location::namespaced(DAEMON_SETS, NAMESPACE, name)
}

fn settings() -> Location {
    Location::namespaced(CONFIG_MAPS, NAMESPACE, "calico-config")
}

fn started() -> MigratedCluster {
    let cluster = MigratedCluster::new();
    cluster.start();
    cluster
}

/// Lets a process check the cluster, and returns the message with which it waits. The datastore
/// must not be locked.
async fn refusal(cluster: &MigratedCluster) -> String {
    cluster.run_for(MINUTE).await;
    assert_eq!(cluster.phase(), "Pending", "{}", cluster.message());
    assert!(
        cluster.server.with_store(|store| is_v1_ready(store)),
        "{}",
        cluster.message()
    );
    assert_eq!(cluster.spec_of_information(ApiGroup::V3), Value::Null);
    cluster.message()
}

async fn assert_completes(cluster: &MigratedCluster) {
    cluster
        .run_until(|store| is_in_phase(store, "Complete"))
        .await;
}

/// Replaces the first variable of the plugins' DaemonSet, `CALICO_API_GROUP`.
fn set_group(cluster: &MigratedCluster, entry: Value) {
    change(cluster, &plugin(), |found| {
        found["spec"]["template"]["spec"]["containers"][0]["env"][0] = entry
    });
}

#[tokio::test(start_paused = true)]
async fn conflist_that_names_v1_is_refused_before_the_lock() {
    let cluster = started();
    let reference = json!({ "name": "calico-config", "key": "calico_api_group" });
    set_group(
        &cluster,
        json!({ "name": "CALICO_API_GROUP", "valueFrom": { "configMapKeyRef": reference } }),
    );
    change(&cluster, &plugin(), |found| {
        let template =
            r#"{"plugins": [{"type": "calico", "calico_api_group": "__CALICO_API_GROUP__"}]}"#;
        found["spec"]["template"]["spec"]["containers"][0]["env"][1]["value"] = template.into();
    });
    let missing = "with v1 locked no pod could start: the API group of the plugins of DaemonSet \
                   calico-cni is unknown: CALICO_API_GROUP is from ConfigMap calico-config, which \
                   lacks calico_api_group. ";
    let message = refusal(&cluster).await;
    assert!(
        message.starts_with(missing) && message.ends_with(STATEMENT),
        "{message}"
    );
    // Without a finalizer, the object does not wait for kube-controllers.
    let metadata = cluster.server.object(&object()).unwrap()["metadata"].clone();
    assert!(
        !metadata["finalizers"].to_string().contains(FINALIZER),
        "{metadata}"
    );

    let put = |group: &str| {
        cluster.server.with_store(|store| {
            store.put(
                &settings(),
                json!({ "data": { "calico_api_group": group } }),
            )
        });
    };
    put("crd.projectcalico.org/v1");
    let expected = "with v1 locked no pod could start: DaemonSet calico-cni installs a \
                    configuration with crd.projectcalico.org/v1; leave calico_api_group empty \
                    (deploy/components/migrate-to-v3)";
    assert_eq!(refusal(&cluster).await, expected);
    put("");
    assert_completes(&cluster).await;
}

#[tokio::test(start_paused = true)]
async fn plugins_of_unknown_origin_need_a_statement() {
    let cluster = started();
    cluster.server.with_store(|store| store.remove(&plugin()));
    let expected = "with v1 locked no pod could start: no DaemonSet calico-cni or calico-node in \
                    calico-system installs plugins. ";
    let message = refusal(&cluster).await;
    assert!(
        message.starts_with(expected) && message.ends_with(STATEMENT),
        "{message}"
    );

    let group = json!({ "name": "CALICO_API_GROUP", "value": "" });
    let spec = json!({ "initContainers": [{ "name": "install-cni", "env": [group] }] });
    cluster.server.with_store(|store| {
        store.put(
            &daemon_set("calico-node"),
            json!({ "spec": { "template": { "spec": spec } } }),
        );
    });
    let message = refusal(&cluster).await;
    assert!(
        message.contains("install-cni of DaemonSet calico-node may install upstream's plugin"),
        "{message}"
    );
    cluster
        .server
        .with_store(|store| store.remove(&daemon_set("calico-node")));
    change(&cluster, &object(), |found| {
        found["metadata"]["annotations"][PLUGINS] = FOLLOW.into()
    });
    assert_completes(&cluster).await;
}

#[tokio::test(start_paused = true)]
async fn pods_that_have_not_installed_a_changed_config_map_are_counted() {
    let cluster = started();
    let reference = json!({ "name": "calico-config", "key": "group" });
    set_group(
        &cluster,
        json!({ "name": "CALICO_API_GROUP", "valueFrom": { "configMapKeyRef": reference } }),
    );
    change(&cluster, &plugin(), |found| {
        found["spec"]["selector"] = json!({ "matchLabels": { "k8s-app": "calico-cni" } })
    });
    let uid = cluster.server.object(&plugin()).unwrap()["metadata"]["uid"].clone();
    let written = |time: &str| json!({ "manager": "kubectl", "time": time });
    let times = json!([
        written("2026-03-02T10:00:00Z"),
        written("2026-03-01T10:00:00Z")
    ]);
    cluster.server.with_store(|store| {
        let metadata =
            json!({ "creationTimestamp": "2026-01-01T00:00:00Z", "managedFields": times });
        store.put(
            &settings(),
            json!({ "data": { "group": "" }, "metadata": metadata }),
        );
    });
    let put = |name: &str, created: &str, owner: &Value| {
        let metadata =
            json!({ "creationTimestamp": created, "ownerReferences": [{ "uid": owner }] });
        cluster.server.with_store(|store| {
            store.put(
                &Location::namespaced(PODS, NAMESPACE, name),
                json!({ "metadata": metadata }),
            );
        });
    };
    put("old-1", "2026-03-01T23:00:00Z", &uid);
    put("old-2", "2026-03-02T09:59:59Z", &uid);
    put("new", "2026-03-02T10:00:00Z", &uid);
    put("other", "2026-02-01T10:00:00Z", &json!("another"));
    let expected = "2 pods of calico-cni are older than ConfigMap calico-config; kubectl -n \
                    calico-system rollout restart daemonset/calico-cni";
    assert_eq!(refusal(&cluster).await, expected);
    let log = cluster.server.take_log();
    let lists: Vec<_> = log.iter().filter(|line| line.contains("/pods?")).collect();
    let is_limited =
        |line: &&String| line.contains("?labelSelector=k8s-app%3Dcalico-cni&limit=100&");
    assert!(
        !lists.is_empty() && lists.iter().all(is_limited),
        "{lists:?}"
    );

    put("old-1", "2026-03-02T11:00:00Z", &uid);
    let being_deleted =
        |found: &mut Value| found["metadata"]["deletionTimestamp"] = "2026-03-02T11:00:00Z".into();
    change(
        &cluster,
        &Location::namespaced(PODS, NAMESPACE, "old-2"),
        being_deleted,
    );
    assert_completes(&cluster).await;
}

#[tokio::test(start_paused = true)]
async fn rollout_of_the_plugins_is_awaited_before_the_lock() {
    let cluster = started();
    change(&cluster, &plugin(), |found| {
        found["status"]["updatedNumberScheduled"] = json!(0)
    });
    let expected = "with v1 locked no pod could start: wait for calico-cni rollout (0/1 updated)";
    assert_eq!(refusal(&cluster).await, expected);
    change(&cluster, &plugin(), |found| {
        found["status"]["updatedNumberScheduled"] = json!(1)
    });
    assert_completes(&cluster).await;
}

#[tokio::test(start_paused = true)]
async fn missing_definitions_of_v3_are_named_with_the_objects_that_need_them() {
    let cluster = started();
    let kinds = [("IPPool", "pool"), ("BGPPeer", "")]
        .map(|(kind, name)| at(ApiGroup::V3, kind, "", name).resource);
    cluster.server.with_store(|store| {
        for resource in kinds
            .iter()
            .chain([&cluster_information(ApiGroup::V3).resource])
        {
            store.remove(&definition(resource));
        }
    });
    let expected = "v3 CRDs (projectcalico.org) not installed — apply them before starting \
                    migration: clusterinformations, ippools (1 object)";
    assert_eq!(refusal(&cluster).await, expected);
}

#[tokio::test(start_paused = true)]
async fn cluster_without_v1_or_with_an_old_definition_ends_the_migration() {
    let cluster = started();
    change(&cluster, &definition(&DATASTORE_MIGRATIONS), |found| {
        found["spec"]["versions"][0]["name"] = "v1beta1".into()
    });
    cluster
        .run_until(|store| is_in_phase(store, "Failed"))
        .await;
    assert!(
        cluster
            .message()
            .starts_with("cluster serves the pre-GA DatastoreMigration API (v1beta1)")
    );

    let cluster = started();
    cluster.server.with_store(|store| {
        let suffix = ".crd.projectcalico.org";
        let names: Vec<String> = store
            .of_kind("apiextensions.k8s.io", "customresourcedefinitions")
            .filter_map(|found| found["metadata"]["name"].as_str().map(str::to_owned))
            .filter(|name| name.ends_with(suffix))
            .collect();
        assert!(
            names.contains(&definition_name(
                &cluster_information(ApiGroup::CrdV1).resource
            )),
            "{names:?}"
        );
        names
            .iter()
            .for_each(|name| _ = store.remove(&Location::global(DEFINITIONS, name)));
    });
    cluster
        .run_until(|store| is_in_phase(store, "Failed"))
        .await;
    assert_eq!(
        cluster.message(),
        "no v1 CRDs (crd.projectcalico.org) found - nothing to migrate"
    );
}

#[tokio::test(start_paused = true)]
async fn incorrect_built_in_tiers_are_named_in_order() {
    let cluster = started();
    let tier = |name: &str| at(ApiGroup::CrdV1, "Tier", "", name);
    cluster.server.with_store(|store| {
        store.put(&tier("kube-admin"), json!({ "spec": { "order": 1000 } }));
        store.put(
            &tier("default"),
            json!({ "spec": { "defaultAction": "Deny" } }),
        );
        store.put(
            &tier("own"),
            json!({ "spec": { "order": 5, "defaultAction": "Pass" } }),
        );
    });
    let expected = "Correct the following v1 tiers before migration can start: tier \"default\" \
                    must have order 1000000; tier \"kube-admin\" must have defaultAction \"Pass\"";
    assert_eq!(refusal(&cluster).await, expected);
}

#[tokio::test(start_paused = true)]
async fn missing_rights_are_named_before_the_lock() {
    let cluster = started();
    cluster.server.deny("delete ipamblocks");
    cluster.server.deny("get daemonsets");
    let expected = "Waiting for migration RBAC permissions: delete ipamblocks, get daemonsets; \
                    apply the role calico-kube-controllers-migration \
                    (deploy/components/migrate-to-v3)";
    assert_eq!(refusal(&cluster).await, expected);

    // The API server refuses the request before the reviews are made.
    cluster.server.fail(|request: &ReceivedRequest| {
        let is_refused = request.uri.path().contains("/daemonsets/");
        is_refused.then(|| failure(403, "Forbidden", "daemonsets is forbidden"))
    });
    assert_eq!(refusal(&cluster).await, expected);
}

/// Makes the API server refuse each request for a DaemonSet with this message.
fn refuse_daemon_sets(cluster: &MigratedCluster, message: &'static str) {
    cluster.server.fail(move |request: &ReceivedRequest| {
        let is_refused = request.uri.path().contains("/daemonsets/");
        is_refused.then(|| failure(403, "Forbidden", message))
    });
}

#[tokio::test(start_paused = true)]
async fn refusal_without_a_missing_right_is_reported_as_it_is() {
    let cluster = started();
    refuse_daemon_sets(&cluster, "a webhook says no");
    assert_eq!(
        refusal(&cluster).await,
        "Waiting for migration RBAC permissions: a webhook says no"
    );
}

#[tokio::test(start_paused = true)]
async fn rights_granted_while_the_leader_waits_let_the_migration_begin() {
    let cluster = started();
    refuse_daemon_sets(&cluster, "not yet");
    let granting = async {
        tokio::time::sleep(MINUTE).await;
        assert_eq!(
            cluster.message(),
            "Waiting for migration RBAC permissions: not yet"
        );
        cluster.server.end_faults();
    };
    let (processes, ()) = tokio::join!(cluster.run_until(is_v1_locked), granting);
    assert_eq!(processes, 1, "the process that waited locks the datastore");
}

#[tokio::test(start_paused = true)]
async fn process_that_is_told_v1_waits() {
    let mut cluster = started();
    cluster.configured = Some(ApiGroup::CrdV1);
    let expected = "CALICO_API_GROUP of kube-controllers is crd.projectcalico.org/v1; leave it \
                    empty (deploy/components/migrate-to-v3)";
    assert_eq!(refusal(&cluster).await, expected);
    cluster.configured = None;
    assert_completes(&cluster).await;
}

#[tokio::test(start_paused = true)]
async fn locks_of_other_programs_are_awaited() {
    for (group, expected) in [
        (
            ApiGroup::CrdV1,
            "v1 is locked (datastoreReady: false), and not by this migration",
        ),
        (
            ApiGroup::V3,
            "ClusterInformation of v3 is locked, and not by a migration",
        ),
    ] {
        let cluster = started();
        let locked = json!({ "spec": { "datastoreReady": false } });
        cluster
            .server
            .with_store(|store| store.put(&cluster_information(group), locked));
        cluster.run_for(MINUTE).await;
        assert_eq!(
            (cluster.phase().as_str(), cluster.message().as_str()),
            ("Pending", expected)
        );
        let annotations =
            cluster.server.object(&cluster_information(group)).unwrap()["metadata"]["annotations"]
                .clone();
        assert_eq!(annotations, Value::Null);
    }
}

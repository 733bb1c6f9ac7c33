//! The seal of v1 in `deploy/components/migrate-to-v3`, beside the policies of
//! `deploy/components/node-restriction`.

use anyhow::Result;
use integration_tests::controllers::{PATIENCE, await_that};
use integration_tests::kubernetes::node_restriction::await_denial;
use integration_tests::kubernetes::{Answer, Client};
use integration_tests::manifests::{NAMESPACE as SYSTEM, deploy};
use integration_tests::{Place, on};
use libcalico::kubernetes::ApiGroup;
use libcalico::migration::V1_LOCKED_BY;
use serde_json::{Value, json};

use crate::node_restriction::restricted_cluster::{RestrictedCluster, assert_denied, composed};

const SEAL: &str = "calico-v1-sealed";
const TEXT: &str = "v1 is locked by the migration to projectcalico.org/v3";
const INFORMATION: &str = "clusterinformations";

fn on(place: Place, test: fn(&RestrictedCluster<'_>)) {
    composed(place, &["components/migrate-to-v3"], test);
}

/// Locks or unlocks v1 as a migration does, or without the mark of a migration as another program
/// does.
fn set_lock(cluster: &RestrictedCluster<'_>, is_ready: bool, mark: Option<&str>) {
    let mut information = cluster.calico(
        "ClusterInformation",
        "default",
        json!({ "datastoreReady": is_ready }),
    );
    if let Some(mark) = mark {
        information["metadata"]["annotations"] = json!({ V1_LOCKED_BY: mark });
    }
    cluster.api.admin().apply_object(&information).unwrap();
}

/// Locks v1 as a migration does, and waits until the API server has noticed the lock.
fn seal(cluster: &RestrictedCluster<'_>) {
    set_lock(cluster, false, Some("uid"));
    await_denial(SEAL, || try_to_write(cluster)).unwrap();
}

/// Waits until the API server has noticed that v1 is not sealed.
fn await_open(cluster: &RestrictedCluster<'_>) {
    await_that(PATIENCE, || Ok(try_to_write(cluster)?.code == 201)).unwrap();
}

fn try_to_write(cluster: &RestrictedCluster<'_>) -> Result<Answer> {
    let block = cluster.block("10.65.9.0/30", "host:node1", &[]);
    cluster.api.admin().create(
        &format!("{}?dryRun=All", cluster.path("ipamblocks")),
        &block,
    )
}

/// Returns an object of each sealed kind, with its plural. A node may write all of them.
fn objects(cluster: &RestrictedCluster<'_>, cidr: &str) -> [(&'static str, Value); 3] {
    let handle = format!("net.{}", cidr.replace(['.', '/'], "-"));
    let spec = json!({ "handleID": handle, "block": { cidr: 1 }, "deleted": false });
    [
        ("ipamblocks", cluster.block(cidr, "host:node1", &[])),
        ("blockaffinities", cluster.affinity("node1", cidr)),
        ("ipamhandles", cluster.calico("IPAMHandle", &handle, spec)),
    ]
}

fn path_of(cluster: &RestrictedCluster<'_>, plural: &str, object: &Value) -> String {
    cluster.object_path(plural, object["metadata"]["name"].as_str().unwrap())
}

/// Creates, changes and deletes an object of each sealed kind.
fn write_all(cluster: &RestrictedCluster<'_>, client: &Client) {
    for (plural, object) in objects(cluster, "10.65.2.0/30") {
        let path = path_of(cluster, plural, &object);
        client
            .create(&cluster.path(plural), &object)
            .unwrap()
            .success();
        let labelled = cluster.change(client, &path, |object| {
            object["metadata"]["labels"] = json!({ "a": "b" })
        });
        labelled.unwrap().success();
        client.delete(&path).unwrap().success();
    }
}

/// Shows SEC-68.
#[on(kubernetes_v1)]
fn write_to_sealed_v1_is_refused(cluster: &RestrictedCluster<'_>) {
    let (admin, plugins) = (cluster.api.admin(), cluster.plugins_of("node1"));
    set_lock(cluster, true, None);
    await_open(cluster);
    for (plural, object) in objects(cluster, "10.65.1.0/30") {
        plugins
            .create(&cluster.path(plural), &object)
            .unwrap()
            .success();
    }
    seal(cluster);
    for client in [admin, &plugins] {
        for (plural, object) in objects(cluster, "10.65.3.0/30") {
            let refused = client.create(&cluster.path(plural), &object).unwrap();
            assert!(refused.reason().contains(TEXT), "{refused:?}");
            assert_denied(Ok(refused), SEAL);
        }
        for (plural, object) in objects(cluster, "10.65.1.0/30") {
            let path = path_of(cluster, plural, &object);
            let labels = json!({ "a": "b" });
            assert_denied(
                cluster.change(client, &path, |object| {
                    object["metadata"]["labels"] = labels
                }),
                SEAL,
            );
            assert_denied(client.delete(&path), SEAL);
        }
    }
    assert_denied(admin.delete(&cluster.path("ipamhandles")), SEAL);
    // The migration writes the same kinds in v3.
    let pool = cluster.calico("IPPool", "pool4", json!({ "cidr": "10.65.0.0/16" }));
    admin
        .create(&cluster.path("ippools"), &pool)
        .unwrap()
        .success();
    cluster.api.define(ApiGroup::V3.api_version()).unwrap();
    let in_v3 = RestrictedCluster {
        group: ApiGroup::V3,
        ..*cluster
    };
    write_all(&in_v3, admin);

    set_lock(cluster, true, None);
    await_open(cluster);
    write_all(cluster, &plugins);
}

/// `calico-ipam -upgrade` locks v1 without the mark of a migration, and writes while v1 is locked.
#[on(kubernetes_v1)]
fn upgrade_ipam_is_not_concerned(cluster: &RestrictedCluster<'_>) {
    let rights = [deploy("components/upgrade-ipam/rbac.yaml")];
    let account = cluster
        .api
        .account_of(SYSTEM, "upgrade-ipam", &rights)
        .unwrap();
    seal(cluster);
    set_lock(cluster, false, None);
    await_open(cluster);
    write_all(cluster, &account.client);
}

#[on(kubernetes_v1)]
fn seal_without_cluster_information_refuses_nothing(cluster: &RestrictedCluster<'_>) {
    seal(cluster);
    cluster
        .api
        .admin()
        .delete(&cluster.object_path(INFORMATION, "default"))
        .unwrap()
        .success();
    await_open(cluster);
    write_all(cluster, &cluster.plugins_of("node1"));
}

/// A migration ends with the deletion of the definitions of v1, while v1 is sealed.
#[on(kubernetes_v1)]
fn definitions_of_sealed_v1_are_deleted_with_their_objects(cluster: &RestrictedCluster<'_>) {
    await_open(cluster);
    for (plural, object) in objects(cluster, "10.65.1.0/30") {
        cluster
            .api
            .admin()
            .create(&cluster.path(plural), &object)
            .unwrap()
            .success();
    }
    seal(cluster);
    cluster.api.admin().undefine().unwrap();
}

#[on(kubernetes_v1)]
fn token_of_a_node_neither_seals_nor_opens_v1(cluster: &RestrictedCluster<'_>) {
    let (plugins, path) = (
        cluster.plugins_of("node1"),
        cluster.object_path(INFORMATION, "default"),
    );
    set_lock(cluster, true, None);
    let sealed = cluster.change(&plugins, &path, |information| {
        information["spec"]["datastoreReady"] = json!(false);
        information["metadata"]["annotations"] = json!({ V1_LOCKED_BY: "uid" });
    });
    assert_eq!(sealed.unwrap().code, 403);
    seal(cluster);
    let opened = cluster.change(&plugins, &path, |information| {
        information["spec"]["datastoreReady"] = json!(true)
    });
    assert_eq!(opened.unwrap().code, 403);
    let unmarked = json!({ "metadata": { "annotations": null } });
    assert_eq!(plugins.patch(&path, &unmarked).unwrap().code, 403);
    assert_denied(try_to_write(cluster), SEAL);
}

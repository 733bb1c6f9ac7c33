//! The seal of v1 in `deploy/components/migrate-to-v3`, beside the policies of
//! `deploy/components/node-restriction`.

use anyhow::Result;
use integration_tests::controllers::{PATIENCE, await_that};
use integration_tests::kubernetes::node_restriction::await_denial;
use integration_tests::kubernetes::{Answer, Client};
use integration_tests::manifests::{NAMESPACE as SYSTEM, deploy};
use libcalico::kubernetes::ApiGroup;
use libcalico::migration::V1_LOCKED_BY;
use serde_json::{Value, json};

use crate::scene::{Scene, assert_denied, restricted_with};

const SEAL: &str = "calico-v1-sealed";
const TEXT: &str = "v1 is locked by the migration to projectcalico.org/v3";
const INFORMATION: &str = "clusterinformations";

fn with_seal(test: impl FnOnce(&Scene<'_>) + Send) {
    restricted_with(ApiGroup::CrdV1, &["components/migrate-to-v3"], test);
}

/// Locks or unlocks v1 as a migration does, or without the mark of a migration as another program
/// does.
fn set_lock(scene: &Scene<'_>, is_ready: bool, mark: Option<&str>) {
    let mut information = scene.calico(
        "ClusterInformation",
        "default",
        json!({ "datastoreReady": is_ready }),
    );
    if let Some(mark) = mark {
        information["metadata"]["annotations"] = json!({ V1_LOCKED_BY: mark });
    }
    scene.api.admin().apply_object(&information).unwrap();
}

/// Locks v1 as a migration does, and waits until the API server has noticed the lock.
fn seal(scene: &Scene<'_>) {
    set_lock(scene, false, Some("uid"));
    await_denial(SEAL, || try_to_write(scene)).unwrap();
}

/// Waits until the API server has noticed that v1 is not sealed.
fn await_open(scene: &Scene<'_>) {
    await_that(PATIENCE, || Ok(try_to_write(scene)?.code == 201)).unwrap();
}

fn try_to_write(scene: &Scene<'_>) -> Result<Answer> {
    let block = scene.block("10.65.9.0/30", "host:node1", &[]);
    scene
        .api
        .admin()
        .create(&format!("{}?dryRun=All", scene.path("ipamblocks")), &block)
}

/// Returns an object of each sealed kind, with its plural. A node may write all of them.
fn objects(scene: &Scene<'_>, cidr: &str) -> [(&'static str, Value); 3] {
    let handle = format!("net.{}", cidr.replace(['.', '/'], "-"));
    let spec = json!({ "handleID": handle, "block": { cidr: 1 }, "deleted": false });
    [
        ("ipamblocks", scene.block(cidr, "host:node1", &[])),
        ("blockaffinities", scene.affinity("node1", cidr)),
        ("ipamhandles", scene.calico("IPAMHandle", &handle, spec)),
    ]
}

fn path_of(scene: &Scene<'_>, plural: &str, object: &Value) -> String {
    scene.object_path(plural, object["metadata"]["name"].as_str().unwrap())
}

/// Creates, changes and deletes an object of each sealed kind.
fn write_all(scene: &Scene<'_>, client: &Client) {
    for (plural, object) in objects(scene, "10.65.2.0/30") {
        let path = path_of(scene, plural, &object);
        client
            .create(&scene.path(plural), &object)
            .unwrap()
            .success()
            .unwrap();
        let labelled = scene.change(client, &path, |object| {
            object["metadata"]["labels"] = json!({ "a": "b" })
        });
        labelled.unwrap().success().unwrap();
        client.delete(&path).unwrap().success().unwrap();
    }
}

#[test]
fn write_to_sealed_v1_is_refused() {
    with_seal(|scene| {
        let (admin, plugins) = (scene.api.admin(), scene.plugins_of("node1"));
        set_lock(scene, true, None);
        await_open(scene);
        for (plural, object) in objects(scene, "10.65.1.0/30") {
            plugins
                .create(&scene.path(plural), &object)
                .unwrap()
                .success()
                .unwrap();
        }
        seal(scene);
        for client in [admin, &plugins] {
            for (plural, object) in objects(scene, "10.65.3.0/30") {
                let refused = client.create(&scene.path(plural), &object).unwrap();
                assert!(refused.reason().contains(TEXT), "{refused:?}");
                assert_denied(Ok(refused), SEAL);
            }
            for (plural, object) in objects(scene, "10.65.1.0/30") {
                let path = path_of(scene, plural, &object);
                let labels = json!({ "a": "b" });
                assert_denied(
                    scene.change(client, &path, |object| {
                        object["metadata"]["labels"] = labels
                    }),
                    SEAL,
                );
                assert_denied(client.delete(&path), SEAL);
            }
        }
        assert_denied(admin.delete(&scene.path("ipamhandles")), SEAL);
        // The migration writes the same kinds in v3.
        let pool = scene.calico("IPPool", "pool4", json!({ "cidr": "10.65.0.0/16" }));
        admin
            .create(&scene.path("ippools"), &pool)
            .unwrap()
            .success()
            .unwrap();
        scene.api.define(ApiGroup::V3.api_version()).unwrap();
        let in_v3 = Scene {
            group: ApiGroup::V3,
            ..*scene
        };
        write_all(&in_v3, admin);

        set_lock(scene, true, None);
        await_open(scene);
        write_all(scene, &plugins);
    });
}

/// `calico-ipam -upgrade` locks v1 without the mark of a migration, and writes while v1 is locked.
#[test]
fn upgrade_ipam_is_not_concerned() {
    with_seal(|scene| {
        let rights = [deploy("components/upgrade-ipam/rbac.yaml")];
        let account = scene
            .api
            .account_of(SYSTEM, "upgrade-ipam", &rights)
            .unwrap();
        seal(scene);
        set_lock(scene, false, None);
        await_open(scene);
        write_all(scene, &account.client);
    });
}

#[test]
fn seal_without_cluster_information_refuses_nothing() {
    with_seal(|scene| {
        seal(scene);
        scene
            .api
            .admin()
            .delete(&scene.object_path(INFORMATION, "default"))
            .unwrap()
            .success()
            .unwrap();
        await_open(scene);
        write_all(scene, &scene.plugins_of("node1"));
    });
}

/// A migration ends with the deletion of the definitions of v1, while v1 is sealed.
#[test]
fn definitions_of_sealed_v1_are_deleted_with_their_objects() {
    with_seal(|scene| {
        await_open(scene);
        for (plural, object) in objects(scene, "10.65.1.0/30") {
            scene
                .api
                .admin()
                .create(&scene.path(plural), &object)
                .unwrap()
                .success()
                .unwrap();
        }
        seal(scene);
        scene.api.admin().undefine().unwrap();
    });
}

#[test]
fn token_of_a_node_neither_seals_nor_opens_v1() {
    with_seal(|scene| {
        let (plugins, path) = (
            scene.plugins_of("node1"),
            scene.object_path(INFORMATION, "default"),
        );
        set_lock(scene, true, None);
        let sealed = scene.change(&plugins, &path, |information| {
            information["spec"]["datastoreReady"] = json!(false);
            information["metadata"]["annotations"] = json!({ V1_LOCKED_BY: "uid" });
        });
        assert_eq!(sealed.unwrap().code, 403);
        seal(scene);
        let opened = scene.change(&plugins, &path, |information| {
            information["spec"]["datastoreReady"] = json!(true)
        });
        assert_eq!(opened.unwrap().code, 403);
        let unmarked = json!({ "metadata": { "annotations": null } });
        assert_eq!(plugins.patch(&path, &unmarked).unwrap().code, 403);
        assert_denied(try_to_write(scene), SEAL);
    });
}

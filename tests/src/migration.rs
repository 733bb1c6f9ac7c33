//! States of an API server during and after a migration to `projectcalico.org/v3`, without the program that migrates.

use libcalico::kubernetes::ApiGroup;
use serde_json::json;

use crate::kubernetes::ApiServer;

/// Locks `crd.projectcalico.org/v1`, or unlocks it.
///
/// # Panics
/// The API server refuses the request.
pub fn set_ready(api: &ApiServer, ready: bool) {
    let path = format!("/apis/{}/clusterinformations/default", ApiGroup::CrdV1.api_version());
    let spec = json!({ "spec": { "datastoreReady": ready } });
    api.admin().patch(&path, &spec).unwrap().success().unwrap();
}

/// Reproduces the state that a migration reaches with `Converged`: v1 is locked, and v3 has the objects of IPAM and is
/// open.
///
/// # Panics
/// The API server refuses a request.
pub fn migrate(api: &ApiServer) {
    let (v1, v3) = (ApiGroup::CrdV1.api_version(), ApiGroup::V3.api_version());
    let admin = api.admin();
    api.define(v3).unwrap();
    set_ready(api, false);
    for plural in ["ippools", "blockaffinities", "ipamblocks", "ipamhandles", "clusterinformations"] {
        let items = admin.get(&format!("/apis/{v1}/{plural}")).unwrap().success().unwrap()["items"].take();
        for mut object in items.as_array().unwrap().clone() {
            let metadata = json!({ "name": object["metadata"]["name"], "annotations": {
                "migration.projectcalico.org/migrated-by": "uid",
            }, "labels": object["metadata"]["labels"] });
            object["metadata"] = metadata;
            object["apiVersion"] = json!(v3);
            match plural {
                "clusterinformations" => object["spec"]["datastoreReady"] = json!(true),
                // The value is a string in v1.
                "blockaffinities" => object["spec"]["deleted"] = json!(false),
                _ => {}
            }
            admin.create(&format!("/apis/{v3}/{plural}"), &object).unwrap().success().unwrap();
        }
    }
}

/// Returns the number of handles in a group.
///
/// # Panics
/// The API server refuses the request.
pub fn handles(api: &ApiServer, group: ApiGroup) -> usize {
    let list = api.admin().get(&format!("/apis/{}/ipamhandles", group.api_version())).unwrap().success().unwrap();
    list["items"].as_array().unwrap().len()
}

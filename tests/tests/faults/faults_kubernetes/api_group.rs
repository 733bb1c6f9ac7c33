//! A cached API group after the groups that the API server serves have changed.

use std::fs;

use datastore::kubernetes::API_GROUP_FILE;
use integration_tests::cluster::{Cluster, ControlPlane, Faulty, on, on_one_group};
use integration_tests::kubernetes::ApiServer;
use integration_tests::migration::{handles, migrate};
use libcalico::kubernetes::ApiGroup;
use serde_json::json;

use super::faulty;

/// Returns the number of discovery requests since the proxy was armed.
fn questions(faulty: &Faulty<'_>) -> usize {
    faulty
        .proxy
        .requests()
        .iter()
        .filter(|request| *request == "GET /apis")
        .count()
}

#[test]
fn cached_api_group_is_discovered_again_if_it_is_missing_or_v1_is_served_too() {
    on_one_group(ApiGroup::V3, cached_v3_is_discovered_again);
}

fn cached_v3_is_discovered_again(cluster: &Cluster<'_>, control_plane: &mut ControlPlane<'_>) {
    let faulty = &mut faulty(cluster, &control_plane.proxy);
    faulty
        .conf
        .as_object_mut()
        .unwrap()
        .remove("calico_api_group");
    let (first, second) = (faulty.pod(), faulty.pod());
    faulty.run("ADD", &first);
    assert_eq!(questions(faulty), 1);
    faulty.run("ADD", &second);
    assert_eq!(questions(faulty), 0, "it is remembered");

    // An ADD creates the handle ahead of its reads, and both ask after their 404.
    for (verb, pod, asked) in [
        ("DEL", &first, 1),
        ("STATUS", &second, 1),
        ("DEL", &second, 1),
        ("ADD", &first, 2),
    ] {
        let remembered = fs::read_to_string(API_GROUP_FILE).unwrap();
        let (ours, other) = (ApiGroup::V3.api_version(), ApiGroup::CrdV1.api_version());
        assert!(remembered.contains(ours), "{remembered}");
        fs::write(API_GROUP_FILE, remembered.replace(ours, other)).unwrap();
        faulty.proxy.arm(None);
        faulty.call(verb, pod).run().success();
        assert_eq!(questions(faulty), asked, "{verb}");
    }
    faulty.run("DEL", &first);
    faulty.cluster.assert_nothing_left();
    cached_v3_is_replaced_once_v1_is_served_too(faulty, &control_plane.servers.api);
}

/// Upstream prefers v1 (DS-22). A node that continued with v3 could assign addresses that other
/// nodes also assign.
fn cached_v3_is_replaced_once_v1_is_served_too(faulty: &mut Faulty<'_>, api: &ApiServer) {
    let (first, second) = (faulty.pod(), faulty.pod());
    faulty.run("ADD", &first);
    // All objects except handles: an ADD creates one ahead of its reads.
    let kept = |faulty: &Faulty<'_>| {
        let mut objects = faulty.cluster.store.dump().unwrap();
        objects.retain(|key, _| !key.contains("ipamhandles"));
        objects
    };
    let before = kept(faulty);
    api.define(ApiGroup::CrdV1.api_version()).unwrap();
    api.await_group("crd.projectcalico.org").unwrap();
    faulty.proxy.arm(None);
    // The ADD uses v1, which has no objects yet.
    let error = faulty.call("ADD", &second).run().error();
    assert!(error.msg.contains("ClusterInformation"), "{error:?}");
    assert_eq!(questions(faulty), 1);
    let remembered = fs::read_to_string(API_GROUP_FILE).unwrap();
    assert!(
        remembered.contains(ApiGroup::CrdV1.api_version()),
        "{remembered}"
    );
    assert_eq!(kept(faulty), before);
}

/// Upstream's migration permanently locks v1 and unlocks v3. Shows SEC-72.
#[on(kubernetes_v1)]
fn migration_to_v3_is_followed_unless_v1_is_configured(
    cluster: &Cluster<'_>,
    control_plane: &mut ControlPlane<'_>,
) {
    let faulty = &mut faulty(cluster, &control_plane.proxy);
    let named = faulty.conf.clone();
    faulty
        .conf
        .as_object_mut()
        .unwrap()
        .remove("calico_api_group");
    let (first, second, third) = (faulty.pod(), faulty.pod(), faulty.pod());
    faulty.run("ADD", &first);
    let api = &control_plane.servers.api;
    migrate(api);
    let remembered = || fs::read_to_string(API_GROUP_FILE).unwrap();
    assert!(
        remembered().contains(ApiGroup::CrdV1.api_version()),
        "{}",
        remembered()
    );

    // The ADD has created a handle in v1 when it finds v1 locked.
    faulty.run("ADD", &second);
    assert!(
        remembered().contains(ApiGroup::V3.api_version()),
        "{}",
        remembered()
    );
    let handles = |group: ApiGroup| handles(api, group);
    assert_eq!((handles(ApiGroup::CrdV1), handles(ApiGroup::V3)), (1, 2));
    faulty.run("ADD", &third);
    assert_eq!(
        (handles(ApiGroup::CrdV1), handles(ApiGroup::V3)),
        (1, 3),
        "nothing more is made in v1"
    );
    for pod in [&first, &second, &third] {
        faulty.run("DEL", pod);
    }
    assert_eq!(handles(ApiGroup::V3), 0);

    faulty.conf = named;
    faulty.proxy.arm(None);
    let error = faulty.call("ADD", &first).run().error();
    assert!(
        error.msg.contains("moved to projectcalico.org/v3"),
        "{error:?}"
    );
    assert!(error.details.contains("set calico_api_group"), "{error:?}");
}

/// `calico-ipam` for people opens no cache: it would show and repair the locked v1.
#[on(kubernetes_v1)]
fn command_line_on_a_node_follows_a_migration(
    cluster: &Cluster<'_>,
    control_plane: &mut ControlPlane<'_>,
) {
    let faulty = &mut faulty(cluster, &control_plane.proxy);
    faulty
        .conf
        .as_object_mut()
        .unwrap()
        .remove("calico_api_group");
    let pod = faulty.pod();
    faulty.run("ADD", &pod);
    let api = &control_plane.servers.api;
    migrate(api);
    let only_in_v3 = "10.99.0.0/24";
    let spec = json!({ "cidr": only_in_v3, "nodeSelector": "all()" });
    let metadata = json!({ "name": "only-in-v3" });
    let pool = json!({
        "apiVersion": ApiGroup::V3.api_version(), "kind": "IPPool", "metadata": metadata,
        "spec": spec,
    });
    api.admin().apply_object(&pool).unwrap();

    let cached = fs::read_to_string(API_GROUP_FILE).unwrap();
    assert!(cached.contains(ApiGroup::CrdV1.api_version()), "{cached}");
    let kubeconfig = faulty.conf["kubernetes"]["kubeconfig"].as_str().unwrap();
    let tool = |args: &[&str]| {
        let call = faulty
            .cluster
            .plugins
            .call("calico-ipam")
            .args(args.iter().copied());
        call.env("DATASTORE_TYPE", "kubernetes")
            .env("KUBECONFIG", kubeconfig)
            .run()
    };
    faulty.proxy.arm(None);
    let shown = tool(&["show"]);
    assert!(
        shown.exit == Some(0) && shown.stdout.contains(only_in_v3),
        "{shown:?}"
    );
    let checked = tool(&["check"]);
    assert_eq!(checked.exit, Some(0), "{checked:?}");
}

//! Affinities of other nodes.

use integration_tests::controllers::deletion_mark;
use libcalico::kubernetes::ApiGroup;
use serde_json::json;

use crate::scene::{assert_denied, restricted};

const POLICY: &str = "calico-cni-affinities";

fn affinities_are_those_of_the_node(group: ApiGroup) {
    restricted(group, |scene| {
        let (admin, plugins) = (scene.api.admin(), scene.plugins_of("node1"));
        let all = scene.path("blockaffinities");
        let path = |name: &str| scene.object_path("blockaffinities", name);
        let (own, foreign) = (path("node1-10-65-1-0-30"), path("node2-10-65-2-0-30"));
        admin
            .create(&all, &scene.affinity("node2", "10.65.2.0/30"))
            .unwrap()
            .success()
            .unwrap();

        assert_denied(
            plugins.create(&all, &scene.affinity("node2", "10.65.3.0/30")),
            POLICY,
        );
        assert_denied(plugins.delete(&foreign), POLICY);
        for (field, value) in [
            ("state", json!("pendingDeletion")),
            ("node", json!("node1")),
            ("type", json!("virtual")),
        ] {
            let edited = scene.change(&plugins, &foreign, |affinity| {
                affinity["spec"][field] = value
            });
            assert_denied(edited, POLICY);
        }
        assert_eq!(
            admin.get(&foreign).unwrap().success().unwrap()["spec"]["state"],
            "confirmed"
        );

        plugins
            .create(&all, &scene.affinity("node1", "10.65.1.0/30"))
            .unwrap()
            .success()
            .unwrap();
        for (field, value) in [("node", json!("node2")), ("cidr", json!("10.65.2.0/30"))] {
            assert_denied(
                scene.change(&plugins, &own, |affinity| affinity["spec"][field] = value),
                POLICY,
            );
        }
        // `node2` would take an affinity of this name for its own.
        let mut misnamed = scene.affinity("node1", "10.65.3.0/30");
        misnamed["metadata"]["name"] = json!("node2-10-65-3-0-30");
        assert_denied(plugins.create(&all, &misnamed), POLICY);
        let marked = scene.change(&plugins, &own, |affinity| {
            affinity["spec"]["state"] = json!("pendingDeletion")
        });
        marked.unwrap().success().unwrap();
        plugins.delete(&own).unwrap().success().unwrap();

        // Each plugin that reads the affinity may complete a deletion that another program began.
        let mark = deletion_mark(group, true);
        let begun = scene.change(admin, &foreign, |affinity| {
            affinity["spec"]["deleted"] = mark
        });
        begun.unwrap().success().unwrap();
        plugins.delete(&foreign).unwrap().success().unwrap();
    });
}

#[test]
fn token_of_a_node_writes_only_its_affinities_in_crd_v1() {
    affinities_are_those_of_the_node(ApiGroup::CrdV1);
}

#[test]
fn token_of_a_node_writes_only_its_affinities_in_v3() {
    affinities_are_those_of_the_node(ApiGroup::V3);
}

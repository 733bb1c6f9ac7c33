//! Renames of policies that an older Calico stored under names with the prefix `default.`.

use integration_tests::manifests::deploy;
use integration_tests::proxy::{Fault, Point};
use kube_controllers::settings::Mode;
use libcalico::kubernetes::ApiGroup;
use serde_json::{Value, json};

use crate::policies::mirrored;
use crate::scene::{
    OBJECTS, Scene, becomes, every_second, on_scene, on_scene_of, only_at_first, stays,
};

const COLLECTION: &str = "/apis/crd.projectcalico.org/v1/namespaces/shop/networkpolicies";

impl Scene<'_> {
    /// Creates calico-node's DaemonSet with a complete rollout, for which the renames wait: older
    /// calico-nodes need the old names (KC-284).
    fn roll_out(&self) {
        self.apply(
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "calico-system"}}),
        );
        let labels = json!({"k8s-app": "calico-node"});
        self.apply(json!({
            "apiVersion": "apps/v1", "kind": "DaemonSet",
            "metadata": {"name": "calico-node", "namespace": "calico-system"},
            "spec": {
                "selector": {"matchLabels": labels},
                "template": {
                    "metadata": {"labels": labels},
                    "spec": {"containers": [{"name": "c", "image": "i"}]},
                },
            },
        }));
        let path = "/apis/apps/v1/namespaces/calico-system/daemonsets/calico-node/status";
        self.admin
            .patch(path, &json!({"status": {"observedGeneration": 1}}))
            .unwrap()
            .success()
            .unwrap();
    }

    fn global(&self, key: &str, name: &str, order: u32) {
        let policy = json!({
            "kind": "GlobalNetworkPolicy", "metadata": {"name": name, "uid": key},
            "spec": {"order": order},
        });
        self.put(&format!("globalnetworkpolicies/{key}"), policy);
    }

    fn orders(&self) -> Vec<(String, Value)> {
        let all = self.all().into_iter();
        let of = |(key, policy): (String, Value)| {
            Some((
                key.strip_prefix("globalnetworkpolicies/")?.to_owned(),
                policy["spec"]["order"].clone(),
            ))
        };
        all.filter_map(of).collect()
    }

    fn custom_resources(&self) -> Vec<(Value, Value)> {
        let list = self.admin.get(COLLECTION).unwrap().success().unwrap();
        let policy = |policy: &Value| (policy["metadata"]["name"].clone(), policy["spec"].clone());
        list["items"]
            .as_array()
            .unwrap()
            .iter()
            .map(policy)
            .collect()
    }
}

/// Policies of other tiers keep their names.
#[test]
fn policies_are_renamed_once_every_node_has_the_new_version() {
    on_scene(|scene| {
        let old = json!({
            "kind": "GlobalNetworkPolicy", "metadata": {"name": "default.g", "uid": "u"},
            "spec": {},
        });
        scene.put("globalnetworkpolicies/default.g", old);
        scene.put(
            "globalnetworkpolicies/other.g",
            json!({"metadata": {"name": "other.g"}, "spec": {"tier": "other"}}),
        );
        scene
            .etcd
            .put(&format!("{OBJECTS}globalnetworkpolicies/default.bad"), b"{")
            .unwrap();
        scene.policy("a", 1);
        let _running = scene.start(only_at_first);
        becomes(mirrored(&[("a", 1)]), || scene.ports());
        let names = || scene.keys("globalnetworkpolicies/");
        stays(
            ["default.bad", "default.g", "other.g"]
                .map(str::to_owned)
                .to_vec(),
            names,
        );
        scene.roll_out();
        becomes(
            ["default.bad", "g", "other.g"].map(str::to_owned).to_vec(),
            names,
        );
        let renamed = scene.get("globalnetworkpolicies/g").unwrap();
        assert_eq!(
            renamed["metadata"]["annotations"]["projectcalico.org/metadata"],
            "{\"name\":\"g\"}"
        );
    });
}

#[test]
fn custom_resource_policies_are_renamed_with_their_whole_spec() {
    on_scene_of(Mode::Kubernetes(ApiGroup::CrdV1), |scene| {
        let spec = json!({
            "tier": "default", "order": 7, "selector": "all()", "types": ["Ingress"],
            "serviceAccountSelector": "all()",
            "ingress": [{
                "action": "Allow", "protocol": "TCP", "notICMP": {"type": 8},
                "source": {"services": {"name": "s", "namespace": "n"}, "notPorts": [80, "81:82"]},
                "http": {"paths": [{"prefix": "/a"}]},
            }],
        });
        let old = json!({
            "apiVersion": "crd.projectcalico.org/v1", "kind": "NetworkPolicy",
            "metadata": {
                "name": "default.a", "namespace": "shop",
                "annotations": {"projectcalico.org/metadata": "{}"},
            },
            "spec": spec,
        });
        scene
            .admin
            .create(COLLECTION, &old)
            .unwrap()
            .success()
            .unwrap();
        scene.policy("k", 1);
        // Removes a definition, as in a Calico without this kind.
        let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
        let staged = format!("{definitions}/stagedglobalnetworkpolicies.crd.projectcalico.org");
        scene.admin.delete(&staged).unwrap().success().unwrap();
        scene.roll_out();
        let _running = scene.start(every_second);
        let policies = || scene.custom_resources();
        becomes(vec![(json!("a"), spec.clone())], policies);
        stays(vec![(json!("a"), spec.clone())], policies);
    });
}

/// Of two policies that exist under both names, the test deletes `copied` under the old name and
/// `uncopied` under the new one.
#[test]
fn policies_deleted_while_stopped_are_not_created_again() {
    on_scene(|scene| {
        for name in ["stays", "goes", "copied", "uncopied"] {
            scene.global(&format!("default.{name}"), &format!("default.{name}"), 1);
        }
        scene.policy("a", 1);
        let running = scene.start(only_at_first);
        becomes(mirrored(&[("a", 1)]), || scene.ports());
        drop(running);
        scene.global("copied", "copied", 1);
        scene.global("uncopied", "uncopied", 1);
        scene.delete("globalnetworkpolicies/default.goes");
        scene.delete("globalnetworkpolicies/default.copied");
        scene.delete("globalnetworkpolicies/uncopied");
        scene.roll_out();
        let _running = scene.start(only_at_first);
        let expected = ["copied", "stays", "uncopied"]
            .map(|name| (name.to_owned(), json!(1)))
            .to_vec();
        becomes(expected.clone(), || scene.orders());
        stays(expected, || scene.orders());
    });
}

/// The policy is changed after it was copied and before its old name is deleted.
#[test]
fn change_of_a_policy_during_its_rename_is_kept() {
    on_scene_of(Mode::Kubernetes(ApiGroup::CrdV1), |scene| {
        let old = json!({
            "apiVersion": "crd.projectcalico.org/v1", "kind": "NetworkPolicy",
            "metadata": {
                "name": "default.a", "namespace": "shop",
                "annotations": {"projectcalico.org/metadata": "{}"},
            },
            "spec": {"tier": "default", "order": 1, "selector": "all()"},
        });
        scene
            .admin
            .create(COLLECTION, &old)
            .unwrap()
            .success()
            .unwrap();
        scene.roll_out();
        let role = deploy("rbac/kubernetes/calico-kube-controllers.yaml");
        let proxy = scene.proxy();
        proxy.arm(Some((
            Point::First("DELETE", "/networkpolicies/default.a"),
            Fault::Hold,
        )));
        let _running = scene.start_as(&role, "calico-kube-controllers", &proxy, every_second);
        proxy.await_held().unwrap();
        let spec = |order: u32| json!({"tier": "default", "order": order, "selector": "all()"});
        assert_eq!(
            scene.custom_resources(),
            [(json!("a"), spec(1)), (json!("default.a"), spec(1))]
        );
        let change = json!({"spec": {"order": 2}});
        scene
            .admin
            .patch(&format!("{COLLECTION}/default.a"), &change)
            .unwrap()
            .success()
            .unwrap();
        proxy.resume();
        becomes(vec![(json!("a"), spec(2))], || scene.custom_resources());
    });
}

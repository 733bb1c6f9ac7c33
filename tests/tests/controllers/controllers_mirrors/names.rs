//! Renames of policies that an older Calico stored under names with the prefix `default.`.

use integration_tests::manifests::deploy;
use integration_tests::proxy::{Fault, Point};
use serde_json::{Value, json};

use crate::controllers_mirrors::mirrored_cluster::{
    MirroredCluster, OBJECTS, becomes, every_second, on, only_at_first, stays,
};
use crate::controllers_mirrors::policies::mirrored;

const COLLECTION: &str = "/apis/crd.projectcalico.org/v1/namespaces/shop/networkpolicies";

impl MirroredCluster<'_> {
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
        self.servers
            .merge(path, &json!({"status": {"observedGeneration": 1}}));
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
        let list = self.servers.read(COLLECTION);
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
#[on(etcd)]
fn policies_are_renamed_once_every_node_has_the_new_version(cluster: &MirroredCluster<'_>) {
    let old = json!({
        "kind": "GlobalNetworkPolicy", "metadata": {"name": "default.g", "uid": "u"},
        "spec": {},
    });
    cluster.put("globalnetworkpolicies/default.g", old);
    cluster.put(
        "globalnetworkpolicies/other.g",
        json!({"metadata": {"name": "other.g"}, "spec": {"tier": "other"}}),
    );
    cluster
        .servers
        .etcd
        .put(&format!("{OBJECTS}globalnetworkpolicies/default.bad"), b"{")
        .unwrap();
    cluster.policy("a", 1);
    let _running = cluster.start(only_at_first);
    becomes(mirrored(&[("a", 1)]), || cluster.ports());
    let names = || cluster.keys("globalnetworkpolicies/");
    stays(
        ["default.bad", "default.g", "other.g"]
            .map(str::to_owned)
            .to_vec(),
        names,
    );
    cluster.roll_out();
    becomes(
        ["default.bad", "g", "other.g"].map(str::to_owned).to_vec(),
        names,
    );
    let renamed = cluster.get("globalnetworkpolicies/g").unwrap();
    assert_eq!(
        renamed["metadata"]["annotations"]["projectcalico.org/metadata"],
        "{\"name\":\"g\"}"
    );
}

#[on(kubernetes_v1)]
fn custom_resource_policies_are_renamed_with_their_whole_spec(cluster: &MirroredCluster<'_>) {
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
    cluster.servers.create(COLLECTION, &old);
    cluster.policy("k", 1);
    // Removes a definition, as in a Calico without this kind.
    let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    let staged = format!("{definitions}/stagedglobalnetworkpolicies.crd.projectcalico.org");
    cluster.servers.remove(&staged);
    cluster.roll_out();
    let _running = cluster.start(every_second);
    let policies = || cluster.custom_resources();
    becomes(vec![(json!("a"), spec.clone())], policies);
    stays(vec![(json!("a"), spec.clone())], policies);
}

/// Of two policies that exist under both names, the test deletes `copied` under the old name and
/// `uncopied` under the new one.
#[on(etcd)]
fn policies_deleted_while_stopped_are_not_created_again(cluster: &MirroredCluster<'_>) {
    for name in ["stays", "goes", "copied", "uncopied"] {
        cluster.global(&format!("default.{name}"), &format!("default.{name}"), 1);
    }
    cluster.policy("a", 1);
    let running = cluster.start(only_at_first);
    becomes(mirrored(&[("a", 1)]), || cluster.ports());
    drop(running);
    cluster.global("copied", "copied", 1);
    cluster.global("uncopied", "uncopied", 1);
    cluster.delete("globalnetworkpolicies/default.goes");
    cluster.delete("globalnetworkpolicies/default.copied");
    cluster.delete("globalnetworkpolicies/uncopied");
    cluster.roll_out();
    let _running = cluster.start(only_at_first);
    let expected = ["copied", "stays", "uncopied"]
        .map(|name| (name.to_owned(), json!(1)))
        .to_vec();
    becomes(expected.clone(), || cluster.orders());
    stays(expected, || cluster.orders());
}

/// The policy is changed after it was copied and before its old name is deleted.
#[on(kubernetes_v1)]
fn change_of_a_policy_during_its_rename_is_kept(cluster: &MirroredCluster<'_>) {
    let old = json!({
        "apiVersion": "crd.projectcalico.org/v1", "kind": "NetworkPolicy",
        "metadata": {
            "name": "default.a", "namespace": "shop",
            "annotations": {"projectcalico.org/metadata": "{}"},
        },
        "spec": {"tier": "default", "order": 1, "selector": "all()"},
    });
    cluster.servers.create(COLLECTION, &old);
    cluster.roll_out();
    let role = deploy("rbac/kubernetes/calico-kube-controllers.yaml");
    let proxy = cluster.servers.api.proxy().unwrap();
    proxy.arm(Some((
        Point::First("DELETE", "/networkpolicies/default.a"),
        Fault::Hold,
    )));
    let _running = cluster.start_as(&role, "calico-kube-controllers", &proxy, every_second);
    proxy.await_held().unwrap();
    let spec = |order: u32| json!({"tier": "default", "order": order, "selector": "all()"});
    assert_eq!(
        cluster.custom_resources(),
        [(json!("a"), spec(1)), (json!("default.a"), spec(1))]
    );
    let change = json!({"spec": {"order": 2}});
    cluster
        .servers
        .merge(&format!("{COLLECTION}/default.a"), &change);
    proxy.resume();
    becomes(vec![(json!("a"), spec(2))], || cluster.custom_resources());
}

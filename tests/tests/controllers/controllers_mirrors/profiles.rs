//! The profiles of namespaces and service accounts.

use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::controllers_mirrors::mirrored_cluster::{
    MirroredCluster, OBJECTS, becomes, every_second, on, only_at_first,
};

impl MirroredCluster<'_> {
    fn labels(&self, profile: &str) -> Value {
        let profile = self.get(&format!("profiles/{profile}")).unwrap_or_default();
        profile["spec"]["labelsToApply"].clone()
    }

    fn namespace(&self, name: &str, labels: Value) {
        let metadata = json!({"name": name, "labels": labels});
        self.apply(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}));
    }

    fn account(&self, name: &str, labels: Value) {
        let metadata = json!({"name": name, "namespace": "shop", "labels": labels});
        self.apply(json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata}));
    }

    fn profiles(&self, prefix: &str) -> Vec<String> {
        self.keys("profiles/")
            .into_iter()
            .filter(|name| name.starts_with(prefix))
            .collect()
    }
}

fn of_namespace(team: &str) -> Value {
    json!({
        "pcns.team": team, "pcns.kubernetes.io/metadata.name": "web",
        "pcns.projectcalico.org/name": "web",
    })
}

#[on(etcd)]
fn profiles_are_created_updated_and_deleted_with_their_source(cluster: &MirroredCluster<'_>) {
    cluster.namespace("web", json!({"team": "a"}));
    cluster.account("ci.bot", json!({"role": "x"}));
    let _running = cluster.start(only_at_first);
    becomes(of_namespace("a"), || cluster.labels("kns.web"));
    let account = |role: &str| json!({"pcsa.role": role, "pcsa.projectcalico.org/name": "ci.bot"});
    becomes(account("x"), || cluster.labels("ksa.shop.ci.bot"));
    cluster.namespace("web", json!({"team": "b"}));
    cluster.account("ci.bot", json!({"role": "y"}));
    becomes(of_namespace("b"), || cluster.labels("kns.web"));
    becomes(account("y"), || cluster.labels("ksa.shop.ci.bot"));
    assert_eq!(
        cluster.get("profiles/kns.web").unwrap()["spec"]["ingress"],
        json!([{"action": "Allow"}])
    );
    assert!(
        cluster.get("profiles/ksa.shop.ci.bot").unwrap()["spec"]
            .get("ingress")
            .is_none()
    );
    cluster
        .servers
        .remove("/api/v1/namespaces/shop/serviceaccounts/ci.bot");
    becomes(None, || cluster.get("profiles/ksa.shop.ci.bot"));
    // No controller removes the namespace's finalizer.
    cluster.servers.remove("/api/v1/namespaces/web");
    let mut namespace = cluster.servers.read("/api/v1/namespaces/web");
    assert!(
        cluster.get("profiles/kns.web").is_some(),
        "as long as the namespace is there"
    );
    namespace["spec"]["finalizers"] = json!([]);
    cluster
        .servers
        .admin()
        .replace("/api/v1/namespaces/web/finalize", &namespace)
        .unwrap()
        .success();
    becomes(None, || cluster.get("profiles/kns.web"));
}

#[on(etcd)]
fn orphan_profiles_are_deleted_wrong_ones_corrected_and_foreign_ones_kept(
    cluster: &MirroredCluster<'_>,
) {
    cluster.namespace("web", json!({"team": "a"}));
    for orphan in ["kns.gone", "ksa.shop.gone", "ksa.nameless"] {
        cluster.put(
            &format!("profiles/{orphan}"),
            json!({"metadata": {"name": orphan}, "spec": {}}),
        );
    }
    let network = json!({"metadata": {"name": "net1"}, "spec": {"labelsToApply": {"net1": ""}}});
    cluster.put("profiles/net1", network.clone());
    let running = cluster.start(every_second);
    becomes(of_namespace("a"), || cluster.labels("kns.web"));
    let orphans = || {
        let all = [
            cluster.profiles("kns.gone"),
            cluster.profiles("ksa.shop.gone"),
            cluster.profiles("ksa.nameless"),
        ];
        all.concat()
    };
    becomes(Vec::new(), orphans);
    let mut wrong = cluster.get("profiles/kns.web").unwrap();
    wrong["spec"]["labelsToApply"] = json!({"pcns.team": "spoofed"});
    cluster.put("profiles/kns.web", wrong);
    becomes(of_namespace("a"), || cluster.labels("kns.web"));
    drop(running);
    cluster.delete("profiles/kns.web");
    let _running = cluster.start(every_second);
    becomes(of_namespace("a"), || cluster.labels("kns.web"));
    assert_eq!(cluster.get("profiles/net1"), Some(network));
}

#[on(etcd)]
fn invalid_profiles_are_replaced_and_converge_against_conflicting_writers(
    cluster: &MirroredCluster<'_>,
) {
    cluster.namespace("web", json!({"team": "a"}));
    for profile in ["kns.web", "kns.gone", "ksa.shop.default", "ksa.shop.gone"] {
        cluster
            .servers
            .etcd
            .put(&format!("{OBJECTS}profiles/{profile}"), b"{")
            .unwrap();
    }
    let _running = cluster.start(every_second);
    becomes(of_namespace("a"), || cluster.labels("kns.web"));
    becomes(vec!["ksa.shop.default".to_owned()], || {
        cluster.profiles("ksa.shop.")
    });
    becomes(Vec::new(), || cluster.profiles("kns.gone"));
    assert_eq!(
        cluster.labels("ksa.shop.default"),
        json!({"pcsa.projectcalico.org/name": "default"})
    );
    let end = Instant::now() + Duration::from_secs(3);
    // On a slow machine the time may be over before the labels have changed in round 20.
    for round in (0..).take_while(|round| *round <= 20 || Instant::now() < end) {
        for profile in ["kns.web", "ksa.shop.default"] {
            let wrong = json!({
                "metadata": {"name": profile},
                "spec": {"labelsToApply": {"round": round.to_string()}},
            });
            cluster.put(&format!("profiles/{profile}"), wrong);
        }
        if round == 20 {
            cluster.namespace("web", json!({"team": "b"}));
        }
        thread::sleep(Duration::from_millis(15));
    }
    becomes(of_namespace("b"), || cluster.labels("kns.web"));
    becomes(json!({"pcsa.projectcalico.org/name": "default"}), || {
        cluster.labels("ksa.shop.default")
    });
}

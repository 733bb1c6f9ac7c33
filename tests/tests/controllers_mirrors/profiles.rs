//! The profiles of namespaces and service accounts.

use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::scene::{OBJECTS, Scene, becomes, every_second, on_scene, only_at_first};

impl Scene<'_> {
    fn labels(&self, profile: &str) -> Value {
        let profile = self.get(&format!("profiles/{profile}")).unwrap_or_default();
        profile["spec"]["labelsToApply"].clone()
    }

    fn namespace(&self, name: &str, labels: Value) {
        self.apply(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}));
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

#[test]
fn profiles_are_created_updated_and_deleted_with_their_source() {
    on_scene(|scene| {
        scene.namespace("web", json!({"team": "a"}));
        scene.account("ci.bot", json!({"role": "x"}));
        let _running = scene.start(only_at_first);
        becomes(of_namespace("a"), || scene.labels("kns.web"));
        let account =
            |role: &str| json!({"pcsa.role": role, "pcsa.projectcalico.org/name": "ci.bot"});
        becomes(account("x"), || scene.labels("ksa.shop.ci.bot"));
        scene.namespace("web", json!({"team": "b"}));
        scene.account("ci.bot", json!({"role": "y"}));
        becomes(of_namespace("b"), || scene.labels("kns.web"));
        becomes(account("y"), || scene.labels("ksa.shop.ci.bot"));
        assert_eq!(
            scene.get("profiles/kns.web").unwrap()["spec"]["ingress"],
            json!([{"action": "Allow"}])
        );
        assert!(
            scene.get("profiles/ksa.shop.ci.bot").unwrap()["spec"]
                .get("ingress")
                .is_none()
        );
        scene
            .admin
            .delete("/api/v1/namespaces/shop/serviceaccounts/ci.bot")
            .unwrap()
            .success()
            .unwrap();
        becomes(None, || scene.get("profiles/ksa.shop.ci.bot"));
        // No controller removes the namespace's finalizer.
        scene
            .admin
            .delete("/api/v1/namespaces/web")
            .unwrap()
            .success()
            .unwrap();
        let mut namespace = scene
            .admin
            .get("/api/v1/namespaces/web")
            .unwrap()
            .success()
            .unwrap();
        assert!(
            scene.get("profiles/kns.web").is_some(),
            "as long as the namespace is there"
        );
        namespace["spec"]["finalizers"] = json!([]);
        scene
            .admin
            .replace("/api/v1/namespaces/web/finalize", &namespace)
            .unwrap()
            .success()
            .unwrap();
        becomes(None, || scene.get("profiles/kns.web"));
    });
}

#[test]
fn orphan_profiles_are_deleted_wrong_ones_corrected_and_foreign_ones_kept() {
    on_scene(|scene| {
        scene.namespace("web", json!({"team": "a"}));
        for orphan in ["kns.gone", "ksa.shop.gone", "ksa.nameless"] {
            scene.put(
                &format!("profiles/{orphan}"),
                json!({"metadata": {"name": orphan}, "spec": {}}),
            );
        }
        let network =
            json!({"metadata": {"name": "net1"}, "spec": {"labelsToApply": {"net1": ""}}});
        scene.put("profiles/net1", network.clone());
        let running = scene.start(every_second);
        becomes(of_namespace("a"), || scene.labels("kns.web"));
        let orphans = || {
            let all = [
                scene.profiles("kns.gone"),
                scene.profiles("ksa.shop.gone"),
                scene.profiles("ksa.nameless"),
            ];
            all.concat()
        };
        becomes(Vec::new(), orphans);
        let mut wrong = scene.get("profiles/kns.web").unwrap();
        wrong["spec"]["labelsToApply"] = json!({"pcns.team": "spoofed"});
        scene.put("profiles/kns.web", wrong);
        becomes(of_namespace("a"), || scene.labels("kns.web"));
        drop(running);
        scene.delete("profiles/kns.web");
        let _running = scene.start(every_second);
        becomes(of_namespace("a"), || scene.labels("kns.web"));
        assert_eq!(scene.get("profiles/net1"), Some(network));
    });
}

#[test]
fn invalid_profiles_are_replaced_and_converge_against_conflicting_writers() {
    on_scene(|scene| {
        scene.namespace("web", json!({"team": "a"}));
        for profile in ["kns.web", "kns.gone", "ksa.shop.default", "ksa.shop.gone"] {
            scene
                .etcd
                .put(&format!("{OBJECTS}profiles/{profile}"), b"{")
                .unwrap();
        }
        let _running = scene.start(every_second);
        becomes(of_namespace("a"), || scene.labels("kns.web"));
        becomes(vec!["ksa.shop.default".to_owned()], || {
            scene.profiles("ksa.shop.")
        });
        becomes(Vec::new(), || scene.profiles("kns.gone"));
        assert_eq!(
            scene.labels("ksa.shop.default"),
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
                scene.put(&format!("profiles/{profile}"), wrong);
            }
            if round == 20 {
                scene.namespace("web", json!({"team": "b"}));
            }
            thread::sleep(Duration::from_millis(15));
        }
        becomes(of_namespace("b"), || scene.labels("kns.web"));
        becomes(json!({"pcsa.projectcalico.org/name": "default"}), || {
            scene.labels("ksa.shop.default")
        });
    });
}

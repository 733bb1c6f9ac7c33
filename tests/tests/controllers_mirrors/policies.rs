//! The mirroring of Kubernetes network policies.

use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::scene::{OBJECTS, Scene, becomes, every_second, on_scene, only_at_first, stays};

const POLICIES: &str = "networkpolicies/shop/";

impl Scene<'_> {
    /// Returns the ingress port of each mirrored policy.
    pub(crate) fn ports(&self) -> BTreeMap<String, u64> {
        let all = self.all().into_iter();
        let port = |policy: Value| {
            policy
                .pointer("/spec/ingress/0/destination/ports/0")
                .and_then(Value::as_u64)
        };
        all.filter_map(|(key, policy)| {
            Some((key.strip_prefix(POLICIES)?.to_owned(), port(policy)?))
        })
        .collect()
    }

    fn stored(&self, name: &str) -> Value {
        self.get(&format!("{POLICIES}{name}")).unwrap_or_default()
    }
}

pub(crate) fn mirrored(ports: &[(&str, u64)]) -> BTreeMap<String, u64> {
    ports
        .iter()
        .map(|(name, port)| (format!("knp.default.{name}"), *port))
        .collect()
}

#[test]
fn network_policies_are_mirrored_on_create_update_and_delete() {
    on_scene(|scene| {
        scene.policy("before", 1);
        let _running = scene.start(only_at_first);
        becomes(mirrored(&[("before", 1)]), || scene.ports());
        scene.policy("after", 2);
        becomes(mirrored(&[("before", 1), ("after", 2)]), || scene.ports());
        let uid = scene.stored("knp.default.before")["metadata"]["uid"].clone();
        scene.policy("before", 3);
        becomes(mirrored(&[("before", 3), ("after", 2)]), || scene.ports());
        assert_eq!(
            scene.stored("knp.default.before")["metadata"]["uid"],
            uid,
            "the same object"
        );
        scene.delete_policy("after");
        becomes(mirrored(&[("before", 3)]), || scene.ports());
    });
}

#[test]
fn policy_changes_while_stopped_are_mirrored_at_start() {
    on_scene(|scene| {
        for (name, port) in [("stays", 1), ("changes", 2), ("goes", 3)] {
            scene.policy(name, port);
        }
        let running = scene.start(only_at_first);
        becomes(
            mirrored(&[("stays", 1), ("changes", 2), ("goes", 3)]),
            || scene.ports(),
        );
        drop(running);
        scene.policy("changes", 5);
        scene.policy("comes", 4);
        scene.delete_policy("goes");
        scene.delete(&format!("{POLICIES}knp.default.stays"));
        // With a period of zero, the controller compares the policies once, at its start.
        let _running = scene.start(only_at_first);
        becomes(
            mirrored(&[("stays", 1), ("changes", 5), ("comes", 4)]),
            || scene.ports(),
        );
    });
}

#[test]
fn comparison_reads_all_pages_of_mirrored_policies() {
    on_scene(|scene| {
        for n in 0..120 {
            let orphan = json!({
                "kind": "NetworkPolicy", "metadata": {"name": "x", "namespace": "shop"}, "spec": {},
            });
            scene.put(&format!("{POLICIES}knp.default.{n:03}"), orphan);
        }
        scene.policy("060", 1);
        scene.policy("zoo", 2);
        let _running = scene.start(only_at_first);
        let expected: Vec<String> = ["shop/knp.default.060", "shop/knp.default.zoo"]
            .map(str::to_owned)
            .into();
        becomes(expected, || scene.keys("networkpolicies/"));
        becomes(mirrored(&[("060", 1), ("zoo", 2)]), || scene.ports());
    });
}

#[test]
fn foreign_changes_of_mirrored_policies_are_reverted_and_own_policies_kept() {
    on_scene(|scene| {
        scene.policy("a", 1);
        scene.policy("b", 1);
        let own = json!({
            "kind": "NetworkPolicy", "metadata": {"name": "own", "namespace": "shop"}, "spec": {},
        });
        scene.put(&format!("{POLICIES}own"), own.clone());
        let _running = scene.start(every_second);
        becomes(mirrored(&[("a", 1), ("b", 1)]), || scene.ports());
        let right = scene.stored("knp.default.a");
        let mut wrong = right.clone();
        wrong["spec"]["selector"] = json!("all()");
        wrong["metadata"]["annotations"]["note"] = json!("kept");
        scene.put(&format!("{POLICIES}knp.default.a"), wrong);
        scene.delete(&format!("{POLICIES}knp.default.b"));
        scene.put(&format!("{POLICIES}knp.default.orphan"), own.clone());
        scene
            .etcd
            .put(&format!("{OBJECTS}{POLICIES}knp.default.junk"), b"{")
            .unwrap();
        scene.put("networkpolicies/other/knp.default.junk", json!({"spec": 5}));
        let keys = || scene.keys("networkpolicies/");
        let expected: Vec<String> = ["shop/knp.default.a", "shop/knp.default.b", "shop/own"]
            .map(str::to_owned)
            .into();
        becomes((expected, right["spec"].clone()), || {
            (keys(), scene.stored("knp.default.a")["spec"].clone())
        });
        assert_eq!(
            scene.stored("knp.default.a")["metadata"]["annotations"]["note"],
            "kept"
        );
        assert_eq!(scene.stored("own"), own);
        let settled = scene.all();
        stays(settled, || scene.all());
    });
}

#[test]
fn policy_with_a_name_too_long_for_calico_does_not_block_the_rest() {
    on_scene(|scene| {
        let long = "n".repeat(245);
        scene.policy(&long, 9);
        scene.policy("a", 1);
        let _running = scene.start(every_second);
        becomes(mirrored(&[("a", 1)]), || scene.ports());
        scene.policy("a", 2);
        becomes(mirrored(&[("a", 2)]), || scene.ports());
        stays(mirrored(&[("a", 2)]), || scene.ports());
    });
}

#[test]
fn mirrored_policy_converges_after_conflicting_writes_end() {
    on_scene(|scene| {
        scene.policy("a", 1);
        let _running = scene.start(every_second);
        becomes(mirrored(&[("a", 1)]), || scene.ports());
        let end = Instant::now() + Duration::from_secs(4);
        // On a slow machine the time may be over before the policy has changed at port 20.
        for port in (10..).take_while(|port| *port <= 20 || Instant::now() < end) {
            let mut wrong = scene.stored("knp.default.a");
            wrong["spec"]["ingress"][0]["destination"]["ports"] = json!([port]);
            scene.put(&format!("{POLICIES}knp.default.a"), wrong);
            if port == 20 {
                scene.policy("a", 2);
            }
            thread::sleep(Duration::from_millis(15));
        }
        becomes(mirrored(&[("a", 2)]), || scene.ports());
    });
}

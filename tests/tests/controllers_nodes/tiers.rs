//! Conditions and finalizers of tiers (`projectcalico.org/v3`), with the cases of upstream's
//! tier_controller_fv_test.

use libcalico::api::TierSpec;
use serde_json::{Value, json};

use crate::scene::{Scene, becomes};

const FINALIZER: &str = "projectcalico.org/tier-controller";
const GROUP: &str = "/apis/projectcalico.org/v3";

impl Scene {
    fn policy(&self, kind: &str, collection: &str, name: &str, tier: &str) {
        let policy = json!({
            "apiVersion": "projectcalico.org/v3", "kind": kind, "metadata": {"name": name},
            "spec": {"tier": tier, "selector": "all()"},
        });
        self.admin
            .create(&format!("{GROUP}/{collection}"), &policy)
            .unwrap()
            .success()
            .unwrap();
    }

    /// Returns the message of the tier's first condition, and true if our finalizer is its only
    /// one.
    fn tier(&self, name: &str) -> Option<(String, bool)> {
        let tier = self.get::<TierSpec>(name)?.value;
        let status: Value = tier.status.unwrap_or_default();
        let message = status["conditions"][0]["message"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        let finalizers = tier
            .metadata
            .unknown
            .get("finalizers")
            .cloned()
            .unwrap_or_default();
        Some((message, finalizers == json!([FINALIZER])))
    }
}

#[on(kubernetes_v3)]
fn deleted_tier_stays_until_its_policies_are_removed(scene: &Scene) {
    let running = scene.start(|_| ());
    for name in ["empty", "used"] {
        scene.put::<TierSpec>(name, json!({}), json!({"order": 10}));
        becomes(Some((String::new(), true)), || scene.tier(name));
    }
    scene.delete::<TierSpec>("empty");
    becomes(None, || scene.tier("empty"));

    for name in ["used.a", "used.b"] {
        scene.policy("GlobalNetworkPolicy", "globalnetworkpolicies", name, "used");
    }
    scene.policy(
        "GlobalNetworkPolicy",
        "globalnetworkpolicies",
        "other",
        "default",
    );
    scene.policy(
        "NetworkPolicy",
        "namespaces/default/networkpolicies",
        "used.c",
        "used",
    );
    drop(running);
    scene.delete::<TierSpec>("used");
    let _running = scene.start(|_| ());
    let message = |counts: &str| {
        Some((
            format!("Waiting for policies to be removed: {counts}"),
            true,
        ))
    };
    becomes(message("2 GlobalNetworkPolicies, 1 NetworkPolicy"), || {
        scene.tier("used")
    });
    let remove = |path: &str| {
        _ = scene
            .admin
            .delete(&format!("{GROUP}/{path}"))
            .unwrap()
            .success()
            .unwrap()
    };
    remove("globalnetworkpolicies/used.a");
    remove("namespaces/default/networkpolicies/used.c");
    becomes(message("1 GlobalNetworkPolicy"), || scene.tier("used"));
    let moved = json!({"spec": {"tier": "default"}});
    scene
        .admin
        .patch(&format!("{GROUP}/globalnetworkpolicies/used.b"), &moved)
        .unwrap()
        .success()
        .unwrap();
    becomes(None, || scene.tier("used"));
}

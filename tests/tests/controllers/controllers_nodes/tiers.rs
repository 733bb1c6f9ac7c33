//! Conditions and finalizers of tiers (`projectcalico.org/v3`), with the cases of upstream's
//! tier_controller_fv_test.

use libcalico::api::TierSpec;
use serde_json::{Value, json};

use crate::controllers_nodes::controlled_cluster::{ControlledCluster, becomes, on};

const FINALIZER: &str = "projectcalico.org/tier-controller";
const GROUP: &str = "/apis/projectcalico.org/v3";

impl ControlledCluster<'_> {
    fn policy(&self, kind: &str, collection: &str, name: &str, tier: &str) {
        let policy = json!({
            "apiVersion": "projectcalico.org/v3", "kind": kind, "metadata": {"name": name},
            "spec": {"tier": tier, "selector": "all()"},
        });
        self.servers
            .create(&format!("{GROUP}/{collection}"), &policy);
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
fn deleted_tier_stays_until_its_policies_are_removed(cluster: &ControlledCluster<'_>) {
    let running = cluster.start(|_| ());
    for name in ["empty", "used"] {
        cluster.put::<TierSpec>(name, json!({}), json!({"order": 10}));
        becomes(Some((String::new(), true)), || cluster.tier(name));
    }
    cluster.delete::<TierSpec>("empty");
    becomes(None, || cluster.tier("empty"));

    for name in ["used.a", "used.b"] {
        cluster.policy("GlobalNetworkPolicy", "globalnetworkpolicies", name, "used");
    }
    cluster.policy(
        "GlobalNetworkPolicy",
        "globalnetworkpolicies",
        "other",
        "default",
    );
    cluster.policy(
        "NetworkPolicy",
        "namespaces/default/networkpolicies",
        "used.c",
        "used",
    );
    drop(running);
    cluster.delete::<TierSpec>("used");
    let _running = cluster.start(|_| ());
    let message = |counts: &str| {
        Some((
            format!("Waiting for policies to be removed: {counts}"),
            true,
        ))
    };
    becomes(message("2 GlobalNetworkPolicies, 1 NetworkPolicy"), || {
        cluster.tier("used")
    });
    let remove = |path: &str| cluster.servers.remove(&format!("{GROUP}/{path}"));
    remove("globalnetworkpolicies/used.a");
    remove("namespaces/default/networkpolicies/used.c");
    becomes(message("1 GlobalNetworkPolicy"), || cluster.tier("used"));
    let moved = json!({"spec": {"tier": "default"}});
    cluster
        .servers
        .merge(&format!("{GROUP}/globalnetworkpolicies/used.b"), &moved);
    becomes(None, || cluster.tier("used"));
}

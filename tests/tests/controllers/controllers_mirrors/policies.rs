//! The mirroring of Kubernetes network policies.

use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::controllers_mirrors::mirrored_cluster::{
    MirroredCluster, OBJECTS, becomes, every_second, on, only_at_first, stays,
};

const POLICIES: &str = "networkpolicies/shop/";

impl MirroredCluster<'_> {
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

#[on(etcd)]
fn network_policies_are_mirrored_on_create_update_and_delete(cluster: &MirroredCluster<'_>) {
    cluster.policy("before", 1);
    let _running = cluster.start(only_at_first);
    becomes(mirrored(&[("before", 1)]), || cluster.ports());
    cluster.policy("after", 2);
    becomes(mirrored(&[("before", 1), ("after", 2)]), || cluster.ports());
    let uid = cluster.stored("knp.default.before")["metadata"]["uid"].clone();
    cluster.policy("before", 3);
    becomes(mirrored(&[("before", 3), ("after", 2)]), || cluster.ports());
    assert_eq!(
        cluster.stored("knp.default.before")["metadata"]["uid"],
        uid,
        "the same object"
    );
    cluster.delete_policy("after");
    becomes(mirrored(&[("before", 3)]), || cluster.ports());
}

#[on(etcd)]
fn policy_changes_while_stopped_are_mirrored_at_start(cluster: &MirroredCluster<'_>) {
    for (name, port) in [("stays", 1), ("changes", 2), ("goes", 3)] {
        cluster.policy(name, port);
    }
    let running = cluster.start(only_at_first);
    becomes(
        mirrored(&[("stays", 1), ("changes", 2), ("goes", 3)]),
        || cluster.ports(),
    );
    drop(running);
    cluster.policy("changes", 5);
    cluster.policy("comes", 4);
    cluster.delete_policy("goes");
    cluster.delete(&format!("{POLICIES}knp.default.stays"));
    // With a period of zero, the controller compares the policies once, at its start.
    let _running = cluster.start(only_at_first);
    becomes(
        mirrored(&[("stays", 1), ("changes", 5), ("comes", 4)]),
        || cluster.ports(),
    );
}

#[on(etcd)]
fn comparison_reads_all_pages_of_mirrored_policies(cluster: &MirroredCluster<'_>) {
    for n in 0..120 {
        let orphan = json!({
            "kind": "NetworkPolicy", "metadata": {"name": "x", "namespace": "shop"}, "spec": {},
        });
        cluster.put(&format!("{POLICIES}knp.default.{n:03}"), orphan);
    }
    cluster.policy("060", 1);
    cluster.policy("zoo", 2);
    let _running = cluster.start(only_at_first);
    let expected: Vec<String> = ["shop/knp.default.060", "shop/knp.default.zoo"]
        .map(str::to_owned)
        .into();
    becomes(expected, || cluster.keys("networkpolicies/"));
    becomes(mirrored(&[("060", 1), ("zoo", 2)]), || cluster.ports());
}

#[on(etcd)]
fn foreign_changes_of_mirrored_policies_are_reverted_and_own_policies_kept(
    cluster: &MirroredCluster<'_>,
) {
    cluster.policy("a", 1);
    cluster.policy("b", 1);
    let own = json!({
        "kind": "NetworkPolicy", "metadata": {"name": "own", "namespace": "shop"}, "spec": {},
    });
    cluster.put(&format!("{POLICIES}own"), own.clone());
    let _running = cluster.start(every_second);
    becomes(mirrored(&[("a", 1), ("b", 1)]), || cluster.ports());
    let right = cluster.stored("knp.default.a");
    let mut wrong = right.clone();
    wrong["spec"]["selector"] = json!("all()");
    wrong["metadata"]["annotations"]["note"] = json!("kept");
    cluster.put(&format!("{POLICIES}knp.default.a"), wrong);
    cluster.delete(&format!("{POLICIES}knp.default.b"));
    cluster.put(&format!("{POLICIES}knp.default.orphan"), own.clone());
    cluster
        .servers
        .etcd
        .put(&format!("{OBJECTS}{POLICIES}knp.default.junk"), b"{")
        .unwrap();
    cluster.put("networkpolicies/other/knp.default.junk", json!({"spec": 5}));
    let keys = || cluster.keys("networkpolicies/");
    let expected: Vec<String> = ["shop/knp.default.a", "shop/knp.default.b", "shop/own"]
        .map(str::to_owned)
        .into();
    becomes((expected, right["spec"].clone()), || {
        (keys(), cluster.stored("knp.default.a")["spec"].clone())
    });
    assert_eq!(
        cluster.stored("knp.default.a")["metadata"]["annotations"]["note"],
        "kept"
    );
    assert_eq!(cluster.stored("own"), own);
    let before = cluster.all();
    stays(before, || cluster.all());
}

#[on(etcd)]
fn policy_with_a_name_too_long_for_calico_does_not_block_the_rest(cluster: &MirroredCluster<'_>) {
    let long = "n".repeat(245);
    cluster.policy(&long, 9);
    cluster.policy("a", 1);
    let _running = cluster.start(every_second);
    becomes(mirrored(&[("a", 1)]), || cluster.ports());
    cluster.policy("a", 2);
    becomes(mirrored(&[("a", 2)]), || cluster.ports());
    stays(mirrored(&[("a", 2)]), || cluster.ports());
}

#[on(etcd)]
fn mirrored_policy_converges_after_conflicting_writes_end(cluster: &MirroredCluster<'_>) {
    cluster.policy("a", 1);
    let _running = cluster.start(every_second);
    becomes(mirrored(&[("a", 1)]), || cluster.ports());
    let end = Instant::now() + Duration::from_secs(4);
    // On a slow machine the time may be over before the policy has changed at port 20.
    for port in (10..).take_while(|port| *port <= 20 || Instant::now() < end) {
        let mut wrong = cluster.stored("knp.default.a");
        wrong["spec"]["ingress"][0]["destination"]["ports"] = json!([port]);
        cluster.put(&format!("{POLICIES}knp.default.a"), wrong);
        if port == 20 {
            cluster.policy("a", 2);
        }
        thread::sleep(Duration::from_millis(15));
    }
    becomes(mirrored(&[("a", 2)]), || cluster.ports());
}

//! Affinities in an incomplete state, of deleted nodes, and without labels, as older versions of
//! Calico wrote them.

use std::collections::BTreeMap;
use std::time::Duration;

use libcalico::ipam::AffinityState::{Confirmed, Pending, PendingDeletion};
use serde_json::json;

use crate::lab::{COLLECTOR, Lab, SOON, to_pod, within};

/// The minimum time for which an affinity must be unchanged before it is repaired.
const FIVE_MINUTES: Duration = Duration::from_secs(300);

#[on(etcd, kubernetes_v1)]
fn incomplete_affinities_of_nodes_and_services_are_confirmed_or_deleted(lab: &Lab<'_>) {
    lab.pool("pool", "10.0.0.0/16", 26);
    lab.node("node-a");
    lab.node("node-b");
    let used = lab.block("10.0.0.0/26", Some("node-a"), &[to_pod("node-a", "pod")]);
    lab.pod("pod", "node-a", &used);
    lab.set_claim("node-a", "10.0.0.0/26", Pending);
    lab.claim("node-a", "10.0.0.64/26", Pending);
    lab.block("10.0.0.128/26", Some("node-a"), &[]);
    lab.set_claim("node-a", "10.0.0.128/26", PendingDeletion);
    lab.claim("node-a", "10.0.0.192/26", Confirmed);
    lab.block("10.0.1.0/26", Some("node-b"), &[]);
    lab.claim_for_services("10.0.1.64/26", Pending);
    let before = (lab.claims(), lab.blocks());
    let collecting = lab.collect(lab.settings());
    collecting.has_looked();
    assert_eq!(
        (lab.claims(), lab.blocks()),
        before,
        "nothing within five minutes"
    );
    let expected = BTreeMap::from([
        ("10.0.0.0/26".to_owned(), Confirmed),
        ("10.0.1.0/26".to_owned(), Confirmed),
    ]);
    collecting.as_time_goes_by(FIVE_MINUTES, "claims in order", || lab.claims() == expected);
    assert_eq!(lab.held().len(), 1);
    let owners: Vec<String> = lab
        .blocks()
        .into_iter()
        .map(|(block, owner)| format!("{block} {owner:?}"))
        .collect();
    assert_eq!(
        owners,
        [
            "10.0.0.0/26 Some(\"host:node-a\")",
            "10.0.1.0/26 Some(\"host:node-b\")"
        ]
    );
}

/// A list of one node's affinities does not find affinities without labels.
#[on(kubernetes_v1, kubernetes_v3)]
fn affinities_without_labels_of_a_deleted_node_are_released(lab: &Lab<'_>) {
    let group = lab.group.unwrap();
    lab.pool("pool", "10.0.0.0/16", 26);
    lab.node("node-a");
    lab.block("10.0.0.0/26", Some("gone"), &[]);
    lab.claim("gone", "10.0.0.64/26", Confirmed);
    lab.block("10.0.0.128/26", Some("node-a"), &[]);
    let audit = lab.servers.api.audit().unwrap();
    for name in [
        "gone-10-0-0-0-26",
        "gone-10-0-0-64-26",
        "node-a-10-0-0-128-26",
    ] {
        let path = format!("/apis/{}/blockaffinities/{name}", group.api_version());
        lab.admin()
            .patch(&path, &json!({ "metadata": { "labels": null } }))
            .unwrap()
            .success()
            .unwrap();
    }
    let _collecting = lab.collect(lab.settings());
    within(SOON, "what the node had is gone", || {
        lab.affinities() == [("node-a".to_owned(), "10.0.0.128/26".to_owned())]
            && lab.blocks().len() == 1
    });
    let written = audit.of(COLLECTOR).unwrap();
    let mut written = written
        .iter()
        .filter(|request| !matches!(request.verb.as_str(), "get" | "list" | "watch"));
    assert!(
        !written.any(|request| request.to_string().contains("node-a")),
        "node-a is there"
    );
}

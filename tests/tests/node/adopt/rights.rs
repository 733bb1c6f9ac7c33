//! The account of `deploy/adopt`.

use std::path::PathBuf;

use integration_tests::cluster::{Cluster, ControlPlane, NAMESPACE, on_one_group};
use integration_tests::content::Content;
use integration_tests::kubernetes::Role;
use integration_tests::manifests::deploy;
use libcalico::kubernetes::ApiGroup;
use serde_json::json;

use crate::adopt::{address, delete_blocks, report_running};

/// The command finds the API group by itself.
fn account_suffices(cluster: &Cluster<'_>, control_plane: &mut ControlPlane<'_>) {
    cluster.load(
        &Content::ready()
            .node("node1")
            .pool("pool4", "10.65.0.0/16", 26),
    );
    let conf = cluster.conf("node1", json!({}));
    let pod = cluster.pod(1);
    let given = address(&cluster.add(&pod, &conf));
    report_running(control_plane, &pod, &given);
    let before = cluster.accounts();
    delete_blocks(cluster);
    let api = &control_plane.servers.api;
    let manifest: PathBuf = deploy("adopt/rbac.yaml");
    let account = api
        .account_of(
            "kube-system",
            "calico-adopt",
            std::slice::from_ref(&manifest),
        )
        .unwrap();
    let audit = api.audit().unwrap();
    let call = cluster
        .plugins
        .call("calico-ipam")
        .args(["adopt", "--node", "node1"]);
    let call = call
        .env("DATASTORE_TYPE", "kubernetes")
        .env("KUBECONFIG", &account.kubeconfig);
    let outcome = call.run();
    let object = pod.object.as_ref().unwrap();
    let expected = format!("{given} (pod {NAMESPACE}/{object}, block ");
    assert!(
        outcome.exit == Some(0) && outcome.stdout.starts_with(&expected),
        "{outcome:?}"
    );
    // A slow run prints its progress.
    assert!(!outcome.stderr.contains("note: "), "{outcome:?}");
    assert_eq!(cluster.accounts().held, before.held);
    audit.assert_nothing_refused(&account.user);
    let granted = Role::of_manifest(&manifest).unwrap();
    let used = Role::used_by(&audit.of(&account.user).unwrap());
    assert!(
        used.0.is_subset(&granted.0),
        "used:\n{used}granted:\n{granted}"
    );
}

#[test]
fn account_of_the_manifest_suffices_in_crd_v1() {
    on_one_group(ApiGroup::CrdV1, account_suffices);
}

#[test]
fn account_of_the_manifest_suffices_in_v3() {
    on_one_group(ApiGroup::V3, account_suffices);
}

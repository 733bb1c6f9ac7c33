//! Pods that start and end on two nodes while a migration runs. kube-controllers run in a pod on
//! the host network.

use integration_tests::accounts::Accounts;
use integration_tests::cluster::{Cluster, ControlPlane, NAMESPACE, on};
use integration_tests::content::Content;
use integration_tests::controllers::{PATIENCE, await_that};
use integration_tests::migration::Migration;
use integration_tests::node::Node;
use libcalico::kubernetes::ApiGroup;

use crate::migration_to_v3::kubelet::{
    Kubelet, NODES, assert_accounts, assert_failed_under_the_lock, following_node, naming_v3,
    run_pods_during, start_and_end_with_v3_named, v3,
};

/// Expects that an ADD with v3 named fails before the migration.
#[track_caller]
fn assert_v3_is_unusable(node: &Node) {
    let sandbox = node.sandbox(999, Some((NAMESPACE, "early"))).unwrap();
    let error = node
        .run(&node.verb_with("ADD", &sandbox, &naming_v3()))
        .unwrap()
        .error();
    assert!(
        error.msg.contains("error getting ClusterInformation"),
        "{error:?}"
    );
    node.on(|host| host.delete_pod(&sandbox.netns)).unwrap();
}

#[on(kubernetes_v1)]
fn pods_start_and_end_on_two_nodes_during_a_migration(
    cluster: &Cluster<'_>,
    control_plane: &mut ControlPlane<'_>,
) {
    let content = NODES
        .iter()
        .fold(Content::ready(), |content, node| content.node(node));
    cluster.load(&content.pool("pool4", "10.65.0.0/24", 28));
    let api = &control_plane.servers.api;
    let migration = Migration::new(api);
    let caller = (api, &control_plane.account);
    let nodes = NODES.map(|name| following_node(cluster.host, name, caller));
    assert_v3_is_unusable(&nodes[0]);
    let audit = api.audit().unwrap();
    let mut kubelets = nodes.each_ref().map(|node| Kubelet::new(node, api.admin()));
    let mut process = migration
        .setup("controllers")
        .start(cluster.host, "controllers")
        .unwrap();
    run_pods_during(&mut kubelets, || {
        process.await_log("this replica is the leader", 1).unwrap();
        migration.create(None);
        process.end_and_restart();
        migration.await_open(&mut process);
    });
    process
        .await_log("migration: v3 is open; no pod could start or end for ", 1)
        .unwrap();
    // The phase stays Converged until kube-controllers run again.
    start_and_end_with_v3_named(&mut kubelets);
    run_pods_during(&mut kubelets, || {
        process.restart().unwrap();
        migration.await_phase(&process, "Complete");
    });

    assert_failed_under_the_lock(&kubelets, &audit);
    let blocked = migration.condition("PodsBlocked")["message"].clone();
    eprintln!(
        "{} calls failed: {blocked}",
        kubelets
            .iter()
            .map(|kubelet| kubelet.failed.len())
            .sum::<usize>()
    );
    let seconds = blocked
        .as_str()
        .and_then(|text| text.strip_prefix("no pod could start or end for "));
    let seconds: Option<u64> = seconds.and_then(|text| text.strip_suffix(" s")?.parse().ok());
    assert!(seconds.is_some_and(|seconds| seconds > 0), "{blocked}");

    assert!(
        migration.is_locked(ApiGroup::CrdV1),
        "v1 stays, and stays locked"
    );
    start_and_end_with_v3_named(&mut kubelets);
    assert_accounts(api, &kubelets, &[]);
    migration.delete();
    process.end_and_restart();
    migration.until(&process, "the object is gone", || migration.is_gone());
    // The plugins find v3 alone.
    for kubelet in &mut kubelets {
        kubelet.start();
        while !kubelet.pods.is_empty() {
            kubelet.end();
        }
    }
    let accounts = || Accounts::of(&v3(api).dump().unwrap());
    let seen = await_that(PATIENCE, || {
        kubelets.iter().try_for_each(Kubelet::replay)?;
        Ok(accounts().is_empty())
    });
    assert!(seen.is_ok(), "{:#?}", accounts());
}

//! Pods that start and end on two nodes while a migration runs. kube-controllers run in a pod on the host network.

use std::collections::BTreeMap;
use std::net::IpAddr;

use integration_tests::accounts::Accounts;
use integration_tests::cluster::on_api_server;
use integration_tests::content::Content;
use integration_tests::controllers::{PATIENCE, await_that};
use integration_tests::kubernetes::{ApiServer, Objects};
use integration_tests::migration::Migration;
use integration_tests::store::Store;
use libcalico::kubernetes::ApiGroup;
use serde_json::{Value, json};

use super::kubelet::{Kubelet, NODES, assert_failed_under_the_lock, following_node, with_pods};

/// Returns the objects of v3 of the administrator.
fn v3(api: &ApiServer) -> Objects {
    Objects::new(api.admin(), ApiGroup::V3, api.admin_kubeconfig())
}

/// Waits until each running pod, and no other one, has its address in one block.
fn assert_accounts(api: &ApiServer, kubelets: &[Kubelet<'_>]) {
    let expected: BTreeMap<IpAddr, String> = kubelets.iter().flat_map(Kubelet::addresses).collect();
    let pods: usize = kubelets.iter().map(|kubelet| kubelet.pods.len()).sum();
    assert_eq!(expected.len(), pods, "two pods have one address");
    let accounts = || Accounts::of(&v3(api).dump().unwrap());
    // A DEL during the lock may be deferred: a later call of its node completes it.
    let are_equal = || {
        for kubelet in kubelets {
            if let Some((sandbox, _)) = kubelet.pods.first() {
                kubelet.node.run(&kubelet.node.verb("STATUS", sandbox))?;
            }
        }
        Ok(accounts().held == expected)
    };
    let seen = await_that(PATIENCE, are_equal);
    assert!(seen.is_ok(), "{expected:#?}\n{:#?}", accounts());
    assert_eq!(accounts().problems, Vec::<String>::new());
}

#[test]
fn pods_start_and_end_on_two_nodes_during_a_migration() {
    on_api_server(ApiGroup::CrdV1, |cluster, control_plane| {
        let content = NODES.iter().fold(Content::ready(), |content, node| content.node(node));
        cluster.load(&content.pool("pool4", "10.65.0.0/24", 28));
        let api = &control_plane.servers.api;
        let migration = Migration::new(api);
        let caller = (api, &control_plane.account);
        let nodes = NODES.map(|name| following_node(cluster.host, name, caller));
        let audit = api.audit().unwrap();
        let mut kubelets = nodes.each_ref().map(|node| Kubelet::new(node, api.admin()));
        let mut process = migration.setup("controllers").start(cluster.host, "controllers").unwrap();
        with_pods(&mut kubelets, || {
            process.await_log("this replica is the leader", 1).unwrap();
            migration.create(None);
            assert!(process.terminate().unwrap().success());
            process.restart().unwrap();
            migration.finish(&mut process);
        });

        assert_failed_under_the_lock(&kubelets, &audit);
        let blocked = migration.condition("PodsBlocked")["message"].clone();
        eprintln!("{} calls failed: {blocked}", kubelets.iter().map(|kubelet| kubelet.failed.len()).sum::<usize>());
        let seconds = blocked.as_str().and_then(|text| text.strip_prefix("no pod could start or end for "));
        let seconds: Option<u64> = seconds.and_then(|text| text.strip_suffix(" s")?.parse().ok());
        assert!(seconds.is_some_and(|seconds| seconds > 0), "{blocked}");

        // v1 is still there, and locked.
        for kubelet in &mut kubelets {
            kubelet.more = json!({ "calico_api_group": ApiGroup::V3.api_version() });
            kubelet.start_and_end();
            kubelet.more = Value::Null;
        }
        assert_accounts(api, &kubelets);
        let store = Store::Kubernetes(v3(api));
        let check = store.calico_ipam(&cluster.plugins, &["check"]).unwrap();
        assert_eq!(check.exit, Some(0), "calico-ipam check: {}{}", check.stdout, check.stderr);
        migration.delete();
        assert!(process.terminate().unwrap().success());
        process.restart().unwrap();
        migration.until(&process, "the object is gone", || migration.is_gone());
        // The plugins find v3 alone.
        for kubelet in &mut kubelets {
            kubelet.start();
            while !kubelet.pods.is_empty() {
                kubelet.end();
            }
        }
        let accounts = Accounts::of(&v3(api).dump().unwrap());
        assert!(accounts.is_empty(), "{accounts:#?}");
    });
}

//! Leaks of our own plugin: it is killed at each of its requests, and its pods are deleted without
//! DEL.

use std::sync::Arc;

use integration_tests::cluster::{
    Cluster, ControlPlane, Faulty, Pod, handle, on, points, shortest,
};
use integration_tests::content::Content;
use integration_tests::proxy::Fault;
use libcalico::kubernetes::ApiGroup;
use serde_json::json;

use crate::controllers_gc::collected_cluster::{GarbageCollector, SOON, settings, within};

/// Waits until only `resident` has an address and a handle.
fn await_only(cluster: &Cluster<'_>, resident: &Pod) {
    let expected = [handle(resident)];
    within(SOON, "only the resident holds an address", || {
        let accounts = cluster.accounts();
        let held = accounts.held.values().eq(expected.iter());
        held && accounts
            .counted
            .keys()
            .map(|(handle, _)| handle)
            .eq(expected.iter())
    });
    cluster.assert_in_order();
}

#[on(kubernetes_v1)]
fn gc_releases_all_addresses_of_killed_adds_and_dels(
    cluster: &Cluster<'_>,
    control_plane: &mut ControlPlane<'_>,
) {
    let group = Some(ApiGroup::CrdV1);
    cluster.load(
        &Content::ready()
            .node("node1")
            .pool("pool4", "10.65.0.0/16", 26),
    );
    let proxy = Arc::clone(&control_plane.proxy);
    let mut faulty = Faulty::new(cluster, &proxy, cluster.conf("node1", json!({})));
    let kubeconfig = control_plane.servers.api.admin_kubeconfig();
    // Garbage collection must not disturb a running ADD.
    let collector = GarbageCollector::start(group, kubeconfig, settings(group));
    let resident = faulty.pod();
    faulty.run("ADD", &resident);
    let mut clean_run = || {
        let pod = faulty.pod();
        let requests = ["ADD", "DEL"].map(|verb| faulty.clean_requests(verb, &pod));
        cluster.remove_pod(&pod);
        requests
    };
    let [of_add, of_del] = [0, 1].map(|verb| shortest(|| clean_run()[verb].clone()).len());
    let mut killed = Vec::new();
    for point in points(of_add) {
        let pod = faulty.pod();
        assert_eq!(
            faulty.faulted("ADD", &pod, point, Fault::Kill).exit,
            None,
            "{point:?}"
        );
        killed.push(pod);
    }
    for point in points(of_del) {
        let pod = faulty.pod();
        faulty.run("ADD", &pod);
        assert_eq!(
            faulty.faulted("DEL", &pod, point, Fault::Kill).exit,
            None,
            "{point:?}"
        );
        killed.push(pod);
    }
    proxy.arm(None);
    let held = cluster.accounts().held.len();
    assert!(
        held > killed.len() / 4,
        "{held} addresses of {} pods",
        killed.len()
    );
    killed.iter().for_each(|pod| cluster.remove_pod(pod));
    await_only(cluster, &resident);
    let reclaimed = collector.metrics();
    assert!(
        !reclaimed.contains("kube_controllers_gc_reclaimed_total 0\n"),
        "{reclaimed}"
    );
}

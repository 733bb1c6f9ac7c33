//! An address that seems leaked but is reallocated before its release reaches the server. The new
//! owner keeps the address.

use std::thread::sleep;
use std::time::Duration;

use integration_tests::cluster::{Cluster, ControlPlane, Pod, handle, on, pod_path};
use integration_tests::content::Content;
use integration_tests::controllers::{Controllers, PATIENCE, Setup, await_that};
use integration_tests::proxy::{Fault, Point};
use libcalico::kubernetes::ApiGroup;
use serde_json::{Value, json};

/// The only address in the whole cluster.
const POOL: &str = "10.65.0.4/32";
const ADDRESS: &str = "10.65.0.4";
const BLOCK: &str = "/ipamblocks/10-65-0-4-32";

/// A garbage collection whose release of a pod's address the proxy holds.
struct HeldRelease<'a, 'c> {
    cluster: &'a Cluster<'c>,
    control_plane: &'a ControlPlane<'a>,
    conf: Value,
    controllers: Controllers,
}

impl<'a, 'c> HeldRelease<'a, 'c> {
    /// Creates a pod with the only address, starts garbage collection, and deletes the pod without
    /// DEL. Returns once the proxy holds the write of the block, which releases the address. The
    /// process is frozen then: a write without an answer within ten seconds would be repeated.
    fn of_first_pod(
        cluster: &'a Cluster<'c>,
        control_plane: &'a ControlPlane<'a>,
    ) -> (HeldRelease<'a, 'c>, Pod) {
        cluster.load(&Content::ready().node("node1").pool("pool4", POOL, 32));
        let conf = cluster.conf("node1", json!({}));
        let pod = cluster.pod(1);
        assert_eq!(address_of(&cluster.add(&pod, &conf)), POOL);
        let proxy = &control_plane.proxy;
        proxy.arm(Some((Point::First("PUT", BLOCK), Fault::Hold)));
        // Garbage collection uses the plugins' kubeconfig, so its requests pass the proxy.
        let kubeconfig = cluster.objects().kubeconfig().display().to_string();
        let setup = Setup::kubernetes(&control_plane.servers.api)
            .unwrap()
            .env("KUBECONFIG", kubeconfig);
        let setup = setup
            .env("ENABLED_CONTROLLERS", "node")
            .env("LEADER_ELECTION", "false");
        let controllers = setup.start(cluster.host, "controllers").unwrap();
        configure(control_plane);
        cluster.remove_pod(&pod);
        proxy.await_held().unwrap();
        controllers.freeze().unwrap();
        let release = HeldRelease {
            cluster,
            control_plane,
            conf,
            controllers,
        };
        (release, pod)
    }

    /// Resumes the held release, then the frozen process, and asserts that `pod` keeps the address.
    fn assert_pod_keeps_address(&self, pod: &Pod) {
        let proxy = &self.control_plane.proxy;
        let reads = || {
            let requests = proxy.requests();
            requests
                .iter()
                .filter(|request| request.starts_with("GET ") && request.contains(BLOCK))
                .count()
        };
        let (before, answers) = (reads(), proxy.traffic().answers);
        proxy.resume();
        await_that(PATIENCE, || Ok(proxy.traffic().answers > answers))
            .expect("the write is answered");
        self.controllers.thaw().unwrap();
        await_that(PATIENCE, || Ok(reads() > before))
            .expect("the write was refused, and the block is read again");
        sleep(Duration::from_secs(1));
        assert!(self.controllers.pid().is_some());
        let accounts = self.cluster.accounts();
        assert_eq!(
            accounts.held.values().collect::<Vec<_>>(),
            [&handle(pod)],
            "{accounts:#?}"
        );
        self.cluster.assert_in_order();
        self.cluster.delete(pod, &self.conf);
        assert!(self.cluster.accounts().held.is_empty());
        self.cluster.remove_pod(pod);
    }
}

fn configure(control_plane: &ControlPlane<'_>) {
    let path = format!(
        "/apis/{}/kubecontrollersconfigurations/default",
        ApiGroup::CrdV1.api_version()
    );
    let admin = control_plane.servers.api.admin();
    await_that(PATIENCE, || Ok(admin.get(&path)?.code == 200)).unwrap();
    let grace = json!({ "spec": { "controllers": { "node": { "leakGracePeriod": "1s" } } } });
    admin.patch(&path, &grace).unwrap().success();
}

fn address_of(answer: &Value) -> &str {
    answer["ips"][0]["address"].as_str().unwrap_or_default()
}

#[on(kubernetes_v1)]
fn leaked_address_reallocated_to_another_pod_is_not_released(
    cluster: &Cluster<'_>,
    control_plane: &mut ControlPlane<'_>,
) {
    let second = cluster.pod(2);
    let (release, first) = HeldRelease::of_first_pod(cluster, control_plane);
    // The kubelet's DEL was late, and another pod gets the only address.
    cluster.delete(&first, &release.conf);
    assert_eq!(address_of(&cluster.add(&second, &release.conf)), POOL);
    report_address(control_plane, &second);
    release.assert_pod_keeps_address(&second);
}

/// Only the sequence number distinguishes the two allocations.
#[on(kubernetes_v1)]
fn leaked_address_reallocated_to_the_same_handle_is_not_released(
    cluster: &Cluster<'_>,
    control_plane: &mut ControlPlane<'_>,
) {
    let (release, first) = HeldRelease::of_first_pod(cluster, control_plane);
    cluster.delete(&first, &release.conf);
    let again = cluster.pod(1);
    assert_eq!(address_of(&cluster.add(&again, &release.conf)), POOL);
    report_address(control_plane, &again);
    release.assert_pod_keeps_address(&again);
}

/// Sets the address in the pod's status, as kubelet does.
fn report_address(control_plane: &ControlPlane<'_>, pod: &Pod) {
    let name = pod.object.as_deref().unwrap_or_default();
    let status = json!({
        "status": { "phase": "Running", "podIP": ADDRESS, "podIPs": [{ "ip": ADDRESS }] }
    });
    let path = format!("{}/status", pod_path(name));
    control_plane
        .servers
        .api
        .admin()
        .patch(&path, &status)
        .unwrap()
        .success();
}

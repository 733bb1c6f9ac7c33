//! An address that seems leaked but is reallocated before its release reaches the server. The new
//! owner keeps the address.

use std::thread::sleep;
use std::time::Duration;

use integration_tests::cluster::{Cluster, ControlPlane, Pod, handle, on_api_server, pod_path};
use integration_tests::content::Content;
use integration_tests::controllers::{Controllers, PATIENCE, Setup, await_that};
use integration_tests::proxy::{Fault, Point};
use integration_tests::store::Store;
use libcalico::kubernetes::ApiGroup;
use serde_json::{Value, json};

/// The only address in the whole cluster.
const POOL: &str = "10.65.0.4/32";
const ADDRESS: &str = "10.65.0.4";
const BLOCK: &str = "/ipamblocks/10-65-0-4-32";

struct Lab<'a, 'c> {
    cluster: &'a Cluster<'c>,
    control_plane: &'a ControlPlane<'a>,
    conf: Value,
    collecting: Controllers,
}

/// Starts garbage collection. Returns once the proxy holds its write of the block, which releases
/// the pod's address. The process is frozen then: a write without an answer within ten seconds
/// would be repeated.
fn with_release_held(
    cluster: &Cluster<'_>,
    control_plane: &ControlPlane<'_>,
    pod: &Pod,
) -> Controllers {
    let proxy = &control_plane.proxy;
    proxy.arm(Some((Point::First("PUT", BLOCK), Fault::Hold)));
    // Garbage collection uses the plugins' kubeconfig, so its requests pass the proxy.
    let Store::Kubernetes(objects) = &cluster.store else {
        unreachable!("custom resources")
    };
    let kubeconfig = objects.kubeconfig().display().to_string();
    let setup = Setup::kubernetes(&control_plane.servers.api)
        .unwrap()
        .env("KUBECONFIG", kubeconfig);
    let setup = setup
        .env("ENABLED_CONTROLLERS", "node")
        .env("LEADER_ELECTION", "false");
    let collecting = setup.start(cluster.host, "controllers").unwrap();
    configure(control_plane);
    cluster.remove_pod(pod);
    proxy.await_held().unwrap();
    collecting.freeze().unwrap();
    collecting
}

fn configure(control_plane: &ControlPlane<'_>) {
    let path = format!(
        "/apis/{}/kubecontrollersconfigurations/default",
        ApiGroup::CrdV1.api_version()
    );
    let admin = control_plane.servers.api.admin();
    await_that(PATIENCE, || Ok(admin.get(&path)?.code == 200)).unwrap();
    let grace = json!({ "spec": { "controllers": { "node": { "leakGracePeriod": "1s" } } } });
    admin.patch(&path, &grace).unwrap().success().unwrap();
}

impl Lab<'_, '_> {
    /// Resumes the held release, then the frozen process, and asserts that `pod` keeps the address.
    fn stays_with(&self, pod: &Pod) {
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
        self.collecting.thaw().unwrap();
        await_that(PATIENCE, || Ok(reads() > before))
            .expect("the write was refused, and the block is read again");
        sleep(Duration::from_secs(1));
        assert!(self.collecting.pid().is_some());
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

fn address_of(answer: &Value) -> &str {
    answer["ips"][0]["address"].as_str().unwrap_or_default()
}

#[test]
fn leaked_address_reallocated_to_another_pod_is_not_released() {
    on_api_server(ApiGroup::CrdV1, |cluster, control_plane| {
        cluster.load(&Content::ready().node("node1").pool("pool4", POOL, 32));
        let conf = cluster.conf("node1", json!({}));
        let (first, second) = (cluster.pod(1), cluster.pod(2));
        assert_eq!(address_of(&cluster.add(&first, &conf)), POOL);
        let collecting = with_release_held(cluster, control_plane, &first);
        let lab = Lab {
            cluster,
            control_plane,
            conf,
            collecting,
        };
        // The kubelet's DEL was late, and another pod gets the only address.
        cluster.delete(&first, &lab.conf);
        assert_eq!(address_of(&cluster.add(&second, &lab.conf)), POOL);
        says_its_address(control_plane, &second);
        lab.stays_with(&second);
    });
}

/// Only the sequence number distinguishes the two allocations.
#[test]
fn leaked_address_reallocated_to_the_same_handle_is_not_released() {
    on_api_server(ApiGroup::CrdV1, |cluster, control_plane| {
        cluster.load(&Content::ready().node("node1").pool("pool4", POOL, 32));
        let conf = cluster.conf("node1", json!({}));
        let first = cluster.pod(1);
        assert_eq!(address_of(&cluster.add(&first, &conf)), POOL);
        let collecting = with_release_held(cluster, control_plane, &first);
        let lab = Lab {
            cluster,
            control_plane,
            conf,
            collecting,
        };
        cluster.delete(&first, &lab.conf);
        let again = cluster.pod(1);
        assert_eq!(address_of(&cluster.add(&again, &lab.conf)), POOL);
        says_its_address(control_plane, &again);
        lab.stays_with(&again);
    });
}

fn says_its_address(control_plane: &ControlPlane<'_>, pod: &Pod) {
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
        .success()
        .unwrap();
}

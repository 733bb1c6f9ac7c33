//! A busy API server (429): only one call of a node retries at a time, without the lock of
//! addresses in its pauses.

use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};
use std::process::Child;
use std::thread;
use std::time::{Duration, Instant};

use integration_tests::cluster::{Cluster, ControlPlane, Faulty, Pod, on};
use integration_tests::journal::journal_entries;
use integration_tests::kernel;
use integration_tests::kubernetes::ApiServer;
use integration_tests::manifests::deploy;
use integration_tests::plugin::{DEADLINE, wait};
use integration_tests::proxy::{Fault, Point, Refusal};
use serde_json::json;

use super::faulty;

const BUSY: Fault = Fault::Refuse(Refusal {
    code: 429,
    retry_after: Some(1),
});
/// The retrying process has a lock on this file.
const TURNS: &str = "/var/run/calico/api-server-busy.lock";
const IPAM_LOCK: &str = "/var/run/calico/ipam.lock";
const SOON: Duration = Duration::from_secs(30);
/// More attempts than a call makes before the test kills the call.
const OFTEN: usize = 20;

#[track_caller]
fn await_that(what: &str, mut is_so: impl FnMut() -> bool) {
    let until = Instant::now() + SOON;
    while !is_so() {
        assert!(Instant::now() < until, "{what}: not within {SOON:?}");
        thread::sleep(Duration::from_millis(2));
    }
}

/// Starts a CNI command, and returns once it has opened [`TURNS`], as a process does before it
/// waits.
#[track_caller]
fn waiting(faulty: &Faulty<'_>, verb: &str, pod: &Pod) -> (Child, Instant) {
    let begun = Instant::now();
    let child = faulty.call(verb, pod).spawn().unwrap();
    let files = PathBuf::from(format!("/proc/{}/fd", child.id()));
    let waits = || {
        let open = fs::read_dir(&files).into_iter().flatten().flatten();
        let name = Path::new(TURNS).file_name();
        open.filter_map(|file| fs::read_link(file.path()).ok())
            .any(|file| file.file_name() == name)
    };
    await_that(&format!("{verb} waits"), waits);
    (child, begun)
}

#[on(kubernetes_v1)]
fn only_one_call_of_a_node_retries_on_a_busy_api_server(
    cluster: &Cluster<'_>,
    control_plane: &mut ControlPlane<'_>,
) {
    let faulty = &mut faulty(cluster, &control_plane.proxy);
    let (leaving, first) = (faulty.pod(), faulty.pod());
    let others = [faulty.pod(), faulty.pod()];
    // With a block of the node, an ADD works ahead and takes the lock of addresses.
    faulty.run("ADD", &leaving);
    faulty.proxy.arm(Some((Point::EveryRequest, BUSY)));
    let mut calls = vec![waiting(faulty, "ADD", &first)];
    // Before the first call has its turn, another call would find no reason to wait.
    await_that("the first has its turn", || {
        matches!(
            File::open(TURNS).unwrap().try_lock_shared(),
            Err(TryLockError::WouldBlock)
        )
    });
    let lock = File::open(IPAM_LOCK).unwrap();
    lock.try_lock()
        .expect("the lock of addresses is not held in a pause");
    lock.unlock().unwrap();
    calls.extend(others.iter().map(|pod| waiting(faulty, "ADD", pod)));
    calls.push(waiting(faulty, "DEL", &leaving));
    // `waiting` may return too early, because a process also opens the file to leave a message
    // there.
    await_that("the DEL writes its journal entry", || {
        journal_entries().len() == 1
    });
    assert_eq!(
        kernel::host().unwrap()["links"],
        json!({}),
        "the DEL has sent nothing"
    );
    // A node is ready even while its calls wait.
    faulty.call("STATUS", &first).run().success();
    let asked = faulty.proxy.faults();
    await_that("the first asks again", || faulty.proxy.faults() > asked);

    let asked = faulty.proxy.requests();
    let name = first.object.as_deref().unwrap();
    let of_pods: Vec<_> = asked
        .iter()
        .filter(|request| request.contains("/pods/"))
        .collect();
    assert!(
        !of_pods.is_empty() && of_pods.iter().all(|request| request.contains(name)),
        "{asked:#?}"
    );
    faulty.proxy.arm(None);
    for (child, begun) in calls {
        wait(child, begun, DEADLINE).unwrap().success();
    }
    let [second, third] = &others;
    faulty.cluster.assert_only(&[&first, second, third]);
    assert_eq!(journal_entries().len(), 0);
    for pod in [&first, second, third] {
        faulty.run("DEL", pod);
    }
    faulty.cluster.assert_nothing_left();
}

#[on(kubernetes_v3)]
fn del_killed_on_a_busy_server_has_removed_the_interface_and_is_replayed(
    cluster: &Cluster<'_>,
    control_plane: &mut ControlPlane<'_>,
) {
    let faulty = &mut faulty(cluster, &control_plane.proxy);
    // Before any object is read, and when the address is to be released.
    for point in [Point::EveryRequest, Point::First("PUT", "/ipamblocks/")] {
        let pod = faulty.pod();
        faulty.run("ADD", &pod);
        faulty.proxy.arm_all(&[(point, BUSY); OFTEN]);
        let (mut child, _) = waiting(faulty, "DEL", &pod);
        await_that("the DEL writes its journal entry", || {
            journal_entries().len() == 1
        });
        assert_eq!(kernel::host().unwrap()["links"], json!({}), "{point:?}");
        child.kill().unwrap();
        child.wait().unwrap();
        faulty.await_replayed(&pod);
        faulty.cluster.assert_nothing_left();
    }
}

fn served(api: &ApiServer) -> usize {
    let metrics = api.admin().get("/metrics").unwrap().body;
    let of_plugins = |line: &&str| {
        line.starts_with("apiserver_flowcontrol_dispatched_requests_total{")
            && line
                .contains(r#"flow_schema="calico-cni-plugin",priority_level="calico-cni-plugin""#)
    };
    let counts = metrics.as_str().unwrap().lines().filter(of_plugins);
    counts
        .map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap() as usize)
        .sum()
}

#[on(kubernetes_v1)]
fn plugin_requests_with_flow_control_use_their_own_priority_level(
    cluster: &Cluster<'_>,
    control_plane: &mut ControlPlane<'_>,
) {
    let faulty = &mut faulty(cluster, &control_plane.proxy);
    let api = &control_plane.servers.api;
    let user = api.cni_user().unwrap();
    let kubeconfig = api
        .kubeconfig_to(&faulty.proxy.endpoint(), "cni", &user.identity)
        .unwrap();
    faulty.conf["kubernetes"]["kubeconfig"] = json!(kubeconfig);
    let manifest = deploy("components/flow-control/flow-control.yaml")
        .display()
        .to_string();
    let before = served(api);
    api.kubectl(&["apply", "--server-side", "-f", &manifest])
        .unwrap();
    await_that("the server goes by it", || {
        user.client.get("/apis").unwrap();
        served(api) > before
    });
    let pod = faulty.pod();
    for verb in ["ADD", "STATUS", "DEL"] {
        let before = served(api);
        faulty.run(verb, &pod);
        let requests = faulty.proxy.traffic().requests;
        await_that("requests are counted", || served(api) >= before + requests);
        assert_eq!(served(api), before + requests, "{verb}");
    }
    faulty.cluster.assert_nothing_left();
    // Other tests use the API server without the priority level.
    api.kubectl(&["delete", "-f", &manifest]).unwrap();
}

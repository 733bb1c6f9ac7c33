//! Tests of the time limits of a DEL, on a clock that only the test advances.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use libcalico::api::{ClusterInformation, ObjectKey};
use libcalico::store::Store;
use serde_json::json;
use tempfile::TempDir;
use tokio::time::sleep;

use super::*;
use crate::testing::{ApiServer, Clock, Reply, context};

const CLUSTER: &str = "/apis/crd.projectcalico.org/v1/clusterinformations/default";
const POD: &str = "/api/v1/namespaces/shop/pods/web";

struct DelCall {
    cx: Context,
    files: TempDir,
}

impl DelCall {
    fn new(server: &ApiServer) -> DelCall {
        let files = tempfile::tempdir().unwrap();
        DelCall { cx: context("DEL", server, files.path()), files }
    }

    /// Returns the DEL of a network with another IPAM plugin, and the file to which the plugin appends its commands.
    fn with_other_ipam_plugin(server: &ApiServer) -> (DelCall, PathBuf) {
        let mut del = DelCall::new(server);
        let directory = del.files.path();
        let (plugin, commands) = (directory.join("test-ipam"), directory.join("commands"));
        fs::write(&plugin, format!("#!/bin/sh\necho $CNI_COMMAND >> {}\n", commands.display())).unwrap();
        fs::set_permissions(&plugin, Permissions::from_mode(0o755)).unwrap();
        del.cx.call.path = vec![directory.display().to_string()];
        del.cx.call.conf.ipam.ipam_type = "test-ipam".into();
        (del, commands)
    }

    /// Runs the DEL, which succeeds and records a deferred DEL. Returns the seconds by the clock, and the recorded
    /// reason.
    async fn run(&mut self) -> (u64, String) {
        let begun = Instant::now();
        del(&self.cx, &mut Timings::start()).await.unwrap();
        let took = begun.elapsed().as_secs();
        let [(_, pending_del)] = &self.cx.journal.entries_of("net1", "c1", "eth0").unwrap()[..] else {
            panic!("one deferred DEL")
        };
        assert_eq!(pending_del.endpoint, ("shop".into(), "node1-k8s-web-eth0".into()));
        (took, pending_del.reason.clone())
    }
}

/// Answers reads within the limit of the first response. Answers patches, which remove the address from the pod, within
/// the limit of a request, each time with a conflict.
fn slowly(request: &str) -> Option<Reply> {
    let reply = |seconds, status, body| Some(Reply { after: Duration::from_secs(seconds), status, body });
    let (verb, path) = request.split_once(' ')?;
    let refused = |code, reason| {
        let details = json!({ "name": path.rsplit('/').next() });
        json!({ "kind": "Status", "status": "Failure", "reason": reason, "code": code, "details": details })
    };
    match (verb, path) {
        ("GET", CLUSTER) => reply(
            0,
            200,
            json!({
                "apiVersion": "crd.projectcalico.org/v1", "kind": "ClusterInformation",
                "metadata": {
                    "name": "default", "uid": "00000000-0000-0000-0000-000000000001", "resourceVersion": "7",
                },
                "spec": { "datastoreReady": true },
            }),
        ),
        ("GET", POD) => reply(
            2,
            200,
            json!({
                "apiVersion": "v1", "kind": "Pod", "spec": { "nodeName": "node1" }, "status": { "phase": "Running" },
                "metadata": {
                    "name": "web", "namespace": "shop", "uid": "00000000-0000-0000-0000-000000000002",
                    "resourceVersion": "7",
                    "annotations": {
                        "cni.projectcalico.org/containerID": "c1",
                        "cni.projectcalico.org/podIP": "10.65.0.1/32", "cni.projectcalico.org/podIPs": "10.65.0.1/32",
                    },
                },
            }),
        ),
        ("GET", _) => reply(0, 404, refused(404, "NotFound")),
        _ => reply(9, 409, refused(409, "Conflict")),
    }
}

#[tokio::test(start_paused = true)]
async fn del_on_a_slow_api_server_ends_after_30_seconds_and_is_deferred() {
    let _clock = Clock::stop();
    let server = ApiServer::start(slowly).await;
    let (took, reason) = DelCall::new(&server).run().await;
    let (requests, is_patch) = (server.requests(), |request: &&String| request.starts_with("PATCH "));
    assert_eq!((took, requests.iter().filter(is_patch).count()), (30, 3), "{requests:?}");
    assert!(reason.contains("did not finish within the time limit of this call"), "{reason}");
}

/// The journal does not record the addresses of the plugin.
#[tokio::test(start_paused = true)]
async fn deferred_del_on_a_slow_api_server_runs_del_of_another_ipam_plugin() {
    let _clock = Clock::stop();
    let server = ApiServer::start(slowly).await;
    let (mut del, commands) = DelCall::with_other_ipam_plugin(&server);
    let (_, reason) = del.run().await;
    assert!(reason.contains("did not finish within the time limit of this call"), "{reason}");
    assert_eq!(fs::read_to_string(commands).unwrap(), "DEL\n");
}

fn never(_: &str) -> Option<Reply> {
    None
}

#[tokio::test(start_paused = true)]
async fn del_on_a_silent_api_server_ends_after_3_seconds_and_is_deferred() {
    let server = ApiServer::start(never).await;
    let (took, reason) = DelCall::new(&server).run().await;
    assert_eq!(took, 3);
    assert!(reason.contains("within 3s"), "{reason}");
}

/// The second request starts a second after the first one, and the third after the time limit.
#[tokio::test(start_paused = true)]
async fn sequential_requests_to_a_silent_api_server_share_a_3_second_limit() {
    let server = ApiServer::start(never).await;
    let DelCall { cx, .. } = &DelCall::new(&server);
    let begun = Instant::now();
    let ended = async |after: u64| {
        sleep(Duration::from_secs(after)).await;
        let error = cx.store.get::<ClusterInformation>(&ObjectKey::global("default")).await.unwrap_err();
        assert!(error.to_string().contains("within 3s"), "{error}");
        begun.elapsed().as_secs()
    };
    let (first, second) = join(ended(0), ended(1)).await;
    assert_eq!((first, second, ended(0).await), (3, 3, 3));
}

//! Tests of the time limits of a DEL, on a clock that only the test advances.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use allocation::error::IpamError;
use futures::future::join;
use libcalico::api::{ClusterInformation, ObjectKey};
use libcalico::store::{Store, StoreError};
use serde_json::json;
use tempfile::TempDir;
use tokio::time::{Instant, sleep};

use super::*;
use crate::testing::{ApiServer, Clock, Reply, context};
use crate::world::ThisNode;

const CLUSTER: &str = "/apis/crd.projectcalico.org/v1/clusterinformations/default";
const POD: &str = "/api/v1/namespaces/shop/pods/web";

struct DelCall {
    cx: Context<ThisNode>,
    files: TempDir,
}

impl DelCall {
    fn new(server: &ApiServer) -> DelCall {
        let files = tempfile::tempdir().unwrap();
        DelCall {
            cx: context("DEL", server, files.path()),
            files,
        }
    }

    /// Returns the DEL of a network with another IPAM plugin, and the file to which the plugin
    /// appends its commands.
    fn with_other_ipam_plugin(server: &ApiServer) -> (DelCall, PathBuf) {
        let mut del = DelCall::new(server);
        let directory = del.files.path();
        let (plugin, commands) = (directory.join("test-ipam"), directory.join("commands"));
        fs::write(
            &plugin,
            format!("#!/bin/sh\necho $CNI_COMMAND >> {}\n", commands.display()),
        )
        .unwrap();
        fs::set_permissions(&plugin, Permissions::from_mode(0o755)).unwrap();
        del.cx.call.path = vec![directory.display().to_string()];
        del.cx.call.conf.ipam.ipam_type = "test-ipam".into();
        (del, commands)
    }

    /// Runs the DEL, which succeeds and records a deferred DEL. Returns the seconds by the clock,
    /// and the recorded reason.
    async fn run(&mut self) -> (u64, String) {
        let begun = Instant::now();
        del(&self.cx).await.unwrap();
        let took = begun.elapsed().as_secs();
        let [(_, pending_del)] = &self.cx.journal.entries_of("net1", "c1", "eth0").unwrap()[..]
        else {
            panic!("one deferred DEL")
        };
        assert_eq!(
            pending_del.endpoint,
            ("shop".into(), "node1-k8s-web-eth0".into())
        );
        (took, pending_del.reason.clone())
    }
}

/// Answers reads within the limit of the first response. Answers patches, which remove the address
/// from the pod, within the limit of a request, each time with a conflict.
fn slowly(request: &str) -> Option<Reply> {
    let reply = |seconds, status, body| {
        Some(Reply {
            after: Duration::from_secs(seconds),
            status,
            body,
        })
    };
    let (verb, path) = request.split_once(' ')?;
    let refused = |code, reason| {
        let details = json!({ "name": path.rsplit('/').next() });
        json!({
            "kind": "Status", "status": "Failure", "reason": reason, "code": code,
            "details": details,
        })
    };
    match (verb, path) {
        ("GET", CLUSTER) => reply(
            0,
            200,
            json!({
                "apiVersion": "crd.projectcalico.org/v1", "kind": "ClusterInformation",
                "metadata": {
                    "name": "default", "uid": "00000000-0000-0000-0000-000000000001",
                    "resourceVersion": "7",
                },
                "spec": { "datastoreReady": true },
            }),
        ),
        ("GET", POD) => reply(
            2,
            200,
            json!({
                "apiVersion": "v1", "kind": "Pod", "spec": { "nodeName": "node1" },
                "status": { "phase": "Running" },
                "metadata": {
                    "name": "web", "namespace": "shop",
                    "uid": "00000000-0000-0000-0000-000000000002",
                    "resourceVersion": "7",
                    "annotations": {
                        "cni.projectcalico.org/containerID": "c1",
                        "cni.projectcalico.org/podIP": "10.65.0.1/32",
                        "cni.projectcalico.org/podIPs": "10.65.0.1/32",
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
    let (requests, is_patch) = (server.requests(), |request: &&String| {
        request.starts_with("PATCH ")
    });
    assert_eq!(
        (took, requests.iter().filter(is_patch).count()),
        (30, 3),
        "{requests:?}"
    );
    assert!(
        reason.contains("did not finish within the time limit of this call"),
        "{reason}"
    );
}

/// The journal does not record the addresses of the plugin.
#[tokio::test(start_paused = true)]
async fn deferred_del_on_a_slow_api_server_runs_del_of_another_ipam_plugin() {
    let _clock = Clock::stop();
    let server = ApiServer::start(slowly).await;
    let (mut del, commands) = DelCall::with_other_ipam_plugin(&server);
    let (_, reason) = del.run().await;
    assert!(
        reason.contains("did not finish within the time limit of this call"),
        "{reason}"
    );
    assert_eq!(fs::read_to_string(commands).unwrap(), "DEL\n");
}

/// Answers for a cluster that answers patches, which remove the address from the pod, with this
/// code.
fn with_patches(request: &str, code: u16, reason: &str) -> Option<Reply> {
    if request.starts_with("PATCH ") {
        let body = json!({ "kind": "Status", "status": "Failure", "reason": reason, "code": code });
        return Some(Reply {
            after: Duration::ZERO,
            status: code,
            body,
        });
    }
    slowly(request)
}

#[tokio::test(start_paused = true)]
async fn del_with_another_ipam_plugin_is_complete_though_the_endpoint_cannot_be_changed() {
    const SCRIPTS: [fn(&str) -> Option<Reply>; 3] = [
        |request| with_patches(request, 403, "Forbidden"),
        |request| with_patches(request, 413, "RequestEntityTooLarge"),
        |request| with_patches(request, 422, "Invalid"),
    ];
    let _clock = Clock::stop();
    for script in SCRIPTS {
        let server = ApiServer::start(script).await;
        let (call, commands) = DelCall::with_other_ipam_plugin(&server);
        del(&call.cx).await.unwrap();
        assert!(
            call.cx.journal.is_empty()
                && server.requests().iter().any(|it| it.starts_with("PATCH "))
        );
        assert_eq!(fs::read_to_string(commands).unwrap(), "DEL\n");
    }
}

#[tokio::test(start_paused = true)]
async fn del_with_another_ipam_plugin_is_deferred_if_the_datastore_fails_meanwhile() {
    const SCRIPTS: [fn(&str) -> Option<Reply>; 2] = [
        |request| with_patches(request, 401, "Unauthorized"),
        |request| with_patches(request, 500, "InternalError"),
    ];
    let _clock = Clock::stop();
    for script in SCRIPTS {
        let server = ApiServer::start(script).await;
        let (mut call, commands) = DelCall::with_other_ipam_plugin(&server);
        let (_, reason) = call.run().await;
        assert!(reason.contains("may still list the addresses"), "{reason}");
        assert_eq!(fs::read_to_string(commands).unwrap(), "DEL\n");
    }
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
        let error = cx
            .store
            .get::<ClusterInformation>(&ObjectKey::global("default"))
            .await
            .unwrap_err();
        assert!(error.to_string().contains("within 3s"), "{error}");
        begun.elapsed().as_secs()
    };
    let (first, second) = join(ended(0), ended(1)).await;
    assert_eq!((first, second, ended(0).await), (3, 3, 3));
}

/// The ADD of a further name created no interface. Without the namespace, only the record and
/// prevResult show this. Shows SEC-48.
#[tokio::test]
async fn del_of_a_further_interface_name_sends_no_request_and_is_not_deferred() {
    let by_record = |call: &mut DelCall| interface_names::record_further(&call.cx).unwrap();
    let by_result = |call: &mut DelCall| {
        let ends = json!([
            { "name": call.cx.interface().host_ifname() }, { "name": "first0", "sandbox": "/n" },
        ]);
        call.cx.call.conf.prev_result = Some(json!({
            "cniVersion": "1.0.0", "interfaces": ends, "ips": [{ "address": "10.65.0.1/32" }],
        }));
    };
    for prepare in [by_record as fn(&mut DelCall), by_result] {
        let server = ApiServer::start(slowly).await;
        let (mut call, commands) = DelCall::with_other_ipam_plugin(&server);
        prepare(&mut call);
        for _ in 0..2 {
            del(&call.cx).await.unwrap();
        }
        assert_eq!(
            (server.requests(), call.cx.journal.is_empty()),
            (Vec::new(), true)
        );
        assert!(
            !commands.exists(),
            "the ADD did not call the IPAM plugin either"
        );
    }
}

/// Answers for a cluster without this pod.
fn without_pod(request: &str) -> Option<Reply> {
    crate::testing::without_pods(request, "/nothing")
}

/// A runtime may call DEL only for the first name.
#[tokio::test]
async fn del_of_the_first_name_removes_the_record_of_a_further_name() {
    let directly = ApiServer::start(without_pod).await;
    let deferred = ApiServer::start(|_| another_server(404)).await;
    for server in [directly, deferred] {
        let mut call = DelCall::new(&server);
        call.cx.call.ifname = "net1".into();
        interface_names::record_further(&call.cx).unwrap();
        call.cx.call.ifname = "eth0".into();
        del(&call.cx).await.unwrap();
        assert!(!server.requests().is_empty());
        call.cx.call.ifname = "net1".into();
        assert!(!interface_names::is_further(&call.cx).unwrap());
    }
}

fn another_server(status: u16) -> Option<Reply> {
    Some(Reply {
        after: Duration::ZERO,
        status,
        body: json!("<html>another server</html>"),
    })
}

#[tokio::test(start_paused = true)]
async fn del_on_another_server_in_place_of_the_api_server_is_deferred() {
    const SCRIPTS: [fn(&str) -> Option<Reply>; 7] = [
        |_| another_server(200),
        |_| another_server(302),
        |_| another_server(400),
        |_| another_server(404),
        |_| another_server(405),
        |_| another_server(410),
        |_| another_server(451),
    ];
    for script in SCRIPTS {
        let server = ApiServer::start(script).await;
        let (_, reason) = DelCall::new(&server).run().await;
        assert!(!reason.is_empty(), "{:?}", server.requests());
    }
}

#[test]
fn each_refused_request_of_a_release_is_deferrable() {
    let key = || "IPAMBlock(10-65-0-0-26)".to_owned();
    for cause in [
        StoreError::Other("IPAMBlock(10-65-0-0-26): denied by a policy (422 Invalid)".into()),
        StoreError::Alarm {
            reason: "etcdserver: mvcc: database space exceeded".into(),
        },
        StoreError::ForeignAnswer {
            datastore: "d".into(),
            reason: "<html>".into(),
            outcome_unknown: true,
        },
        StoreError::Conflict { key: key() },
        StoreError::DiskFull { path: "/db".into() },
    ] {
        let text = cause.to_string();
        let error = ReleaseError::from(IpamError::from(cause));
        assert!(matches!(error, ReleaseError::Deferrable(_)), "{text}");
    }
    let unreadable = StoreError::Corrupt {
        key: key(),
        reason: "no block".into(),
    };
    assert!(matches!(
        ReleaseError::from(IpamError::from(unreadable)),
        ReleaseError::Permanent(_)
    ));
}

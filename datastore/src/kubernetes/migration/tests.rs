//! The API group in each state of upstream's migration.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use serde_json::json;
use tokio::net::TcpListener;

use super::*;
use crate::config::{KubernetesConfig, Overrides};
use crate::kubernetes::Kubernetes;
use ApiGroup::{CrdV1, V3};

const V1_GROUP: &str = "crd.projectcalico.org";
const V3_GROUP: &str = "projectcalico.org";

#[derive(Clone, Default)]
struct Server {
    objects: Arc<Mutex<BTreeMap<String, Value>>>,
    requests: Arc<Mutex<Vec<String>>>,
}

impl Server {
    fn has(&self, path: impl Into<String>, object: Value) {
        self.objects.lock().unwrap().insert(path.into(), object);
    }

    fn new(groups: &[&str], v1: Option<Value>, v3: Option<Value>) -> Server {
        let server = Server::default();
        let listed: Vec<_> = groups.iter().map(|name| json!({ "name": name })).collect();
        server.has("/apis", json!({ "groups": listed }));
        for group in groups {
            server.has(format!("/apis/{group}"), json!({ "name": group }));
        }
        for (group, information) in [(CrdV1, v1), (V3, v3)] {
            if let Some(information) = information {
                server.has(
                    format!("/apis/{}/clusterinformations/default", group.api_version()),
                    information,
                );
            }
        }
        server
    }

    async fn start(&self) -> KubernetesConfig {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = Some(format!("http://{}", listener.local_addr().unwrap()));
        let this = self.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let this = this.clone();
                let service = service_fn(move |request| this.clone().answer(request));
                tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
            }
        });
        let overrides = Overrides {
            server,
            ..Overrides::default()
        };
        KubernetesConfig {
            overrides,
            deadline: Duration::from_secs(20),
            ..KubernetesConfig::default()
        }
    }

    async fn answer(self, request: Request<Incoming>) -> Result<Response<String>, Infallible> {
        let path = request.uri().path().to_owned();
        self.requests.lock().unwrap().push(path.clone());
        let found = self.objects.lock().unwrap().get(&path).cloned();
        let absent = || json!({ "kind": "Status", "reason": "NotFound", "code": 404 });
        let code = if found.is_some() { 200 } else { 404 };
        Ok(Response::builder()
            .status(code)
            .body(found.unwrap_or_else(absent).to_string())
            .unwrap())
    }
}

fn information(ready: bool, mark: Option<&str>) -> Option<Value> {
    let annotations: serde_json::Map<_, _> = mark
        .into_iter()
        .map(|mark| (mark.to_owned(), json!("uid")))
        .collect();
    Some(json!({ "metadata": { "annotations": annotations }, "spec": { "datastoreReady": ready } }))
}

const MIGRATED: Option<&str> = Some(MIGRATED_BY);
const LOCKED: Option<&str> = Some(LOCKED_BY);

#[tokio::test]
async fn v3_is_selected_beside_v1_only_after_the_migration_opened_v3() {
    let both = &[V1_GROUP, V3_GROUP][..];
    for (groups, v1, v3, expected, requests) in [
        (&[V1_GROUP][..], information(false, None), None, CrdV1, 1),
        (&[V3_GROUP], None, information(true, None), V3, 1),
        (
            both,
            information(true, None),
            information(true, MIGRATED),
            CrdV1,
            2,
        ),
        (both, information(false, None), None, CrdV1, 3),
        (
            both,
            information(false, None),
            information(false, MIGRATED),
            CrdV1,
            3,
        ),
        // Calico's API server serves objects in v3 that are stored in v1.
        (
            both,
            information(false, None),
            information(true, None),
            CrdV1,
            3,
        ),
        (
            both,
            information(false, None),
            information(true, MIGRATED),
            V3,
            3,
        ),
        (
            both,
            information(false, None),
            information(true, LOCKED),
            V3,
            3,
        ),
        (both, None, information(true, MIGRATED), V3, 3),
    ] {
        let server = Server::new(groups, v1.clone(), v3.clone());
        let config = server.start().await;
        let found = Kubernetes::long_running(&config)
            .discover_group()
            .await
            .unwrap();
        assert_eq!(
            (found, server.requests.lock().unwrap().len()),
            (expected, requests),
            "{groups:?} {v1:?} {v3:?}"
        );
        let configured = KubernetesConfig {
            group: Some(CrdV1),
            ..config
        };
        assert_eq!(
            Kubernetes::long_running(&configured)
                .discover_group()
                .await
                .unwrap(),
            expected
        );
    }
}

#[tokio::test]
async fn switch_to_v3_is_shared_with_later_processes_until_v1_is_unlocked() {
    let server = Server::new(
        &[V1_GROUP, V3_GROUP],
        information(true, None),
        information(true, MIGRATED),
    );
    let config = server.start().await;
    let directory = tempfile::tempdir().unwrap();
    let process = || Kubernetes::new(&config, directory.path().join("group"));
    let first = process();
    assert_eq!(first.group().await.unwrap(), CrdV1);
    let locked = |ready| {
        server.has(
            "/apis/crd.projectcalico.org/v1/clusterinformations/default",
            information(ready, None).unwrap(),
        );
    };
    locked(false);
    assert!(process().has_migrated_to_v3().await.unwrap());
    first.switch_to_v3().await.unwrap();
    assert_eq!(first.group().await.unwrap(), V3);
    assert_eq!(process().group().await.unwrap(), V3);
    assert!(
        !first.has_migrated_to_v3().await.unwrap(),
        "the process uses v3"
    );
    locked(true);
    assert_eq!(process().group().await.unwrap(), CrdV1);
}

#[tokio::test]
async fn mark_of_v1_concerns_processes_that_use_v3() {
    for (v1, group, expected) in [
        (information(false, Some(V1_LOCKED_BY)), V3, true),
        (information(false, Some(V1_LOCKED_BY)), CrdV1, false),
        (information(false, None), V3, false),
        (None, V3, false),
    ] {
        let server = Server::new(
            &[V1_GROUP, V3_GROUP],
            v1.clone(),
            information(false, MIGRATED),
        );
        let config = KubernetesConfig {
            group: Some(group),
            ..server.start().await
        };
        assert_eq!(
            Kubernetes::uncached(&config).has_marked_v1().await.unwrap(),
            expected,
            "{v1:?} {group:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn group_change_is_reported_after_two_equal_reads() {
    for (answers, requests) in [
        (&[Ok(CrdV1), Ok(CrdV1), Ok(V3), Ok(V3), Ok(V3)][..], 4),
        (&[Ok(V3), Ok(CrdV1), Ok(V3), Ok(V3)], 4),
        (&[Ok(V3), Err("away"), Ok(V3)], 3),
    ] {
        let remaining = RefCell::new(answers.iter());
        let discover = async || remaining.borrow_mut().next().copied().unwrap();
        let now = wait_for_changed_group(CrdV1, Duration::from_secs(60), discover).await;
        assert_eq!(
            (now, answers.len() - remaining.borrow().len()),
            (V3, requests),
            "{answers:?}"
        );
    }
}

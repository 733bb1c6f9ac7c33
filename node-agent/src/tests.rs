//! The agent, from its start to its end, when Calico's objects move to another API group, and with
//! a rejected token.

use libcalico::variables::Variables;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use libcalico::kubernetes::ApiGroup;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::yield_now;
use tokio::time::advance;

use std::path::Path;
use std::time::Duration;

use super::*;

/// Number of first answers that name the group of the agent's start. All later answers name the
/// other group.
const ANSWERS_BEFORE_MOVE: usize = 2;
/// Seconds by which the clock advances at a time: fewer than the interval between two requests of
/// the agent.
const STEP: u64 = 100;
/// Number of turns that each task gets before the clock advances.
const YIELDS: usize = 2000;
/// Number of these turns between two pauses.
const YIELDS_PER_PAUSE: usize = 100;

/// Starts an API server that has Calico's objects in v1 at first and in v3 later. Returns its URL.
async fn api_server(requests: Arc<AtomicUsize>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(answer(stream, requests.clone()));
        }
    });
    url
}

async fn answer(mut stream: TcpStream, requests: Arc<AtomicUsize>) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        if stream.read_buf(&mut head).await.unwrap_or(0) == 0 {
            return;
        }
    }
    let head = String::from_utf8_lossy(&head);
    assert!(head.starts_with("GET /apis HTTP/1.1\r\n"), "{head}");
    let has_moved = requests.fetch_add(1, Ordering::Relaxed) >= ANSWERS_BEFORE_MOVE;
    let group = if has_moved {
        "projectcalico.org"
    } else {
        "crd.projectcalico.org"
    };
    send(
        &mut stream,
        "200 OK",
        &json!({ "kind": "APIGroupList", "groups": [{ "name": group }] }),
    )
    .await;
}

async fn send(stream: &mut TcpStream, status: &str, body: &Value) {
    let body = body.to_string();
    let length = body.len();
    let answer = format!(
        "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: \
         {length}\r\nconnection: close\r\n\r\n{body}"
    );
    stream.write_all(answer.as_bytes()).await.unwrap();
}

/// Starts an API server that rejects every token of the plugins, and creates new ones only if
/// `grants` is true. Returns its URL.
async fn token_server(grants: Arc<AtomicBool>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut request = Vec::new();
            // Only a TokenRequest has a body, which is JSON.
            while !request.ends_with(if request.starts_with(b"POST ") {
                &b"}}"[..]
            } else {
                b"\r\n\r\n"
            }) {
                if stream.read_buf(&mut request).await.unwrap_or(0) == 0 {
                    break;
                }
            }
            let failure = |code: u16| {
                json!({
                    "kind": "Status", "status": "Failure", "message": "no", "code": code,
                })
            };
            match (
                request.starts_with(b"GET /version "),
                grants.load(Ordering::Relaxed),
            ) {
                (true, _) => send(&mut stream, "401 Unauthorized", &failure(401)).await,
                (false, false) => send(&mut stream, "403 Forbidden", &failure(403)).await,
                (false, true) => {
                    let status =
                        json!({ "token": "NEW", "expirationTimestamp": "2100-01-01T00:00:00Z" });
                    let issued =
                        json!({ "spec": { "expirationSeconds": 86_400 }, "status": status });
                    send(&mut stream, "201 Created", &issued).await;
                }
            }
        }
    });
    url
}

fn account(directory: &Path, server: String) -> ServiceAccount {
    let token_file = directory.join("token");
    std::fs::write(&token_file, "TOKEN").unwrap();
    let (namespace, ca_file) = ("kube-system".into(), PathBuf::new());
    ServiceAccount {
        namespace,
        server,
        token_file,
        ca_file,
        insecure: true,
        kubeconfig: None,
    }
}

fn settings() -> AgentSettings {
    let lookup = |name: &str| (name == "CNI_AGENT_LISTEN").then(|| "off".into());
    AgentSettings::from_environment(Variables::new(&lookup)).unwrap()
}

/// Advances the paused clock by an hour. The other tasks get turns between the steps, because the
/// paused clock does not wait for data on their real connections. A thread of the kernel may have
/// to deliver the data, so the turns leave it the processor.
async fn hour() {
    for _ in 0..3600 / STEP {
        for turn in 0..YIELDS {
            if turn.is_multiple_of(YIELDS_PER_PAUSE) {
                std::thread::sleep(Duration::from_millis(1));
            }
            yield_now().await;
        }
        advance(Duration::from_secs(STEP)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn agent_ends_with_an_error_when_objects_move_to_another_api_group() {
    let requests = Arc::new(AtomicUsize::new(0));
    let directory = tempfile::tempdir().unwrap();
    let (account, settings) = (
        account(directory.path(), api_server(requests.clone()).await),
        settings(),
    );
    let group = Some(ApiGroupWatch {
        account,
        configured: Some(ApiGroup::CrdV1),
    });
    let watched = Watched {
        group,
        ..Watched::default()
    };
    let kubeconfig = directory.path().join("calico-kubeconfig");
    let agent = run(
        &settings,
        None,
        kubeconfig,
        watched,
        FileCheck::default,
        pending(),
        pending(),
    );
    let error = tokio::select! {
        ended = agent => ended.unwrap_err(),
        _ = tokio::spawn(hour()) => panic!("the agent goes on"),
    };
    let expected = "Calico's objects moved from the API group crd.projectcalico.org/v1 to \
                    projectcalico.org/v3; the agent ends, so that its container starts again for \
                    projectcalico.org/v3";
    assert_eq!(error.to_string(), expected);
    assert_eq!(
        requests.load(Ordering::Relaxed),
        ANSWERS_BEFORE_MOVE + 2,
        "two looks in a row found the other group"
    );
}

#[tokio::test]
async fn rejected_or_missing_token_makes_the_agent_not_ready_until_a_new_one_is_written() {
    for has_token in [true, false] {
        let (grants, directory) = (
            Arc::new(AtomicBool::new(false)),
            tempfile::tempdir().unwrap(),
        );
        let account = account(directory.path(), token_server(grants.clone()).await);
        let file = directory.path().join("calico-kubeconfig");
        if has_token {
            kubeconfig::write(&file, &account, "OLD").unwrap();
        }
        let (settings, now) = (settings(), Moment::now());
        let held = HeldToken {
            received_at: now.boot,
            lifetime: Duration::from_secs(86_400),
        };
        let mut schedule = RefreshSchedule::new(settings.pace, now);
        schedule.record_attempt(
            RefreshAttempt {
                at: now.boot,
                succeeded: true,
            },
            Some(held),
            0.0,
        );
        let status = SharedStatus::default();
        *status.get() = Status {
            manages_token: true,
            token: Some(held),
            expires: Some(1),
            ..Status::default()
        };
        let token = Some(Refresher::new(&settings, account, file.clone()));
        let mut agent = Agent {
            token,
            schedule,
            directories: Vec::new(),
            reconcile: FileCheck::default,
            status,
        };

        let passed = settings.pace.check_interval;
        agent
            .refresh_if_due(Moment {
                boot: now.boot + passed,
                calendar: now.calendar + passed,
            })
            .await;
        let reason = agent
            .status
            .get()
            .readiness(now.boot)
            .unwrap_err()
            .to_string();
        assert!(
            reason.contains("rejects the plugins' token")
                && reason.contains("may not create tokens"),
            "{reason}"
        );

        grants.store(true, Ordering::Relaxed);
        agent.renew(RefreshReason::Due).await;
        assert_eq!(agent.status.get().readiness(now.boot), Ok(()));
        assert_eq!(
            kubeconfig::token(&std::fs::read_to_string(&file).unwrap()),
            Some("NEW")
        );
    }
}

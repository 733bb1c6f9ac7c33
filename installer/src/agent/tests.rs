//! The agent, from its start to its end, when Calico's objects move to another API group.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use libcalico::kubernetes::ApiGroup;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::yield_now;
use tokio::time::advance;

use std::time::Duration;

use super::*;

/// Number of first answers that name the group of the agent's start. All later answers name the other group.
const ANSWERS_BEFORE_MOVE: usize = 2;
/// Seconds by which the clock advances at a time: fewer than the interval between two requests of the agent.
const STEP: u64 = 100;
/// Number of turns that each task gets before the clock advances.
const YIELDS: usize = 2000;

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
    let group = if has_moved { "projectcalico.org" } else { "crd.projectcalico.org" };
    let body = json!({ "kind": "APIGroupList", "groups": [{ "name": group }] }).to_string();
    let length = body.len();
    let answer = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {length}\r\nconnection: \
         close\r\n\r\n{body}"
    );
    stream.write_all(answer.as_bytes()).await.unwrap();
}

/// Advances the paused clock by an hour. The other tasks get turns between the steps, because the paused clock does not
/// wait for data on their real connections.
async fn hour() {
    for _ in 0..3600 / STEP {
        for _ in 0..YIELDS {
            yield_now().await;
        }
        advance(Duration::from_secs(STEP)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn agent_ends_with_an_error_when_objects_move_to_another_api_group() {
    let requests = Arc::new(AtomicUsize::new(0));
    let directory = tempfile::tempdir().unwrap();
    let token_file = directory.path().join("token");
    std::fs::write(&token_file, "TOKEN").unwrap();
    let account = ServiceAccount {
        namespace: "kube-system".into(),
        server: api_server(requests.clone()).await,
        token_file,
        ca_file: PathBuf::new(),
        insecure: true,
        kubeconfig: None,
    };
    let settings = AgentSettings::from_environment(&|name| (name == "CNI_AGENT_LISTEN").then(|| "off".into())).unwrap();
    let group = Some(ApiGroupWatch { account, configured: Some(ApiGroup::CrdV1) });
    let watched = Watched { group, ..Watched::default() };
    let kubeconfig = directory.path().join("calico-kubeconfig");
    let error = tokio::select! {
        ended = run(&settings, None, kubeconfig, watched, FileCheck::default, pending()) => ended.unwrap_err(),
        _ = tokio::spawn(hour()) => panic!("the agent goes on"),
    };
    let expected = "Calico's objects moved from the API group crd.projectcalico.org/v1 to projectcalico.org/v3; the \
        agent ends, so that its container starts again for projectcalico.org/v3";
    assert_eq!(error.to_string(), expected);
    assert_eq!(requests.load(Ordering::Relaxed), ANSWERS_BEFORE_MOVE + 2, "two looks in a row found the other group");
}

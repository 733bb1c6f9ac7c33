//! The whole process at an API server on which Calico's objects move to another API group.

mod idle;

use std::convert::Infallible;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use serde_json::json;
use tokio::net::TcpListener;
use tokio::task::yield_now;
use tokio::time::advance;

use super::*;

/// Number of discovery responses that name the first group: one at the start, and one in each of
/// two checks.
const BEFORE: usize = 3;
/// Number of turns that each task gets per simulated second.
const TURNS: usize = 1000;

/// Starts an API server that serves Calico's objects in v1 at first and in v3 later, and forbids
/// everything else.
async fn api_server(asked: Arc<AtomicUsize>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let asked = asked.clone();
            let service = service_fn(move |request| std::future::ready(answer(&request, &asked)));
            tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
        }
    });
    url
}

fn answer(
    request: &Request<Incoming>,
    asked: &AtomicUsize,
) -> Result<Response<String>, Infallible> {
    let (code, body) = match request.uri().path() {
        "/apis" => {
            let has_moved = asked.fetch_add(1, Ordering::Relaxed) >= BEFORE;
            let group = if has_moved {
                "projectcalico.org"
            } else {
                "crd.projectcalico.org"
            };
            (
                200,
                json!({ "kind": "APIGroupList", "groups": [{ "name": group }] }),
            )
        }
        _ => (
            403,
            json!({ "kind": "Status", "reason": "Forbidden", "code": 403 }),
        ),
    };
    Ok(Response::builder()
        .status(code)
        .body(body.to_string())
        .unwrap())
}

/// Advances the paused clock in small steps. The connections are real, and without the steps the
/// clock would not wait for their data. A thread of the kernel may have to deliver the data, so
/// each step leaves it the processor.
async fn seconds(count: usize) {
    for _ in 0..count {
        for _ in 0..TURNS {
            yield_now().await;
        }
        std::thread::sleep(Duration::from_millis(1));
        advance(Duration::from_secs(1)).await;
    }
}

/// Returns a process with these environment variables, which keeps its files in `directory`.
fn process(directory: &Path, server: &str, variables: &[(&str, &str)]) -> Process {
    let user = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{ "name": "k", "cluster": { "server": server } }],
        "users": [{ "name": "u", "user": {} }],
        "contexts": [{ "name": "c", "context": { "cluster": "k", "user": "u" } }],
    });
    let kubeconfig = directory.join("kubeconfig");
    std::fs::write(&kubeconfig, user.to_string()).unwrap();
    let lookup = |name: &str| match name {
        "KUBECONFIG" => Some(kubeconfig.display().to_string()),
        _ => variables
            .iter()
            .find(|(variable, _)| *variable == name)
            .map(|(_, value)| (*value).to_owned()),
    };
    Process {
        options: Options {
            status_file: directory.join("status.json"),
            health_port: 0,
        },
        environment: Environment::read(Variables::new(&lookup)).unwrap(),
        servers: Servers::from_environment(Variables::new(&lookup)).unwrap(),
        severity: logging::subscriber(LogSeverity::Info, std::io::sink).1,
        watchdog: Watchdog::default(),
        migrate: |_| std::future::pending().boxed_local(),
    }
}

#[tokio::test(start_paused = true)]
async fn process_ends_with_an_error_when_objects_move_to_another_api_group() {
    let asked = Arc::new(AtomicUsize::new(0));
    let directory = tempfile::tempdir().unwrap();
    let variables = [("LEADER_ELECTION", "false"), ("HEALTH_ENABLED", "false")];
    let process = process(
        directory.path(),
        &api_server(asked.clone()).await,
        &variables,
    );
    let error = tokio::select! {
        ended = process.run() => ended.unwrap_err(),
        _ = tokio::spawn(seconds(3600)) => panic!("the process goes on"),
    };
    let expected = "Calico's objects are in the API group projectcalico.org/v3 and no longer in \
                    crd.projectcalico.org/v1; a restarted process uses projectcalico.org/v3";
    assert_eq!(error.to_string(), expected);
    assert_eq!(
        asked.load(Ordering::Relaxed),
        BEFORE + 2,
        "two looks in a row found the other group"
    );
}

//! Credential plugins: scripts that count their runs.

use std::fs;
use std::path::PathBuf;

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::server::advance;
use super::*;
use crate::config::{ClientPlace, ProxyVariables};

/// A plugin whose n-th run prints the token `run-n`.
struct Plugin {
    runs: PathBuf,
    failure: PathBuf,
}

impl Plugin {
    /// Writes the plugin into the kubeconfig of `server`. `first` is a shell command that it runs
    /// first.
    fn install(server: &Server, first: &str, expiry: Option<OffsetDateTime>) -> Plugin {
        let plugin = Plugin {
            runs: server.file().with_file_name("runs"),
            failure: server.file().with_file_name("fail"),
        };
        let (runs, failure) = (plugin.runs.display(), plugin.failure.display());
        let expiry = expiry.map(|expiry| expiry.format(&Rfc3339).unwrap());
        let output = json!({
            "apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential",
            "status": { "token": "run-N", "expirationTimestamp": expiry },
        });
        let script = format!(
            "{first}; echo >>{runs}; test ! -e {failure} || exit 1; echo '{output}' | sed s/N/$(wc \
             -l <{runs})/"
        );
        server.set_user(json!({ "exec": {
            "apiVersion": "client.authentication.k8s.io/v1", "command": "sh",
            "args": ["-c", script],
        } }));
        plugin
    }

    fn runs(&self) -> usize {
        fs::read(&self.runs).unwrap_or_default().len()
    }
}

fn config(server: &Server, deadline: Duration) -> KubernetesConfig {
    KubernetesConfig {
        place: ClientPlace::OutsideCluster(ProxyVariables::default()),
        ..server.config(deadline)
    }
}

#[tokio::test]
async fn plugin_runs_once_for_many_requests_and_again_after_a_401() {
    let server = Server::start(&["h2"], &[Reply::Ok, Reply::Ok, Reply::Status(401)]).await;
    let plugin = Plugin::install(&server, "true", None);
    let client = ApiClient::new(&config(&server, LONG));
    for _ in 0..3 {
        client.send(&ApiRequest::get("/a")).await.unwrap();
    }
    let tokens = [1, 1, 1, 2].map(|run| format!("GET /a Bearer run-{run}"));
    assert_eq!((server.requests(), plugin.runs()), (tokens.to_vec(), 2));
}

#[tokio::test]
async fn requests_refused_at_the_same_time_run_the_plugin_once() {
    let server = Server::start(
        &["h2"],
        &[
            Reply::Ok,
            Reply::Status(401),
            Reply::Status(401),
            Reply::Status(401),
        ],
    )
    .await;
    let plugin = Plugin::install(&server, "true", None);
    let client = ApiClient::new(&config(&server, LONG));
    let read = ApiRequest::get("/a");
    client.send(&read).await.unwrap();
    let (a, b, c) = tokio::join!(client.send(&read), client.send(&read), client.send(&read));
    assert!(a.is_ok() && b.is_ok() && c.is_ok());
    assert_eq!(plugin.runs(), 2);
}

#[tokio::test]
async fn expiring_credentials_are_renewed_on_a_new_connection() {
    let server = Server::start(&["http/1.1"], &[]).await;
    let plugin = Plugin::install(
        &server,
        "true",
        Some(OffsetDateTime::now_utc() + Duration::from_secs(1000)),
    );
    let client = ApiClient::new(&config(&server, LONG));
    let read = ApiRequest::get("/a");
    client.send(&read).await.unwrap();
    advance(800).await;
    client.send(&read).await.unwrap();
    assert_eq!(plugin.runs(), 1);
    advance(150).await;
    client.send(&read).await.unwrap();
    assert_eq!(server.requests().last().unwrap(), "GET /a Bearer run-2");
    assert_eq!(
        (plugin.runs(), server.recorded.lock().unwrap().connections),
        (2, 2)
    );
}

#[tokio::test]
async fn failed_renewal_keeps_the_credentials_and_is_repeated_after_a_pause() {
    let server = Server::start(&["http/1.1"], &[]).await;
    let plugin = Plugin::install(
        &server,
        "true",
        Some(OffsetDateTime::now_utc() + Duration::from_secs(1000)),
    );
    let client = ApiClient::new(&config(&server, LONG));
    let read = ApiRequest::get("/a");
    client.send(&read).await.unwrap();
    fs::write(&plugin.failure, "").unwrap();
    advance(950).await;
    for _ in 0..3 {
        client.send(&read).await.unwrap();
    }
    assert_eq!(
        (server.requests(), plugin.runs()),
        (vec!["GET /a Bearer run-1".to_owned(); 4], 2)
    );
    fs::remove_file(&plugin.failure).unwrap();
    advance(11).await;
    client.send(&read).await.unwrap();
    assert_eq!(server.requests().last().unwrap(), "GET /a Bearer run-3");
}

#[tokio::test]
async fn failed_first_run_fails_the_request_without_sending_it() {
    let server = Server::start(&["h2"], &[]).await;
    let plugin = Plugin::install(&server, "exit 7", None);
    let client = ApiClient::new(&config(&server, LONG));
    let failure = client.send(&ApiRequest::get("/a")).await.unwrap_err();
    assert!(
        matches!(&failure, RequestError::NoAccess(reason) if reason.contains("exit status: 7")),
        "{failure}"
    );
    assert_eq!((server.requests().len(), plugin.runs()), (0, 0));
}

#[tokio::test]
async fn run_of_a_plugin_does_not_count_toward_the_deadline() {
    let server = Server::start(&["h2"], &[]).await;
    let release = server.file().with_file_name("release");
    Plugin::install(
        &server,
        &format!("until test -e {}; do sleep 0.1; done", release.display()),
        None,
    );
    let (client, read) = (
        ApiClient::new(&config(&server, LONG)),
        ApiRequest::get("/a"),
    );
    let passing = async {
        advance(2 * LONG.as_secs()).await;
        fs::write(release, "").unwrap();
    };
    let (answer, ()) = tokio::join!(client.send(&read), passing);
    answer.unwrap();
    assert_eq!(server.requests(), ["GET /a Bearer run-1"]);
}

/// The election and the probes of kube-controllers have shorter time limits than a plugin.
#[tokio::test]
async fn run_of_a_plugin_continues_after_its_requests_are_given_up() {
    let server = Server::start(&["h2"], &[]).await;
    let release = server.file().with_file_name("release");
    let plugin = Plugin::install(
        &server,
        &format!("until test -e {}; do sleep 0.1; done", release.display()),
        None,
    );
    let client = ApiClient::new(&config(&server, LONG));
    let read = ApiRequest::get("/a");
    for _ in 0..3 {
        assert!(
            timeout(Duration::from_millis(100), client.send(&read))
                .await
                .is_err()
        );
    }
    fs::write(release, "").unwrap();
    client.send(&read).await.unwrap();
    assert_eq!(
        (server.requests(), plugin.runs()),
        (vec!["GET /a Bearer run-1".to_owned()], 1)
    );
}

/// As in client-go, the request that gets the 401 fails.
#[tokio::test]
async fn refused_token_is_renewed_for_the_next_request_of_a_controller() {
    let server = Server::start(&["h2"], &[Reply::Status(401), Reply::Status(401)]).await;
    let plugin = Plugin::install(&server, "true", None);
    let client = super::client(&config(&server, LONG)).await.unwrap();
    let status = async || {
        client
            .send(Request::get("/a").body(Body::empty()).unwrap())
            .await
            .unwrap()
            .status()
            .as_u16()
    };
    assert_eq!((status().await, plugin.runs()), (401, 1));
    advance(11).await;
    assert_eq!(
        (status().await, status().await, plugin.runs()),
        (401, 200, 2)
    );
    let tokens = [1, 1, 2].map(|run| format!("GET /a Bearer run-{run}"));
    assert_eq!(server.requests(), tokens);
}

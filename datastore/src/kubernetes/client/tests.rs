//! Tests the client with a TLS server in this process that sends scripted responses.

mod cached_reads;
mod client_certificate;
mod credential_plugin;
mod foreign_answers;
mod hostile;
mod observed;
mod proxy;
mod server;
mod two_addresses;

use std::path::Path;

use hyper::Method;
use hyper::header::{HeaderMap, RETRY_AFTER};
use rcgen::{CertifiedKey, generate_simple_self_signed};
use serde_json::json;
use tokio::net::{TcpListener, TcpSocket};

use self::server::{Reply, Server};
use os::node_files::NodeFiles;

use super::*;
use crate::backoff::RetryPause;
use crate::kubernetes::media_type::{JSON, METADATA};
use crate::kubernetes::request::Cache;
use crate::kubernetes::turns::BusyRule;

const LONG: Duration = Duration::from_secs(20);

#[tokio::test]
async fn concurrent_requests_share_a_connection_on_http1_and_http2() {
    for alpn in [&["h2", "http/1.1"][..], &["http/1.1"], &[]] {
        let server = Server::start(alpn, &[]).await;
        let client = server.client(LONG);
        let request = |path| ApiRequest::get(path);
        let (a, b, c) = (request("/a"), request("/b"), request("/c"));
        let (a, b, c) = tokio::join!(client.send(&a), client.send(&b), client.send(&c));
        for answer in [a, b, c] {
            assert_eq!(answer.unwrap(), json!({ "kind": "Pod" }));
        }
        assert_eq!(server.recorded.lock().unwrap().connections, 1, "{alpn:?}");
        let mut requests = server.requests();
        requests.sort();
        assert_eq!(
            requests,
            [
                "GET /a Bearer first",
                "GET /b Bearer first",
                "GET /c Bearer first"
            ],
            "{alpn:?}"
        );
        assert_eq!(client.requests(), 3);
    }
}

/// Over a shared HTTP/1.1 connection, a request would wait for the end of the watch.
#[tokio::test]
async fn open_watches_do_not_block_requests() {
    for alpn in [&["h2"][..], &["http/1.1"]] {
        let server = Server::start(alpn, &[Reply::Never, Reply::Never]).await;
        let config = KubernetesConfig {
            kubeconfig: vec![server.file()],
            deadline: LONG,
            ..KubernetesConfig::default()
        };
        let client = super::client(&config).await.unwrap();
        let get =
            |target: &'static str| client.send(Request::get(target).body(Body::empty()).unwrap());
        let watches = futures::future::join(get("/w?watch=true"), get("/v?a=b&watch=1"));
        let requests = async {
            while server.requests().len() < 2 {
                sleep(Duration::from_millis(1)).await;
            }
            for round in 0..3 {
                let answers = futures::future::join_all((0..20).map(|_| async {
                    let answer = get("/a").await.unwrap();
                    answer.into_body().collect_bytes().await.unwrap()
                }));
                assert_eq!(answers.await.len(), 20, "{round}");
            }
        };
        tokio::select! {
            _ = watches => panic!("a watch ended"),
            () = requests => {}
        }
        let connections = server.recorded.lock().unwrap().connections;
        assert!(
            connections
                <= if alpn == ["h2"] {
                    1
                } else {
                    2 + LONG_RUNNING_CONNECTIONS
                },
            "{alpn:?}: {connections}"
        );
    }
}

#[tokio::test]
async fn request_to_a_busy_server_is_retried_and_a_rejection_is_not() {
    let server = Server::start(
        &["h2"],
        &[Reply::Status(429), Reply::Written("a"), Reply::Status(404)],
    )
    .await;
    let client = server.client(LONG);
    let create = ApiRequest::with_json(Method::POST, "/a", &json!({}));
    client.send(&create).await.unwrap();
    assert_eq!(server.requests().len(), 2);
    let refused = client.send(&create).await.unwrap_err();
    assert!(
        matches!(&refused, RequestError::Refused(refusal) if refusal.status.code == 404),
        "{refused}"
    );
    assert_eq!(server.requests().len(), 3);
}

/// A DELETE requests no metadata, because the response may not be an object.
#[tokio::test]
async fn writes_request_only_metadata_in_the_response() {
    let server = Server::start(&["h2"], &[Reply::Written("a"); 4]).await;
    let client = server.client(LONG);
    for (method, expected) in [
        (Method::POST, METADATA),
        (Method::PUT, METADATA),
        (Method::PATCH, METADATA),
        (Method::DELETE, JSON),
        (Method::GET, JSON),
    ] {
        client
            .send(&ApiRequest {
                method: method.clone(),
                ..ApiRequest::get("/a")
            })
            .await
            .unwrap();
        assert_eq!(
            server.recorded.lock().unwrap().accepted.pop().unwrap(),
            expected,
            "{method}"
        );
    }
}

#[tokio::test]
async fn request_of_unknown_outcome_is_repeated_only_if_a_read() {
    for reply in [
        Reply::Cut,
        Reply::Status(500),
        Reply::Status(503),
        Reply::Status(504),
    ] {
        let server = Server::start(&["h2", "http/1.1"], &[reply, Reply::Ok, reply]).await;
        let client = server.client(LONG);
        client.send(&ApiRequest::get("/read")).await.unwrap();
        let write = ApiRequest::with_json(Method::PUT, "/write", &json!({}));
        let failure = client
            .send(&write)
            .await
            .unwrap_err()
            .into_store_error("Pod(p)", "k", true);
        let unknown = |error: &libcalico::store::StoreError| {
            matches!(
                error,
                libcalico::store::StoreError::Unavailable {
                    outcome_unknown: true,
                    ..
                }
            )
        };
        assert!(unknown(&failure), "{reply:?}: {failure}");
        assert_eq!(server.requests().len(), 3, "{reply:?}");
    }
}

#[tokio::test]
async fn renewed_token_is_read_after_a_401_and_a_stale_token_reported() {
    let server = Server::start(
        &["h2"],
        &[
            Reply::Ok,
            Reply::Status(401),
            Reply::Ok,
            Reply::Status(401),
            Reply::Status(401),
        ],
    )
    .await;
    let client = server.client(LONG);
    let read = ApiRequest::get("/a");
    client.send(&read).await.unwrap();
    server.set_token("second");
    client.send(&read).await.unwrap();
    assert_eq!(
        server.requests(),
        [
            "GET /a Bearer first",
            "GET /a Bearer first",
            "GET /a Bearer second"
        ]
    );

    let stale = client
        .send(&read)
        .await
        .unwrap_err()
        .into_store_error("Pod(p)", "k", false)
        .to_string();
    assert_eq!(server.requests().len(), 5);
    assert!(
        stale.contains(&server.file().display().to_string()),
        "{stale}"
    );
    assert!(!stale.contains("second"), "{stale}");
}

async fn rejected_credential_error(config: KubernetesConfig) -> String {
    let failure = ApiClient::new(&config)
        .send(&ApiRequest::get("/a"))
        .await
        .unwrap_err();
    failure.into_store_error("Pod(p)", "k", false).to_string()
}

#[tokio::test]
async fn rejected_credential_is_reported_with_its_file() {
    let server = Server::start(&["h2"], &[Reply::Status(401); 20]).await;
    let (file, token_file) = (server.file(), server.kubeconfig.path().join("token"));
    let kubeconfig = file.display().to_string();
    let named = || KubernetesConfig {
        kubeconfig: vec![file.clone()],
        deadline: LONG,
        ..KubernetesConfig::default()
    };
    let at_home = || KubernetesConfig {
        home_kubeconfig: Some(file.clone()),
        deadline: LONG,
        ..KubernetesConfig::default()
    };
    let overridden = |token: Option<&str>| crate::config::Overrides {
        server: Some(format!("https://localhost:{}", server.port)),
        token: token.map(Into::into),
        insecure: true,
        ..Default::default()
    };
    let assert_reported = |config: KubernetesConfig, expected: String| async move {
        let error = rejected_credential_error(config).await;
        assert!(error.contains(&expected), "{expected}: {error}");
    };
    assert_reported(
        at_home(),
        format!("the token in kubeconfig {kubeconfig} is stale"),
    )
    .await;
    let bare = |token| KubernetesConfig {
        overrides: overridden(token),
        deadline: LONG,
        ..KubernetesConfig::default()
    };
    assert_reported(
        bare(None),
        "has neither token nor client certificate".into(),
    )
    .await;
    assert_reported(
        bare(Some("t")),
        "the token in policy.k8s_auth_token is stale".into(),
    )
    .await;
    assert_reported(
        KubernetesConfig {
            overrides: overridden(Some("t")),
            ..named()
        },
        "policy.k8s_auth_token is stale".into(),
    )
    .await;
    std::fs::write(&token_file, "t\n").unwrap();
    server.set_user(json!({ "tokenFile": "token" }));
    assert_reported(
        named(),
        format!("the token in {} is stale", token_file.display()),
    )
    .await;
    assert_eq!(server.requests().last().unwrap(), "GET /a Bearer t");
    server.set_user(json!({ "username": "u", "password": "p" }));
    assert_reported(
        named(),
        format!("the user name and password in kubeconfig {kubeconfig} is stale"),
    )
    .await;
    assert_eq!(server.requests().last().unwrap(), "GET /a Basic dTpw");
}

#[tokio::test]
async fn impersonation_from_kubeconfig_is_sent() {
    let server = Server::start(&["h2"], &[]).await;
    server.set_user(json!({
        "token": "t", "as": "weak", "as-uid": "7", "as-groups": ["a", "b"],
        "as-user-extra": { "scopes": ["s"] },
    }));
    server
        .client(LONG)
        .send(&ApiRequest::get("/a"))
        .await
        .unwrap();
    let expected = [
        "extra-scopes: s",
        "group: a",
        "group: b",
        "uid: 7",
        "user: weak",
    ]
    .map(|header| format!("impersonate-{header}"));
    assert_eq!(
        server.recorded.lock().unwrap().impersonation_headers,
        expected
    );
}

#[tokio::test]
async fn unsendable_token_is_reported_without_a_request() {
    let server = Server::start(&["h2"], &[]).await;
    server.set_token("sec\nret");
    let failure = server
        .client(LONG)
        .send(&ApiRequest::get("/a"))
        .await
        .unwrap_err();
    assert!(
        matches!(&failure, RequestError::NoAccess(reason) if !reason.contains("sec")),
        "{failure}"
    );
    assert_eq!(server.requests().len(), 0);
    server.set_token("third\n");
    server
        .client(LONG)
        .send(&ApiRequest::get("/a"))
        .await
        .unwrap();
    assert_eq!(server.requests(), ["GET /a Bearer third"]);
}

#[tokio::test]
async fn every_request_ends_at_its_deadline() {
    let server = Server::start(&["h2"], &[Reply::Ok, Reply::Never]).await;
    let (client, read) = (
        server.client(Duration::from_secs(12)),
        ApiRequest::get("/a"),
    );
    client.send(&read).await.unwrap();
    let (answer, ()) = tokio::join!(client.send(&read), server.advance_after(2, 12));
    let failure = answer.unwrap_err();
    assert!(matches!(failure, RequestError::NoResponse(_)), "{failure}");
    // A bound port without a listener, which no other test gets.
    let unused = TcpSocket::new_v4().unwrap();
    unused.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let url = format!("http://{}", unused.local_addr().unwrap());
    let config = KubernetesConfig {
        deadline: Duration::from_millis(300),
        overrides: crate::config::Overrides {
            server: Some(url),
            ..Default::default()
        },
        ..KubernetesConfig::default()
    };
    let failure = ApiClient::new(&config).send(&read).await.unwrap_err();
    assert!(matches!(failure, RequestError::NotSent(_)), "{failure}");
}

fn client_of_call(server: &Server, limit: Duration) -> ApiClient {
    let (client, file) = (
        server.client(Duration::from_secs(2)),
        server.kubeconfig.path().join("turns"),
    );
    client.turns.set_rule(BusyRule {
        file,
        longest: limit,
        locks: NodeFiles::of_this_node(),
    });
    client
}

#[tokio::test]
async fn call_waits_for_a_busy_server_beyond_the_request_deadline() {
    let server = Server::start(
        &["h2"],
        &[Reply::Busy(2), Reply::Busy(0), Reply::Written("a")],
    )
    .await;
    let client = client_of_call(&server, LONG);
    client
        .send(&ApiRequest::with_json(Method::POST, "/a", &json!({})))
        .await
        .unwrap();
    assert_eq!(server.requests().len(), 3);
}

#[tokio::test]
async fn call_gives_up_on_a_busy_server_at_its_limit() {
    let server = Server::start(&["h2"], &[Reply::Busy(3600)]).await;
    let [one, other] =
        [Duration::from_secs(1), Duration::ZERO].map(|limit| client_of_call(&server, limit));
    let read = ApiRequest::get("/a");
    for failure in [
        one.send(&read).await.unwrap_err(),
        other.send(&read).await.unwrap_err(),
    ] {
        let failure = failure.into_store_error("Pod(p)", "k", true).to_string();
        assert!(
            failure.contains("429") && failure.contains("unavailable"),
            "{failure}"
        );
    }
    assert_eq!(
        (
            server.requests().len(),
            one.turns.was_busy(),
            other.turns.was_busy()
        ),
        (1, true, true)
    );
}

/// Each attempt gets a turn, because the server was busy once.
#[tokio::test]
async fn call_gives_up_on_a_server_that_is_lost_after_it_was_busy_at_the_request_deadline() {
    let replies: Vec<Reply> = [Reply::Busy(0)]
        .into_iter()
        .chain([Reply::Cut; 200])
        .collect();
    let server = Server::start(&["h2"], &replies).await;
    let client = client_of_call(&server, Duration::from_secs(3600));
    let failure = client.send(&ApiRequest::get("/a")).await.unwrap_err();
    assert!(matches!(failure, RequestError::NoResponse(_)), "{failure}");
    assert!(client.turns.was_busy());
}

#[tokio::test]
async fn client_requests_to_a_silent_server_share_the_first_response_limit() {
    let server = Server::start(&["h2"], &[Reply::Never; 2]).await;
    let client = server.client(LONG);
    client
        .deadline
        .expect_first_answer_within(Duration::from_millis(200));
    for _ in 0..2 {
        let failure = client.send(&ApiRequest::get("/a")).await.unwrap_err();
        assert!(failure.to_string().ends_with("within 200ms"), "{failure}");
    }
}

#[test]
fn retry_after_without_a_number_counts_as_a_second() {
    for (text, seconds) in [
        ("7", 7),
        ("0", 0),
        ("Wed, 21 Oct 2026 07:28:00 GMT", 1),
        ("-3", 1),
        ("", 1),
    ] {
        let headers = HeaderMap::from_iter([(RETRY_AFTER, text.parse().unwrap())]);
        assert_eq!(
            retry_after(&headers),
            Some(Duration::from_secs(seconds)),
            "{text}"
        );
    }
    assert_eq!(retry_after(&HeaderMap::new()), None);
}

#[tokio::test]
async fn unusable_client_settings_are_reported_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("kubeconfig");
    let client = |file: &Path| {
        ApiClient::new(&KubernetesConfig {
            kubeconfig: vec![file.into()],
            deadline: LONG,
            ..KubernetesConfig::default()
        })
    };
    let login = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{ "name": "k", "cluster": { "server": "https://localhost:1" } }],
        "users": [{ "name": "u", "user": { "exec": { "apiVersion": "v1", "command": "aws" } } }],
        "contexts": [{ "name": "c", "context": { "cluster": "k", "user": "u" } }],
    });
    for (content, expected) in [
        (None, "kubeconfig"),
        (Some("{".to_owned()), "kubeconfig"),
        (Some(login.to_string()), "exec aws"),
    ] {
        if let Some(content) = content {
            std::fs::write(&file, content).unwrap();
        }
        let failure = client(&file)
            .send(&ApiRequest::get("/a"))
            .await
            .unwrap_err();
        assert!(
            matches!(&failure, RequestError::NoAccess(reason) if reason.contains(expected)),
            "{failure}"
        );
    }
}

#[test]
fn jitter_shortens_a_pause_by_at_most_half_and_never_below_retry_after() {
    let seconds = Duration::from_secs;
    for (pause, advice, remaining, least, most) in [
        (2, None, 100, 1, 2),
        (2, Some(0), 100, 1, 2),
        (2, Some(4), 100, 4, 6),
        (8, Some(5), 100, 5, 9),
        (2, Some(4), 6, 4, 5),
    ] {
        let wait = RetryPause::new(seconds(pause), advice.map(seconds));
        for _ in 0..1000 {
            let waited = wait.within(seconds(remaining));
            assert!(
                (seconds(least)..=seconds(most)).contains(&waited),
                "{wait:?} {waited:?}"
            );
        }
    }
}

/// The listener accepts connections, as the kernel does for a process that is too slow, but never
/// sends a byte.
#[tokio::test]
async fn request_never_sent_has_a_known_outcome() {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server = Server::start(&["h2"], &[]).await;
    let deadline = Duration::from_millis(300);
    let config = KubernetesConfig {
        overrides: crate::config::Overrides {
            server: Some(format!(
                "https://localhost:{}",
                silent.local_addr().unwrap().port()
            )),
            ..Default::default()
        },
        kubeconfig: vec![server.file()],
        deadline,
        ..KubernetesConfig::default()
    };
    let write = ApiRequest::with_json(Method::PUT, "/write", &json!({}));
    let failure = ApiClient::new(&config).send(&write).await.unwrap_err();
    assert!(
        failure
            .to_string()
            .starts_with("cannot send the request to https://localhost:"),
        "{failure}"
    );
    assert!(matches!(failure, RequestError::NotSent(_)), "{failure}");
}

/// The listener closes the first connection, and never sends a byte on a later connection.
#[tokio::test]
async fn request_whose_last_attempt_has_no_time_names_the_failure_of_the_previous_attempt() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!(
        "https://localhost:{}",
        listener.local_addr().unwrap().port()
    );
    tokio::spawn(async move {
        drop(listener.accept().await.unwrap());
        let mut silent = Vec::new();
        loop {
            silent.push(listener.accept().await.unwrap());
        }
    });
    let server = Server::start(&["h2"], &[]).await;
    let config = KubernetesConfig {
        overrides: crate::config::Overrides {
            server: Some(url),
            ..Default::default()
        },
        kubeconfig: vec![server.file()],
        deadline: Duration::from_secs(2),
        ..KubernetesConfig::default()
    };
    let write = ApiRequest::with_json(Method::PUT, "/write", &json!({}));
    let failure = ApiClient::new(&config).send(&write).await.unwrap_err();
    assert!(matches!(failure, RequestError::NotSent(_)), "{failure}");
    assert!(
        failure
            .to_string()
            .starts_with("cannot connect to localhost:"),
        "{failure}"
    );
}

#[tokio::test]
async fn every_request_has_the_programs_user_agent() {
    let server = Server::start(&["h2"], &[]).await;
    let (one, other) = (
        server.client(LONG),
        super::client(&server.config(LONG)).await.unwrap(),
    );
    one.send(&ApiRequest::get("/a")).await.unwrap();
    other
        .send(Request::get("/b").body(Body::empty()).unwrap())
        .await
        .unwrap();
    one.kube_client(false)
        .await
        .unwrap()
        .send(Request::get("/c").body(Body::empty()).unwrap())
        .await
        .unwrap();
    assert_eq!(
        server.recorded.lock().unwrap().agents,
        vec![concat!("calico/", env!("CARGO_PKG_VERSION")); 3]
    );
}

#[tokio::test]
async fn request_without_a_response_ends_at_the_deadline_on_any_protocol() {
    for alpn in ["h2", "http/1.1"] {
        let server = Server::start(&[alpn], &[Reply::Never]).await;
        let client = super::client(&server.config(Duration::from_secs(12)))
            .await
            .unwrap();
        let get = || client.send(Request::get("/a").body(Body::empty()).unwrap());
        let (answer, ()) = tokio::join!(get(), server.advance_after(1, 12));
        let error = std::error::Error::source(&answer.unwrap_err())
            .unwrap()
            .to_string();
        assert_eq!(error, "no answer within 12s", "{alpn}");
        assert!(get().await.unwrap().status().is_success(), "{alpn}");
        assert_eq!(server.requests().len(), 2, "{alpn}");
    }
}

#[tokio::test]
async fn request_with_a_separate_deadline_outlives_the_client_deadline() {
    let server = Server::start(&["h2"], &[Reply::Never]).await;
    let client = super::client(&server.config(Duration::from_millis(100)))
        .await
        .unwrap();
    let watch = client.send(
        Request::get("/w?watch=true")
            .extension(OwnDeadline)
            .body(Body::empty())
            .unwrap(),
    );
    assert!(
        timeout(Duration::from_millis(400), watch).await.is_err(),
        "the watch ended"
    );
}

#[tokio::test]
async fn long_running_client_opens_several_http1_connections() {
    let server = Server::start(&["http/1.1"], &[Reply::Never]).await;
    let client = ApiClient::long_running(&server.config(LONG));
    let (stuck, request) = (ApiRequest::get("/stuck"), ApiRequest::get("/a"));
    tokio::select! {
        answer = client.send(&stuck) => panic!("{answer:?}"),
        answer = async {
            while server.requests().is_empty() {
                sleep(Duration::from_millis(1)).await;
            }
            client.send(&request).await
        } => assert!(answer.is_ok(), "{answer:?}"),
    }
}

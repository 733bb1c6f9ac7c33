//! A TLS server in this process that sends scripted responses.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::path::Path;
use std::sync::{Arc, Mutex as StdMutex};

use hyper::Response;
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rcgen::{CertifiedKey, generate_simple_self_signed};
use serde_json::json;
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};

use super::super::*;

#[derive(Debug, Clone, Copy)]
pub(super) enum Reply {
    Ok,
    Written(&'static str),
    /// A success whose body is not an object of the API server.
    Nothing,
    Status(u16),
    /// A page for people, with this status.
    Page(u16),
    /// A plain text, as the API server answers for an unknown path, with this status.
    Text(u16, &'static str),
    /// 429, with the number of seconds in `Retry-After`.
    Busy(u32),
    Cut,
    Never,
}

#[derive(Default)]
pub(super) struct Recorded {
    pub(super) connections: usize,
    /// `METHOD path?query token`, in order.
    pub(super) requests: Vec<String>,
    pub(super) accepted: Vec<String>,
    pub(super) agents: Vec<String>,
    /// `Impersonate-…: value` of the last request, sorted by name.
    pub(super) impersonation_headers: Vec<String>,
    replies: VecDeque<Reply>,
}

pub(super) struct Server {
    pub(super) recorded: Arc<StdMutex<Recorded>>,
    pub(super) kubeconfig: tempfile::TempDir,
    pub(super) port: u16,
    authority: String,
}

impl Server {
    pub(super) async fn start(alpn: &[&str], replies: &[Reply]) -> Server {
        let CertifiedKey { cert, signing_key } =
            generate_simple_self_signed(vec!["localhost".into()]).unwrap();
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(signing_key.serialize_der()));
        let mut tls = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![cert.der().clone()], key)
            .unwrap();
        tls.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let recorded = Arc::new(StdMutex::new(Recorded {
            replies: replies.iter().copied().collect(),
            ..Recorded::default()
        }));
        tokio::spawn(accept(
            listener,
            TlsAcceptor::from(Arc::new(tls)),
            Arc::clone(&recorded),
        ));
        let server = Server {
            recorded,
            kubeconfig: tempfile::tempdir().unwrap(),
            port,
            authority: cert.pem(),
        };
        server.set_token("first");
        server
    }

    pub(super) fn set_token(&self, token: &str) {
        self.set_user(json!({ "token": token }));
    }

    pub(super) fn set_user(&self, user: serde_json::Value) {
        let authority = data_encoding::BASE64.encode(self.authority.as_bytes());
        self.set_user_and_authority(user, "certificate-authority-data", &authority);
    }

    pub(super) fn set_authority_file(&self, more: &str) {
        let file = self.file().with_file_name("ca.crt");
        std::fs::write(&file, format!("{}{more}", self.authority)).unwrap();
        self.set_user_and_authority(
            json!({ "token": "first" }),
            "certificate-authority",
            file.to_str().unwrap(),
        );
    }

    fn set_user_and_authority(&self, user: serde_json::Value, key: &str, authority: &str) {
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{ "name": "k", "cluster": {
                "server": format!("https://localhost:{}", self.port), key: authority,
            }}],
            "users": [{ "name": "u", "user": user }],
            "contexts": [{ "name": "c", "context": { "cluster": "k", "user": "u" } }],
        });
        std::fs::write(self.file(), config.to_string()).unwrap();
    }

    pub(super) fn file(&self) -> std::path::PathBuf {
        Path::new(self.kubeconfig.path()).join("kubeconfig")
    }

    pub(super) fn config(&self, deadline: Duration) -> KubernetesConfig {
        KubernetesConfig {
            kubeconfig: vec![self.file()],
            deadline,
            ..KubernetesConfig::default()
        }
    }

    pub(super) fn client(&self, deadline: Duration) -> ApiClient {
        ApiClient::new(&self.config(deadline))
    }

    pub(super) fn requests(&self) -> Vec<String> {
        self.recorded.lock().unwrap().requests.clone()
    }

    /// Does the same as [`advance`] when the server has received this number of requests.
    pub(super) async fn advance_after(&self, requests: usize, seconds: u64) {
        let received = async {
            while self.requests().len() < requests {
                sleep(Duration::from_millis(1)).await;
            }
        };
        timeout(Duration::from_secs(60), received)
            .await
            .expect("the requests arrive");
        advance(seconds).await;
    }
}

/// Lets `seconds` pass at once, by the clock of the client. A slow machine may reach a short time
/// limit too early.
pub(super) async fn advance(seconds: u64) {
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(seconds)).await;
    tokio::time::resume();
}

async fn accept(listener: TcpListener, acceptor: TlsAcceptor, recorded: Arc<StdMutex<Recorded>>) {
    while let Ok((stream, _)) = listener.accept().await {
        let Ok(stream) = acceptor.accept(stream).await else {
            continue;
        };
        recorded.lock().unwrap().connections += 1;
        let http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
        let recorded = Arc::clone(&recorded);
        let service =
            service_fn(move |request: Request<Incoming>| answer(request, Arc::clone(&recorded)));
        tokio::spawn(async move {
            let io = TokioIo::new(stream);
            // Some tests break the connection on purpose.
            let _ = if http2 {
                http2::Builder::new(TokioExecutor::new())
                    .serve_connection(io, service)
                    .await
            } else {
                http1::Builder::new().serve_connection(io, service).await
            };
        });
    }
}

async fn answer(
    request: Request<Incoming>,
    recorded: Arc<StdMutex<Recorded>>,
) -> Result<Response<String>, std::io::Error> {
    let token = request
        .headers()
        .get("authorization")
        .map_or("", |value| value.to_str().unwrap());
    let target = request.uri().path_and_query().unwrap();
    let line = format!("{} {target} {token}", request.method());
    let headers = request
        .headers()
        .iter()
        .filter(|(name, _)| name.as_str().starts_with("impersonate-"));
    let mut impersonation_headers: Vec<_> = headers
        .map(|(name, value)| format!("{name}: {}", value.to_str().unwrap()))
        .collect();
    impersonation_headers.sort();
    let reply = {
        let mut recorded = recorded.lock().unwrap();
        recorded.requests.push(line);
        recorded.impersonation_headers = impersonation_headers;
        recorded.agents.extend(
            request
                .headers()
                .get("user-agent")
                .map(|agent| agent.to_str().unwrap().to_owned()),
        );
        recorded.accepted.extend(
            request
                .headers()
                .get("accept")
                .map(|form| form.to_str().unwrap().to_owned()),
        );
        recorded.replies.pop_front().unwrap_or(Reply::Ok)
    };
    let (code, body) = match reply {
        Reply::Ok => (200, json!({ "kind": "Pod" })),
        Reply::Written(name) => (
            200,
            json!({ "metadata": { "name": name, "resourceVersion": "7" } }),
        ),
        Reply::Nothing => (200, json!({ "status": "ok" })),
        Reply::Status(code) => (code, json!({ "kind": "Status", "message": "as scripted" })),
        Reply::Page(code) => {
            let page = Response::builder()
                .status(code)
                .header("content-type", "text/html");
            return Ok(page
                .body("<html>\r\n  Log in\n</html>\n".to_owned())
                .unwrap());
        }
        Reply::Text(code, text) => {
            let answer = Response::builder()
                .status(code)
                .header("content-type", "text/plain");
            return Ok(answer.body(text.to_owned()).unwrap());
        }
        Reply::Busy(seconds) => {
            let status =
                json!({ "kind": "Status", "message": "as scripted", "reason": "TooManyRequests" });
            let busy = Response::builder()
                .status(429)
                .header("retry-after", seconds);
            return Ok(busy.body(status.to_string()).unwrap());
        }
        Reply::Cut => return Err(std::io::Error::other("as scripted")),
        Reply::Never => std::future::pending::<Result<_, Infallible>>()
            .await
            .unwrap(),
    };
    Ok(Response::builder()
        .status(code)
        .body(body.to_string())
        .unwrap())
}

//! The port of the probes and metrics. Its responses are computed from the path of a request and
//! the status.

use std::future::pending;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::header::HeaderValue;
use hyper::{Method, Request, StatusCode};
use libcalico::failure::Failure;
use node_process::http_server::{self, HttpResponse, TimeLimits, page, reject_method};
use tokio::net::TcpListener;
use tokio::time::sleep;

use super::refresh_schedule::Moment;
use super::status::{ProbeFailure, SharedStatus, Status};

/// Time limit for a connection: for the client to send its request and to read the response.
const CLIENT_TIME_LIMIT: Duration = Duration::from_secs(5);

const TEXT: HeaderValue = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");

/// Pause between two attempts to bind a port that another program uses.
const BIND_RETRY: Duration = Duration::from_secs(5);

/// Binds the port. Returns `None` also if another program uses the port, because the agent has to
/// renew the plugins' token even then.
pub(super) async fn listen(address: Option<SocketAddr>) -> Result<Option<TcpListener>, Failure> {
    let Some(address) = address else {
        return Ok(None);
    };
    match TcpListener::bind(address).await {
        Ok(listener) => Ok(Some(listener)),
        Err(source) => {
            let is_in_use = source.kind() == ErrorKind::AddrInUse;
            let error = Failure::new(format_args!("cannot listen on {address}"))
                .because(source)
                .way_out(
                    "end the other agent if one listens there, or set CNI_AGENT_LISTEN and the \
                     probes of the pod to another address",
                );
            if !is_in_use {
                return Err(error);
            }
            tracing::error!(
                %error, "the agent runs without probes and metrics until the port is free",
            );
            Ok(None)
        }
    }
}

async fn bind_when_free(address: SocketAddr) -> TcpListener {
    loop {
        sleep(BIND_RETRY).await;
        if let Ok(listener) = TcpListener::bind(address).await {
            tracing::info!("listening on {address}, which is free now");
            return listener;
        }
    }
}

/// Answers requests until the future is dropped, if there is an `address`. Without a `listener`, it
/// first waits until it can bind the port.
pub(super) async fn serve(
    address: Option<SocketAddr>,
    listener: Option<TcpListener>,
    status: SharedStatus,
) {
    let Some(address) = address else {
        return pending().await;
    };
    let listener = match listener {
        Some(listener) => listener,
        None => bind_when_free(address).await,
    };
    let respond = move |request: Request<Incoming>| {
        let response = respond(
            request.method(),
            request.uri().path(),
            &status.get(),
            Moment::now().boot,
        );
        async { response }
    };
    let limits = TimeLimits {
        head: CLIENT_TIME_LIMIT,
        connection: CLIENT_TIME_LIMIT,
    };
    http_server::serve(listener, limits, respond).await;
}

fn respond(method: &Method, path: &str, status: &Status, now: Duration) -> HttpResponse {
    reject_method(method).unwrap_or_else(|| {
        let (code, body) = route(path, status, now);
        page(code, TEXT, body)
    })
}

/// Returns status and body for a path. The paths of the probes are the same as in kube-controllers.
fn route(path: &str, status: &Status, now: Duration) -> (StatusCode, String) {
    match path {
        "/readiness" | "/readyz" => probe("ready", status.readiness(now)),
        "/liveness" | "/healthz" => probe("live", status.liveness(now)),
        "/metrics" => (StatusCode::OK, status.metrics()),
        _ => (StatusCode::NOT_FOUND, "404 page not found\n".into()),
    }
}

fn probe(label: &str, result: Result<(), ProbeFailure>) -> (StatusCode, String) {
    match result {
        Ok(()) => (StatusCode::OK, format!("{label}\n")),
        Err(reason) => (StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n")),
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;
    use tokio::time::timeout;

    use super::*;

    fn ask(method: Method, path: &str) -> (u16, String) {
        let status = Status {
            manages_token: true,
            ..Status::default()
        };
        let now = Duration::from_secs(1);
        let code = respond(&method, path, &status, now).status().as_u16();
        (code, route(path, &status, now).1)
    }

    #[test]
    fn probe_response_has_a_status_code_and_a_reason() {
        assert_eq!(ask(Method::GET, "/liveness"), (200, "live\n".to_owned()));
        let (code, reason) = ask(Method::HEAD, "/readiness");
        assert!(
            code == 503 && reason.contains("the plugins have no token"),
            "{code} {reason}"
        );
    }

    #[test]
    fn unknown_path_and_other_methods_are_answered_with_an_error() {
        assert_eq!(ask(Method::GET, "/").0, 404);
        assert_eq!(ask(Method::POST, "/liveness").0, 405);
    }

    #[tokio::test]
    async fn hundreds_of_slow_connections_do_not_stop_a_probe_of_the_agent() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = tokio::spawn(serve(
            Some(address),
            Some(listener),
            SharedStatus::default(),
        ));
        let mut slow = Vec::new();
        for _ in 0..300 {
            slow.push(TcpStream::connect(address).await.unwrap());
        }
        let mut probe = TcpStream::connect(address).await.unwrap();
        probe
            .write_all(b"GET /liveness?verbose HTTP/1.1\r\nhost: x\r\n\r\n")
            .await
            .unwrap();
        let mut answer = String::new();
        let read = timeout(Duration::from_secs(120), probe.read_to_string(&mut answer));
        read.await.expect("a response").unwrap();
        assert!(
            answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("\r\n\r\nlive\n"),
            "{answer}"
        );
        server.abort();
    }
}

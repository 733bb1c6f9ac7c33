//! The HTTP listener for probes and metrics. Its responses are computed from the head of a request and the status.
//!
//! HTTP is written by hand: a library would enlarge the binary that the runtime starts for each pod.

use std::future::pending;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::refresh_schedule::Moment;
use super::status::{ProbeFailure, SharedStatus, Status};

/// Time limit for a connection: for the client to send its request and to read the response.
const CLIENT_TIME_LIMIT: Duration = Duration::from_secs(5);

/// Number of bytes after which no more of a request's head is read. Only its first line is used.
const MAX_HEAD_BYTES: usize = 8 * 1024;

/// Pause between two attempts to bind a port that another program uses.
const BIND_RETRY: Duration = Duration::from_secs(5);

/// Maximum number of open connections. Further connections wait in the backlog.
const MAX_CONNECTIONS: usize = 16;

/// The error if the port cannot be bound.
#[derive(Debug, thiserror::Error)]
#[error(
    "cannot listen on {address}: {source}; end the other agent if one listens there, or set CNI_AGENT_LISTEN and the \
     probes of the pod to another address"
)]
pub struct ListenError {
    address: SocketAddr,
    source: io::Error,
}

/// Binds the port. Returns `None` also if another program uses the port, because the agent has to renew the plugins'
/// token even then.
pub(super) async fn listen(address: Option<SocketAddr>) -> Result<Option<TcpListener>, ListenError> {
    let Some(address) = address else { return Ok(None) };
    match TcpListener::bind(address).await {
        Ok(listener) => Ok(Some(listener)),
        Err(source) if source.kind() == ErrorKind::AddrInUse => {
            let error = ListenError { address, source };
            tracing::error!("{error}; the agent runs without probes and metrics until the port is free");
            Ok(None)
        }
        Err(source) => Err(ListenError { address, source }),
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

/// Answers requests until the future is dropped, if there is an `address`. Without a `listener`, it first waits until
/// it can bind the port.
pub(super) async fn serve(address: Option<SocketAddr>, listener: Option<TcpListener>, status: SharedStatus) {
    let Some(address) = address else { return pending().await };
    let listener = match listener {
        Some(listener) => listener,
        None => bind_when_free(address).await,
    };
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            Some(_) = connections.join_next() => {}
            accepted = listener.accept(), if connections.len() < MAX_CONNECTIONS => match accepted {
                Ok((stream, _)) => {
                    connections.spawn(timeout(CLIENT_TIME_LIMIT, serve_connection(stream, status.clone())));
                }
                // For example, the process is out of file descriptors, or the client disconnected early.
                Err(_) => sleep(Duration::from_millis(100)).await,
            },
        }
    }
}

/// Answers one request. Returns an error, which the caller ignores, if the client disconnects early.
async fn serve_connection(mut stream: TcpStream, status: SharedStatus) -> io::Result<()> {
    let mut head = Vec::new();
    while !head.windows(4).any(|end| end == b"\r\n\r\n") && head.len() < MAX_HEAD_BYTES {
        if stream.read_buf(&mut head).await? == 0 {
            break;
        }
    }
    let response = respond(&String::from_utf8_lossy(&head), &status.get(), Moment::now().boot);
    stream.write_all(response.as_bytes()).await?;
    stream.shutdown().await
}

/// Returns the complete response to a request that begins with `head`. The response closes the connection.
fn respond(head: &str, status: &Status, now: Duration) -> String {
    let mut words = head.lines().next().unwrap_or_default().split(' ');
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let (code, body) = match method {
        "GET" | "HEAD" => route(target.split('?').next().unwrap_or_default(), status, now),
        _ => ("405 Method Not Allowed", "only GET\n".into()),
    };
    let length = body.len();
    let body = if method == "HEAD" { String::new() } else { body };
    format!(
        "HTTP/1.1 {code}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: {length}\r\n\
         Connection: close\r\n\r\n{body}"
    )
}

/// Returns status and body for a path. The paths of the probes are the same as in kube-controllers.
fn route(path: &str, status: &Status, now: Duration) -> (&'static str, String) {
    match path {
        "/readiness" | "/readyz" => probe("ready", status.readiness(now)),
        "/liveness" | "/healthz" => probe("live", status.liveness(now)),
        "/metrics" => ("200 OK", status.metrics()),
        _ => ("404 Not Found", "404 page not found\n".into()),
    }
}

fn probe(label: &str, result: Result<(), ProbeFailure>) -> (&'static str, String) {
    match result {
        Ok(()) => ("200 OK", format!("{label}\n")),
        Err(reason) => ("503 Service Unavailable", format!("{reason}\n")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(head: &str) -> String {
        let status = Status { manages_token: true, ..Status::default() };
        respond(head, &status, Duration::from_secs(1))
    }

    #[test]
    fn probe_response_has_a_status_code_and_a_reason() {
        let live = ask("GET /liveness HTTP/1.1\r\nHost: x");
        assert!(live.starts_with("HTTP/1.1 200 OK\r\n") && live.ends_with("\r\n\r\nlive\n"), "{live}");
        let ready = ask("GET /readiness?verbose HTTP/1.1");
        assert!(ready.starts_with("HTTP/1.1 503 ") && ready.contains("the plugins have no token"), "{ready}");
    }

    #[test]
    fn content_length_equals_the_body_length() {
        for head in ["GET /metrics HTTP/1.1", "GET /nowhere HTTP/1.0", "GET /readyz HTTP/1.1"] {
            let text = ask(head);
            let (head, body) = text.split_once("\r\n\r\n").unwrap();
            assert!(head.contains(&format!("Content-Length: {}\r\n", body.len())), "{text}");
        }
        assert!(ask("HEAD /metrics HTTP/1.1").ends_with("\r\n\r\n"));
    }

    #[test]
    fn invalid_http_requests_are_answered_with_an_error() {
        assert!(ask("POST /liveness HTTP/1.1").starts_with("HTTP/1.1 405 "));
        assert!(ask("GET / HTTP/1.1").starts_with("HTTP/1.1 404 "));
        for nonsense in ["", "\r\n", "\u{fffd}"] {
            assert!(ask(nonsense).starts_with("HTTP/1.1 405 "));
        }
    }
}

//! The HTTP server of processes that keep running: probes, metrics and profiles, with limits for
//! clients that keep connections open. A probe that waits behind such connections fails, and
//! kubelet then restarts the pod.

use std::convert::Infallible;
use std::net::IpAddr;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{sleep, timeout};

/// Maximum number of open connections. For a further one, an older one is closed.
const MAX_CONNECTIONS: usize = 64;
/// Maximum number of open connections of one address. For a further one, the oldest one of this
/// address is closed.
const MAX_CONNECTIONS_OF_ADDRESS: usize = 32;
/// Maximum number of bytes of a request's head, the lowest that hyper accepts.
const MAX_HEAD_BYTES: usize = 8 * 1024;
/// Pause after a connection could not be accepted.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// A response whose body is in memory.
pub type HttpResponse = Response<Full<Bytes>>;

/// Time limits of a connection. A connection serves one request, so that a client cannot keep it
/// open with further ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimeLimits {
    /// The time for a client to send the head of its request.
    pub head: Duration,
    /// The time from the accepted connection to the end of the response.
    pub connection: Duration,
}

/// Returns a response.
pub fn page(code: StatusCode, content_type: HeaderValue, body: impl Into<Bytes>) -> HttpResponse {
    let mut page = Response::new(Full::new(body.into()));
    *page.status_mut() = code;
    page.headers_mut().insert(CONTENT_TYPE, content_type);
    page
}

/// Returns the response to a request with another method than GET and HEAD, and `None` for these
/// two. The server leaves out the body of a response to HEAD.
pub fn reject_method(method: &Method) -> Option<HttpResponse> {
    if method == Method::GET || method == Method::HEAD {
        return None;
    }
    let text = HeaderValue::from_static("text/plain; charset=utf-8");
    let mut page = page(StatusCode::METHOD_NOT_ALLOWED, text, "only GET\n");
    page.headers_mut()
        .insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
    Some(page)
}

/// Serves connections until the future is dropped, which also closes the open connections. Accepts
/// each connection at once, and closes others for it beyond the limits.
pub async fn serve<R, F>(listener: TcpListener, limits: TimeLimits, respond: R)
where
    R: Fn(Request<Incoming>) -> F + Clone + Send + 'static,
    F: Future<Output = HttpResponse> + Send + 'static,
{
    let mut tasks = JoinSet::new();
    let mut open = Vec::<OpenConnection>::new();
    loop {
        tokio::select! {
            Some(_) = tasks.join_next() => {}
            accepted = listener.accept() => match accepted {
                Ok((stream, peer)) => {
                    open.retain(|connection| !connection.task.is_finished());
                    let task = tasks.spawn(serve_connection(stream, limits, respond.clone()));
                    open.push(OpenConnection { source: peer.ip().to_canonical(), task });
                    let sources: Vec<_> =
                        open.iter().map(|connection| connection.source).collect();
                    if let Some(at) = to_close(&sources) {
                        open.remove(at).task.abort();
                    }
                }
                // For example, the process has no file descriptor left, or the client closed the
                // connection.
                Err(error) => {
                    tracing::debug!("cannot accept a connection: {error}");
                    sleep(ACCEPT_RETRY).await;
                }
            },
        }
    }
}

struct OpenConnection {
    source: IpAddr,
    task: AbortHandle,
}

/// Returns the index of the connection to close, from the addresses of the open ones in the order
/// of their age: the oldest of the address with the most connections. So a client that opens many
/// connections loses its own, and not that of kubelet.
fn to_close(open: &[IpAddr]) -> Option<usize> {
    let count = |at: usize| open.iter().filter(|source| **source == open[at]).count();
    // Of equal counts, `max_by_key` returns the last one.
    let busiest = (0..open.len()).rev().max_by_key(|at| count(*at))?;
    (open.len() > MAX_CONNECTIONS || count(busiest) > MAX_CONNECTIONS_OF_ADDRESS).then_some(busiest)
}

async fn serve_connection<R, F>(stream: TcpStream, limits: TimeLimits, respond: R)
where
    R: Fn(Request<Incoming>) -> F,
    F: Future<Output = HttpResponse>,
{
    let respond = service_fn(move |request| {
        let response = respond(request);
        async move { Ok::<_, Infallible>(response.await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.head)
        .max_buf_size(MAX_HEAD_BYTES)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), respond);
    match timeout(limits.connection, connection).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!("a connection failed: {error}"),
        Err(_) => tracing::debug!(
            "closed a connection that did not end within {:?}",
            limits.connection
        ),
    }
}

#[cfg(test)]
mod tests;

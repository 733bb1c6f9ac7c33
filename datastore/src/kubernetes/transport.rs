//! The connection to the API server for all requests of a process: HTTP/2 if the server supports it, else HTTP/1.1.
//!
//! kube's own client supports only HTTP/1.1, and thus needs a connection, with a handshake, for each parallel request.
//! This service replaces it below `kube::Client`. Over HTTP/1.1, short requests share a fixed number of connections,
//! and each watch has its own connection, because it would block other requests forever.

mod lanes;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper::{Request, Response, Uri};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use kube::client::Body;
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::Mutex;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::rustls::pki_types::ServerName;
use tower::Service;

use lanes::Lanes;

use crate::dial::{dial, host, port};

/// Interval between keep-alive messages on a silent connection, and the timeout of their response.
const PING: Duration = Duration::from_secs(15);

/// Time limit for opening a connection, for which all requests wait.
const CONNECT_DEADLINE: Duration = Duration::from_secs(10);

/// The reason why a request got no response.
#[derive(Debug, thiserror::Error)]
pub(super) enum TransportError {
    /// There was no connection, so nothing was sent.
    #[error("cannot connect to {server}: {reason}")]
    Connect {
        /// Host and port.
        server: String,
        /// The cause.
        reason: String,
    },
    /// The connection exists, but no complete response arrived.
    #[error("no answer within {0:?}")]
    Late(Duration),
    /// The connection broke while the request was under way.
    #[error("the connection broke: {0}")]
    Broken(#[from] hyper::Error),
}

/// A mark that a request was sent. The caller uses it to distinguish a request that was never sent from one that the
/// server may have executed.
#[derive(Debug, Clone, Default)]
pub(super) struct Departure {
    happened: Arc<AtomicBool>,
}

impl Departure {
    pub(super) fn happened(&self) -> bool {
        self.happened.load(Ordering::Relaxed)
    }

    fn note(request: &Request<Body>) {
        if let Some(departure) = request.extensions().get::<Departure>() {
            departure.happened.store(true, Ordering::Relaxed);
        }
    }
}

/// A service for [`kube::Client::new`]. Clones share the connection.
#[derive(Clone)]
pub(super) struct Transport {
    shared: Arc<Shared>,
}

struct Shared {
    server: Server,
    spoken: Mutex<Option<Spoken>>,
    lanes: Lanes,
}

/// The address of the API server.
struct Server {
    uri: Uri,
    tls: Option<(TlsConnector, ServerName<'static>)>,
}

/// The HTTP version of the server.
#[derive(Clone)]
enum Spoken {
    /// HTTP/2 on the shared connection, whose driver runs as a separate task.
    Http2(http2::SendRequest<Body>),
    Http1,
}

/// The sending end of a new connection.
enum Connection {
    Http2(http2::SendRequest<Body>),
    Http1(http1::SendRequest<Body>),
}

impl Transport {
    /// Creates a service for the URL `server`. `name` is the name in its certificate, if that is not the host of the
    /// URL. `lanes` is the number of connections that short requests share if the server supports only HTTP/1.1.
    pub(super) fn new(
        server: &Uri,
        tls: Option<ClientConfig>,
        name: Option<&str>,
        lanes: usize,
    ) -> Result<Self, TransportError> {
        let refuse = |reason: String| TransportError::Connect { server: authority(server), reason };
        let tls = match tls {
            Some(config) => {
                let name = name.unwrap_or(host(server)).to_owned();
                let name = ServerName::try_from(name).map_err(|e| refuse(e.to_string()))?;
                Some((TlsConnector::from(Arc::new(config)), name))
            }
            None => None,
        };
        let server = Server { uri: server.clone(), tls };
        Ok(Transport { shared: Arc::new(Shared { server, spoken: Mutex::default(), lanes: Lanes::new(lanes) }) })
    }
}

impl Service<Request<Body>> for Transport {
    type Response = Response<Incoming>;
    type Error = TransportError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let shared = Arc::clone(&self.shared);
        Box::pin(async move { shared.send(request).await })
    }
}

impl Shared {
    async fn send(&self, request: Request<Body>) -> Result<Response<Incoming>, TransportError> {
        if let Spoken::Http2(mut sender) = self.spoken().await? {
            Departure::note(&request);
            return Ok(sender.send_request(request).await?);
        }
        let lane = self.lanes.take_turn(lanes::is_watch(&request)).await;
        let connection = match lane.waiting().await {
            Some(sender) => Connection::Http1(sender),
            None => self.server.connect().await?,
        };
        Departure::note(&request);
        match connection {
            Connection::Http1(sender) => lane.send(sender, to_origin_form(request, &self.server.uri)).await,
            // The server was replaced or upgraded, and now supports HTTP/2.
            Connection::Http2(mut sender) => {
                *self.spoken.lock().await = Some(Spoken::Http2(sender.clone()));
                Ok(sender.send_request(request).await?)
            }
        }
    }

    /// Returns the HTTP version of the server. Opens a new connection if there is none or the previous one was closed.
    async fn spoken(&self) -> Result<Spoken, TransportError> {
        let mut slot = self.spoken.lock().await;
        match &*slot {
            Some(Spoken::Http2(sender)) if sender.is_closed() => {}
            Some(spoken) => return Ok(spoken.clone()),
            None => {}
        }
        let spoken = match self.server.connect().await? {
            Connection::Http2(sender) => Spoken::Http2(sender),
            Connection::Http1(sender) => {
                self.lanes.put_back(sender);
                Spoken::Http1
            }
        };
        Ok(slot.insert(spoken).clone())
    }
}

impl Server {
    async fn connect(&self) -> Result<Connection, TransportError> {
        let late = |_| TransportError::Connect {
            server: authority(&self.uri),
            reason: format!("no connection within {CONNECT_DEADLINE:?}"),
        };
        timeout(CONNECT_DEADLINE, self.try_connect()).await.map_err(late)?
    }

    async fn try_connect(&self) -> Result<Connection, TransportError> {
        let refuse =
            |error: std::io::Error| TransportError::Connect { server: authority(&self.uri), reason: error.to_string() };
        let stream = dial(&self.uri).await.map_err(refuse)?;
        keep_alive(&stream).map_err(refuse)?;
        let Some((connector, name)) = &self.tls else { return http1_over(stream).await };
        let stream = connector.connect(name.clone(), stream).await.map_err(refuse)?;
        match stream.get_ref().1.alpn_protocol() {
            Some(b"h2") => http2_over(stream).await,
            _ => http1_over(stream).await,
        }
    }
}

/// Enables keep-alive probes of the kernel, because HTTP/1.1 has no pings.
fn keep_alive(stream: &TcpStream) -> std::io::Result<()> {
    let asking = TcpKeepalive::new().with_time(PING).with_interval(PING / 3).with_retries(3);
    SockRef::from(stream).set_tcp_keepalive(&asking)
}

async fn http2_over(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
) -> Result<Connection, TransportError> {
    let (sender, connection) = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .keep_alive_interval(PING)
        .keep_alive_timeout(PING)
        .keep_alive_while_idle(true)
        .handshake(TokioIo::new(stream))
        .await?;
    tokio::spawn(connection);
    Ok(Connection::Http2(sender))
}

async fn http1_over(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
) -> Result<Connection, TransportError> {
    let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    Ok(Connection::Http1(sender))
}

/// Moves the host from the URL to a header, as HTTP/1.1 requires.
fn to_origin_form(request: Request<Body>, server: &Uri) -> Request<Body> {
    let (mut parts, body) = request.into_parts();
    if let Some(path) = parts.uri.path_and_query().cloned() {
        parts.uri = Uri::from(path);
    }
    if let Ok(host) = authority(server).parse() {
        parts.headers.insert(hyper::header::HOST, host);
    }
    Request::from_parts(parts, body)
}

fn authority(server: &Uri) -> String {
    format!("{}:{}", server.host().unwrap_or_default(), port(server))
}

//! One connection to the API server for all requests of a process: HTTP/2 where the server speaks it, else HTTP/1.1.
//!
//! kube's own client speaks HTTP/1.1 only, which needs a connection, and with it a handshake, for each request that is to
//! be under way with others. This service stands below `kube::Client` in its place.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper::{Request, Response, Uri};
use hyper_util::rt::{TokioExecutor, TokioIo};
use kube::client::Body;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::Mutex;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::rustls::pki_types::ServerName;
use tower::Service;

/// Why a request got no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum TransportError {
    /// No connection: nothing was sent.
    #[error("cannot connect to {server}: {reason}")]
    Connect {
        /// Host and port.
        server: String,
        /// The cause.
        reason: String,
    },
    /// The connection broke with the request on its way.
    #[error("the connection broke: {0}")]
    Broken(#[from] hyper::Error),
}

/// A service for [`kube::Client::new`]. Clones share the connection.
#[derive(Clone)]
pub(super) struct Transport {
    shared: Arc<Shared>,
}

struct Shared {
    server: Uri,
    tls: Option<(TlsConnector, ServerName<'static>)>,
    connection: Mutex<Option<Connection>>,
}

/// The sending end; its other half runs as a task of its own.
#[derive(Clone)]
enum Connection {
    Http2(http2::SendRequest<Body>),
    /// One request at a time.
    Http1(Arc<Mutex<http1::SendRequest<Body>>>),
}

impl Transport {
    /// For the server at `server`; `name` is what its certificate is for, if not the host of the URL.
    pub(super) fn new(server: &Uri, tls: Option<ClientConfig>, name: Option<&str>) -> Result<Self, TransportError> {
        let refuse = |reason: String| TransportError::Connect { server: authority(server), reason };
        let tls = match tls {
            Some(config) => {
                let name = name.unwrap_or(host(server)).to_owned();
                let name = ServerName::try_from(name).map_err(|e| refuse(e.to_string()))?;
                Some((TlsConnector::from(Arc::new(config)), name))
            }
            None => None,
        };
        Ok(Transport { shared: Arc::new(Shared { server: server.clone(), tls, connection: Mutex::default() }) })
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
        Box::pin(async move {
            match shared.connection().await? {
                Connection::Http2(mut sender) => Ok(sender.send_request(request).await?),
                Connection::Http1(sender) => {
                    let mut sender = sender.lock().await;
                    sender.ready().await?;
                    Ok(sender.send_request(to_origin_form(request, &shared.server)).await?)
                }
            }
        })
    }
}

impl Shared {
    /// The connection in use, or a new one when there is none or the server has closed it.
    async fn connection(&self) -> Result<Connection, TransportError> {
        let mut slot = self.connection.lock().await;
        if let Some(connection) = &*slot
            && connection.is_open()
        {
            return Ok(connection.clone());
        }
        let connection = self.connect().await?;
        Ok(slot.insert(connection).clone())
    }

    async fn connect(&self) -> Result<Connection, TransportError> {
        let refuse = |error: std::io::Error| TransportError::Connect {
            server: authority(&self.server),
            reason: error.to_string(),
        };
        let stream = TcpStream::connect((host(&self.server), port(&self.server))).await.map_err(refuse)?;
        stream.set_nodelay(true).map_err(refuse)?;
        let Some((connector, name)) = &self.tls else { return http1_over(stream).await };
        let stream = connector.connect(name.clone(), stream).await.map_err(refuse)?;
        match stream.get_ref().1.alpn_protocol() {
            Some(b"h2") => http2_over(stream).await,
            _ => http1_over(stream).await,
        }
    }
}

impl Connection {
    fn is_open(&self) -> bool {
        match self {
            Connection::Http2(sender) => !sender.is_closed(),
            // Locked: in use, and so open as far as anybody knows.
            Connection::Http1(sender) => sender.try_lock().map_or(true, |sender| !sender.is_closed()),
        }
    }
}

async fn http2_over(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
) -> Result<Connection, TransportError> {
    let (sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    Ok(Connection::Http2(sender))
}

async fn http1_over(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
) -> Result<Connection, TransportError> {
    let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    Ok(Connection::Http1(Arc::new(Mutex::new(sender))))
}

/// HTTP/1.1 wants the path alone, and the host in a header.
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

/// An IPv6 address stands in brackets in a URL and nowhere else.
fn host(server: &Uri) -> &str {
    server.host().unwrap_or_default().trim_matches(['[', ']'])
}

fn port(server: &Uri) -> u16 {
    server.port_u16().unwrap_or(if server.scheme_str() == Some("http") { 80 } else { 443 })
}

fn authority(server: &Uri) -> String {
    format!("{}:{}", server.host().unwrap_or_default(), port(server))
}

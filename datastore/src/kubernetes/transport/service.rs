//! [`create_transport`]: the service below `kube::Client`. [`RequestSent`] records if a request was
//! sent.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use hyper::body::Incoming;
use hyper::client::conn::http2;
use hyper::{Request, Response, Uri};
use kube::client::Body;
use libcalico::kubernetes::is_watch;
use tokio::sync::Mutex;
use tokio_rustls::rustls::ClientConfig;
use tower::{Service, service_fn};

use super::connect::{Connection, Server, TransportError};
use super::http1_pool::Http1Pool;
use super::proxy::Proxy;
use crate::dial::authority;

struct Transport {
    server: Server,
    version: Mutex<Option<HttpVersion>>,
    http1: Arc<Http1Pool>,
}

#[derive(Clone)]
enum HttpVersion {
    Http2(http2::SendRequest<Body>),
    Http1,
}

/// Creates a service for [`kube::Client::new`] that sends requests to the URL `server`, through
/// `proxy` if there is one. `name` is the name in the server's certificate, if that is not the host
/// of the URL. `connections` limits short requests over HTTP/1.1.
pub(in crate::kubernetes) fn create_transport(
    server: &Uri,
    tls: Option<ClientConfig>,
    name: Option<&str>,
    proxy: Option<Proxy>,
    connections: usize,
) -> Result<
    impl Service<Request<Body>, Response = Response<Incoming>, Error = TransportError, Future: Send>
    + Clone
    + use<>,
    TransportError,
> {
    let server = Server::new(server, tls, name, proxy)?;
    let transport = Arc::new(Transport {
        server,
        version: Mutex::default(),
        http1: Http1Pool::new(connections),
    });
    Ok(service_fn(move |request| {
        let transport = Arc::clone(&transport);
        async move { transport.send(request).await }
    }))
}

impl Transport {
    async fn send(&self, request: Request<Body>) -> Result<Response<Incoming>, TransportError> {
        if let HttpVersion::Http2(mut sender) = self.version().await? {
            RequestSent::record(&request);
            return Ok(sender.send_request(request).await?);
        }
        let permit = self
            .http1
            .acquire(is_watch(request.uri().query().unwrap_or_default()))
            .await;
        let connection = match permit.idle_connection().await {
            Some(sender) => Connection::Http1(sender),
            None => self.server.connect().await?,
        };
        RequestSent::record(&request);
        match connection {
            Connection::Http1(sender) => {
                permit
                    .send(sender, to_origin_form(request, &self.server.uri))
                    .await
            }
            // The server supported only HTTP/1.1 at first.
            Connection::Http2(mut sender) => {
                *self.version.lock().await = Some(HttpVersion::Http2(sender.clone()));
                Ok(sender.send_request(request).await?)
            }
        }
    }

    /// Returns the HTTP version of the server, and opens a connection if necessary.
    async fn version(&self) -> Result<HttpVersion, TransportError> {
        let mut slot = self.version.lock().await;
        match &*slot {
            Some(HttpVersion::Http2(sender)) if sender.is_closed() => {}
            Some(version) => return Ok(version.clone()),
            None => {}
        }
        let version = match self.server.connect().await? {
            Connection::Http2(sender) => HttpVersion::Http2(sender),
            Connection::Http1(sender) => {
                self.http1.store_idle(sender);
                HttpVersion::Http1
            }
        };
        Ok(slot.insert(version).clone())
    }
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

/// A mark that a request was sent, so that the server may have executed it.
#[derive(Debug, Clone, Default)]
pub(in crate::kubernetes) struct RequestSent {
    is_set: Arc<AtomicBool>,
}

impl RequestSent {
    pub(in crate::kubernetes) fn is_set(&self) -> bool {
        self.is_set.load(Ordering::Relaxed)
    }

    fn record(request: &Request<Body>) {
        if let Some(sent) = request.extensions().get::<RequestSent>() {
            sent.is_set.store(true, Ordering::Relaxed);
        }
    }
}

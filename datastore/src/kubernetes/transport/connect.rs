//! Opens a connection to the API server: TCP, perhaps a proxy, TLS and the HTTP version that the
//! server selects.

use std::sync::Arc;
use std::time::Duration;

use hyper::Uri;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use kube::client::Body;
use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::rustls::pki_types::ServerName;

use super::proxy::{Proxy, Route, Stream};
use crate::dial::{authority, dial, host};
use crate::error::describe_error_chain;

/// Time of silence on a connection before a keep-alive message.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(15);

/// Less than the usual time limit of a request, 10 s, so that the error names the connection and
/// not the answer.
const CONNECT_DEADLINE: Duration = Duration::from_secs(9);

#[derive(Debug, thiserror::Error)]
pub(in crate::kubernetes) enum TransportError {
    /// The request was not sent.
    #[error("cannot connect to {server}: {reason}")]
    Connect {
        /// Host and port.
        server: String,
        /// The cause.
        reason: String,
    },
    /// No complete response arrived within this time.
    #[error("no answer within {0:?}")]
    Timeout(Duration),
    /// The connection broke while the request was under way.
    #[error("the connection broke: {0}")]
    ConnectionLost(#[from] hyper::Error),
}

pub(super) struct Server {
    pub(super) uri: Uri,
    tls: Option<(TlsConnector, ServerName<'static>)>,
    /// The way through a proxy; `None` for a direct connection.
    route: Option<Route>,
}

pub(super) enum Connection {
    Http2(http2::SendRequest<Body>),
    Http1(http1::SendRequest<Body>),
}

impl Server {
    /// `name` is the name in the server's certificate, if that is not the host of the URL.
    pub(super) fn new(
        server: &Uri,
        tls: Option<ClientConfig>,
        name: Option<&str>,
        proxy: Option<Proxy>,
    ) -> Result<Self, TransportError> {
        let name = name.unwrap_or(host(server)).to_owned();
        let tls = match tls {
            Some(config) => Some((
                TlsConnector::from(Arc::new(config)),
                parse_name(server, name)?,
            )),
            None => None,
        };
        let route = proxy
            .map(Route::new)
            .transpose()
            .map_err(|error| connect_error(server, error.to_string()))?;
        Ok(Server {
            uri: server.clone(),
            tls,
            route,
        })
    }

    pub(super) async fn connect(&self) -> Result<Connection, TransportError> {
        let late = |_| {
            connect_error(
                &self.uri,
                format!("no connection within {CONNECT_DEADLINE:?}"),
            )
        };
        timeout(CONNECT_DEADLINE, self.try_connect())
            .await
            .map_err(late)?
    }

    async fn try_connect(&self) -> Result<Connection, TransportError> {
        let refuse = |error: std::io::Error| connect_error(&self.uri, error.to_string());
        let stream = self.open_stream().await.map_err(refuse)?;
        let Some((connector, name)) = &self.tls else {
            return self.start_http(stream, false).await;
        };
        let stream = connector
            .connect(name.clone(), stream)
            .await
            .map_err(refuse)?;
        let is_http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
        self.start_http(Box::new(stream), is_http2).await
    }

    async fn open_stream(&self) -> std::io::Result<Stream> {
        let Some(route) = &self.route else {
            let stream = dial(&self.uri).await?;
            enable_keep_alive(&stream)?;
            return Ok(Box::new(stream));
        };
        let through = async {
            let stream = dial(route.address()).await?;
            enable_keep_alive(&stream)?;
            route.open(stream, &self.uri).await
        };
        through
            .await
            .map_err(|error| std::io::Error::new(error.kind(), format!("proxy {route}: {error}")))
    }

    /// Starts HTTP/2 or HTTP/1.1 on a new connection. After a failure, no request has been sent, so
    /// the outcome of a write is known.
    async fn start_http(&self, io: Stream, is_http2: bool) -> Result<Connection, TransportError> {
        let opened = if is_http2 {
            open_http2(io).await
        } else {
            open_http1(io).await
        };
        opened.map_err(|error| connect_error(&self.uri, describe_error_chain(&error)))
    }
}

/// Enables keep-alive probes of the kernel, because HTTP/1.1 has no pings.
fn enable_keep_alive(stream: &TcpStream) -> std::io::Result<()> {
    let probes = TcpKeepalive::new()
        .with_time(KEEP_ALIVE_INTERVAL)
        .with_interval(KEEP_ALIVE_INTERVAL / 3)
        .with_retries(3);
    SockRef::from(stream).set_tcp_keepalive(&probes)
}

async fn open_http2(io: Stream) -> hyper::Result<Connection> {
    let (sender, connection) = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .keep_alive_interval(KEEP_ALIVE_INTERVAL)
        .keep_alive_timeout(KEEP_ALIVE_INTERVAL)
        .keep_alive_while_idle(true)
        .handshake(TokioIo::new(io))
        .await?;
    tokio::spawn(connection);
    Ok(Connection::Http2(sender))
}

async fn open_http1(io: Stream) -> hyper::Result<Connection> {
    let (sender, connection) = http1::handshake(TokioIo::new(io)).await?;
    tokio::spawn(connection);
    Ok(Connection::Http1(sender))
}

fn parse_name(server: &Uri, name: String) -> Result<ServerName<'static>, TransportError> {
    ServerName::try_from(name).map_err(|error| connect_error(server, error.to_string()))
}

fn connect_error(server: &Uri, reason: String) -> TransportError {
    TransportError::Connect {
        server: authority(server),
        reason,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn http_start_on_a_closed_connection_reports_an_unsent_request() {
        let server =
            Server::new(&Uri::from_static("https://api.test:6443"), None, None, None).unwrap();
        let (io, peer) = tokio::io::duplex(64);
        drop(peer);
        let Err(error) = server.start_http(Box::new(io), true).await else {
            panic!("the peer is closed")
        };
        assert!(
            matches!(&error, TransportError::Connect { server, .. } if server == "api.test:6443"),
            "{error:?}"
        );
    }
}

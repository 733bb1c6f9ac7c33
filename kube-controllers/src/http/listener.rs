//! One port: bound, served, and changed.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::Ports;
use super::pages::Pages;

/// Between two attempts to have a port.
const RETRY: Duration = Duration::from_secs(1);
/// The longest time that a client may take to ask. Ours are kubelet and Prometheus.
const REQUEST: Duration = Duration::from_secs(10);
/// The longest time that a connection may last: longer than a profile. 64 connections that nobody ends would keep kubelet's
/// probe waiting.
const LONGEST_CONNECTION: Duration = Duration::from_secs(90);
/// More are left to wait.
const MOST_CONNECTIONS: usize = 64;

/// A port could not be had.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on port {port}: {source}; is another process there?")]
pub struct ListenError {
    port: u16,
    source: io::Error,
}

/// Which port, and where it is.
pub(super) struct Listener {
    port: fn(&Ports) -> Option<u16>,
    localhost: bool,
}

impl Listener {
    pub(super) fn on_all(port: fn(&Ports) -> Option<u16>) -> Self {
        Listener { port, localhost: false }
    }

    pub(super) fn on_localhost(port: fn(&Ports) -> Option<u16>) -> Self {
        Listener { port, localhost: true }
    }

    /// Has the port with which the process starts. On localhost, where nobody depends on it, it is left for later.
    pub(super) async fn bind_first(&self, ports: &watch::Receiver<Ports>) -> Result<Option<TcpListener>, ListenError> {
        let port = (self.port)(&ports.borrow());
        let Some(port) = port.filter(|_| !self.localhost) else { return Ok(None) };
        self.bind(port).await.map(Some).map_err(|source| ListenError { port, source })
    }

    /// Serves `pages`, on `bound` at first and on another port whenever it is changed.
    pub(super) async fn serve(self, mut ports: watch::Receiver<Ports>, mut bound: Option<TcpListener>, pages: Pages) {
        loop {
            let port = (self.port)(&ports.borrow_and_update());
            let serve = async {
                match port {
                    Some(port) => answer_all(self.bound(port, bound.take()).await, &pages).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = serve => {}
                // When nobody can change it any more it stays.
                Ok(_) = ports.wait_for(|ports| (self.port)(ports) != port) => {}
            }
            bound = None;
        }
    }

    /// The listener that is there, or a new one as soon as the port can be had.
    async fn bound(&self, port: u16, bound: Option<TcpListener>) -> TcpListener {
        if let Some(bound) = bound {
            return bound;
        }
        let mut told = false;
        loop {
            match self.bind(port).await {
                Ok(bound) => return bound,
                Err(error) if !told => tracing::warn!(port, "cannot listen, trying again each second: {error}"),
                Err(_) => {}
            }
            told = true;
            sleep(RETRY).await;
        }
    }

    async fn bind(&self, port: u16) -> io::Result<TcpListener> {
        if self.localhost {
            return TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, port))).await;
        }
        match TcpListener::bind(SocketAddr::from((Ipv6Addr::UNSPECIFIED, port))).await {
            // A kernel without IPv6.
            Err(error) if error.kind() != io::ErrorKind::AddrInUse => {
                TcpListener::bind(SocketAddr::from((Ipv4Addr::UNSPECIFIED, port))).await
            }
            bound => bound,
        }
    }
}

/// Answers until it is dropped, and then nobody any more.
async fn answer_all(listener: TcpListener, pages: &Pages) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            Some(_) = connections.join_next() => {}
            accepted = listener.accept(), if connections.len() < MOST_CONNECTIONS => match accepted {
                Ok((stream, _)) => {
                    connections.spawn(answer(stream, pages.clone()));
                }
                // Out of files, or gone before it was taken.
                Err(error) => {
                    tracing::debug!("cannot accept a connection: {error}");
                    sleep(Duration::from_millis(100)).await;
                }
            },
        }
    }
}

/// Answers the requests of one connection.
async fn answer(stream: TcpStream, pages: Pages) {
    let respond = service_fn(move |request| {
        let pages = pages.clone();
        async move { Ok::<_, std::convert::Infallible>(pages.answer(request.method(), request.uri()).await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(REQUEST)
        // A connection serves one request, so that no client keeps others waiting by asking again and again.
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), respond);
    match timeout(LONGEST_CONNECTION, connection).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!("a connection broke: {error}"),
        Err(_) => tracing::debug!("a connection was not ended by its client within {LONGEST_CONNECTION:?}"),
    }
}

//! [`Listener`]: one port, which can change at run time.

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

/// Delay between two attempts to open a port.
const RETRY: Duration = Duration::from_secs(1);
/// Time limit for a client to send its request. The clients are kubelet and Prometheus.
const REQUEST: Duration = Duration::from_secs(10);
/// Time limit of a connection, longer than most profiles. Without it, 64 connections that clients never close would
/// block kubelet's probe.
const LONGEST_CONNECTION: Duration = Duration::from_secs(90);
/// Maximum number of open connections. Further ones wait.
const MOST_CONNECTIONS: usize = 64;

/// A port that cannot be opened.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on port {port}: {source}; is another process there?")]
pub struct ListenError {
    port: u16,
    source: io::Error,
}

/// The selection of a port, and its address.
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

    /// Opens the first port. A port on localhost is opened later, because no probe and no scrape depends on it.
    pub(super) async fn bind_first(&self, ports: &watch::Receiver<Ports>) -> Result<Option<TcpListener>, ListenError> {
        let port = (self.port)(&ports.borrow());
        let Some(port) = port.filter(|_| !self.localhost) else { return Ok(None) };
        self.bind(port).await.map(Some).map_err(|source| ListenError { port, source })
    }

    /// Serves `pages`, on `bound` at first, and on another port whenever the port changes.
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
                // If the sender is gone, the port stays as it is.
                Ok(_) = ports.wait_for(|ports| (self.port)(ports) != port) => {}
            }
            bound = None;
        }
    }

    /// Returns the open listener, or opens the port, with retries.
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
            // The kernel may have no IPv6.
            Err(error) if error.kind() != io::ErrorKind::AddrInUse => {
                TcpListener::bind(SocketAddr::from((Ipv4Addr::UNSPECIFIED, port))).await
            }
            bound => bound,
        }
    }
}

/// Serves connections until the future is dropped, which also closes the open connections.
async fn answer_all(listener: TcpListener, pages: &Pages) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            Some(_) = connections.join_next() => {}
            accepted = listener.accept(), if connections.len() < MOST_CONNECTIONS => match accepted {
                Ok((stream, _)) => {
                    connections.spawn(answer(stream, pages.clone()));
                }
                // The process has no file descriptor left, or the client closed the connection.
                Err(error) => {
                    tracing::debug!("cannot accept a connection: {error}");
                    sleep(Duration::from_millis(100)).await;
                }
            },
        }
    }
}

/// Serves the request of one connection.
async fn answer(stream: TcpStream, pages: Pages) {
    let respond = service_fn(move |request| {
        let pages = pages.clone();
        async move { Ok::<_, std::convert::Infallible>(pages.answer(request.method(), request.uri()).await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(REQUEST)
        // A connection serves one request, so that a client cannot keep it open with further requests.
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), respond);
    match timeout(LONGEST_CONNECTION, connection).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!("a connection broke: {error}"),
        Err(_) => tracing::debug!("a connection was not ended by its client within {LONGEST_CONNECTION:?}"),
    }
}

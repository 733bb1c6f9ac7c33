//! [`PortServer`]: one port, which can change at run time.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use hyper::Request;
use hyper::body::Incoming;
use node_process::http_server::{self, TimeLimits};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::time::sleep;

use super::MAX_CONNECTION_TIME;
use super::routes::Routes;

const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// Time limit for a client to send the header of its request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// The ports. `None` opens no port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Ports {
    /// Port of `/readiness` and `/liveness` as in upstream (KC-144), and of `/readyz` and
    /// `/healthz`, on all addresses.
    pub health: Option<u16>,
    /// Port of `/metrics`, and no other path, on all addresses.
    pub metrics: Option<u16>,
    /// Port of `/debug/pprof/profile` and `/debug/pprof/heap`, on localhost.
    pub profiling: Option<u16>,
}

/// A port that cannot be opened.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on port {port}: {source}; check which process uses the port")]
pub struct ListenError {
    port: u16,
    source: io::Error,
}

/// The function that selects one of the ports, and the addresses on which the port is opened.
pub(super) struct PortServer {
    pub(super) port: fn(&Ports) -> Option<u16>,
    /// Whether to listen on localhost only, and not on all addresses.
    pub(super) localhost: bool,
}

impl PortServer {
    /// Opens the port that `ports` contains at the start. Returns `None` if there is none, and for
    /// a port on localhost, which is opened later.
    pub(super) async fn bind_first(
        &self,
        ports: &watch::Receiver<Ports>,
    ) -> Result<Option<TcpListener>, ListenError> {
        let port = (self.port)(&ports.borrow());
        let Some(port) = port.filter(|_| !self.localhost) else {
            return Ok(None);
        };
        self.bind(port)
            .await
            .map(Some)
            .map_err(|source| ListenError { port, source })
    }

    pub(super) async fn serve(
        self,
        mut ports: watch::Receiver<Ports>,
        mut bound: Option<TcpListener>,
        routes: Routes,
    ) {
        loop {
            let port = (self.port)(&ports.borrow_and_update());
            let serve = async {
                match port {
                    Some(port) => {
                        serve_connections(self.open(port, bound.take()).await, &routes).await
                    }
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

    /// Returns `bound` if it is a listener, or else opens the port, with retries.
    async fn open(&self, port: u16, bound: Option<TcpListener>) -> TcpListener {
        if let Some(bound) = bound {
            return bound;
        }
        let mut reported = false;
        loop {
            match self.bind(port).await {
                Ok(bound) => return bound,
                Err(error) if !reported => {
                    tracing::warn!(port, "cannot listen, trying again each second: {error}")
                }
                Err(_) => {}
            }
            reported = true;
            sleep(RETRY_INTERVAL).await;
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

async fn serve_connections(listener: TcpListener, routes: &Routes) {
    let routes = routes.clone();
    let respond = move |request: Request<Incoming>| {
        let routes = routes.clone();
        async move { routes.respond(request.method(), request.uri()).await }
    };
    http_server::serve(
        listener,
        TimeLimits {
            head: REQUEST_TIMEOUT,
            connection: MAX_CONNECTION_TIME,
        },
        respond,
    )
    .await;
}

//! The HTTP ports: health, metrics and profiles, each on a port of its own that can change at run
//! time.

mod profile;
mod routes;
mod server;

pub use server::{ListenError, Ports};

use std::time::Duration;

use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tokio_util::sync::CancellationToken;

use crate::status::Status;
use crate::telemetry::Metrics;
use routes::Routes;
use server::PortServer;

/// Time limit of a connection, longer than the longest profile.
const MAX_CONNECTION_TIME: Duration = Duration::from_secs(90);

/// Serves the ports and follows their changes, until `stop`. Fails if the health port that `ports`
/// has at the start cannot be opened, because probes of this process would reach another process
/// (KC-150).
pub async fn start(
    ports: watch::Receiver<Ports>,
    status: Status,
    metrics: Metrics,
    stop: CancellationToken,
) -> Result<JoinHandle<()>, ListenError> {
    let servers = [
        (
            PortServer {
                port: |ports| ports.health,
                localhost: false,
            },
            Routes::Health(status),
        ),
        (
            PortServer {
                port: |ports| ports.metrics,
                localhost: false,
            },
            Routes::Metrics(metrics),
        ),
        (
            PortServer {
                port: |ports| ports.profiling,
                localhost: true,
            },
            Routes::Profiles,
        ),
    ];
    let mut tasks = JoinSet::new();
    for (server, routes) in servers {
        let bound = server.bind_first(&ports).await?;
        tasks.spawn(server.serve(ports.clone(), bound, routes));
    }
    Ok(tokio::spawn(async move {
        stop.cancelled().await;
        tasks.shutdown().await;
    }))
}

#[cfg(test)]
mod tests;

//! The HTTP ports: health, metrics and profiles, each on a port of its own that can change at run time.

mod listener;
mod pages;
mod profile;

pub use listener::ListenError;

use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tokio_util::sync::CancellationToken;

use crate::status::Status;
use crate::telemetry::Metrics;
use listener::Listener;
use pages::Pages;

/// The ports; `None` disables one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Ports {
    /// Port of `/readiness` and `/liveness` as in upstream (KC-144), and of `/readyz` and `/healthz`, on all addresses.
    pub health: Option<u16>,
    /// Port of `/metrics`, and no other path, on all addresses.
    pub metrics: Option<u16>,
    /// Port of `/debug/pprof/profile` and `/debug/pprof/heap`, on localhost.
    pub profiling: Option<u16>,
}

/// Serves the ports and follows their changes, until `stop`. A port that changes later, and the port of profiles, is
/// retried each second.
///
/// # Errors
/// If the first port of health or metrics cannot be opened, as in upstream (KC-150): probes of this process would reach
/// another one.
pub async fn start(
    ports: watch::Receiver<Ports>,
    status: Status,
    metrics: Metrics,
    stop: CancellationToken,
) -> Result<JoinHandle<()>, ListenError> {
    let servers = [
        (Listener::on_all(|ports| ports.health), Pages::Health(status)),
        (Listener::on_all(|ports| ports.metrics), Pages::Metrics(metrics)),
        (Listener::on_localhost(|ports| ports.profiling), Pages::Profiles),
    ];
    let mut tasks = JoinSet::new();
    for (listener, pages) in servers {
        let bound = listener.bind_first(&ports).await?;
        tasks.spawn(listener.serve(ports.clone(), bound, pages));
    }
    Ok(tokio::spawn(async move {
        stop.cancelled().await;
        tasks.shutdown().await;
    }))
}

#[cfg(test)]
mod tests;

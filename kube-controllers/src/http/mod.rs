//! What the process serves: health, metrics and profiles, each on a port of its own that may change while it runs.

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

/// Where is what; `None` is nowhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Ports {
    /// `/readiness` and `/liveness` as upstream (KC-144), and the same as `/readyz` and `/healthz`, on all addresses.
    pub health: Option<u16>,
    /// `/metrics` and nothing else, on all addresses (KC-150).
    pub metrics: Option<u16>,
    /// `/debug/pprof/profile` and `/debug/pprof/heap`, on localhost (KC-151).
    pub profiling: Option<u16>,
}

/// Serves on these ports and follows their changes, until `stop`. Fails when the ports of health or metrics cannot be had:
/// a process whose probes go to another is worse than none (KC-150). A port that is changed to later, and that of
/// profiles, is tried again each second.
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

//! Graceful shutdown on SIGTERM and SIGINT.

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// Returns a token that the first SIGTERM or SIGINT cancels. A second signal ends the process at once.
pub(crate) fn stop_on_signal() -> std::io::Result<CancellationToken> {
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let stop = CancellationToken::new();
    let stopped = stop.clone();
    tokio::spawn(async move {
        for _ in 0..2 {
            let name = tokio::select! {
                _ = terminate.recv() => "SIGTERM",
                _ = interrupt.recv() => "SIGINT",
            };
            if stopped.is_cancelled() {
                tracing::warn!("{name} again: ending at once");
                std::process::exit(1);
            }
            tracing::info!("{name}: finishing what is under way");
            stopped.cancel();
        }
    });
    Ok(stop)
}

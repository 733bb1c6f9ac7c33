//! The events that end the process: a signal, or a move of Calico's objects to another API group.

use std::time::Duration;

use datastore::kubernetes::{wait_for_changed_group, wait_for_stable_group};
use datastore::{Datastore, Kubernetes};
use libcalico::kubernetes::ApiGroup;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::context::Clients;
use crate::leader::Leadership;
use crate::migration;
use crate::settings::Mode;
use crate::startup::StartError;
use crate::telemetry::Metrics;

/// Interval between two requests for the API group of Calico's objects.
const CHECK_INTERVAL: Duration = Duration::from_secs(60);

/// Returns a token that the first SIGTERM or SIGINT cancels. If the token is canceled already, a
/// signal ends the process at once.
pub(super) fn stop_on_signal() -> std::io::Result<CancellationToken> {
    let (mut terminate, mut interrupt) = (
        signal(SignalKind::terminate())?,
        signal(SignalKind::interrupt())?,
    );
    let stop = CancellationToken::new();
    let stopped = stop.clone();
    tokio::spawn(async move {
        for _ in 0..2 {
            let name = tokio::select! {
                _ = terminate.recv() => "SIGTERM",
                _ = interrupt.recv() => "SIGINT",
            };
            if stopped.is_cancelled() {
                tracing::warn!("received {name} while stopping; ending at once");
                std::process::exit(1);
            }
            tracing::info!("received {name}; the process ends after its current work");
            stopped.cancel();
        }
    });
    Ok(stop)
}

/// Waits until Calico's objects are in another API group than at the start of the process; forever
/// if the datastore is etcd. If the migration of this process moves them, the wait ends at once.
pub(super) async fn wait_for_move(
    clients: &Clients,
    elected: &Leadership,
    metrics: &Metrics,
    stop: &CancellationToken,
) -> StartError {
    let (used, calico) = match (clients.mode, &*clients.calico) {
        (Mode::Kubernetes(used), Datastore::Kubernetes(calico)) => (used, calico),
        // Only an API server has groups.
        (Mode::Etcd, _) | (_, Datastore::Etcd(_) | Datastore::Local(_)) => {
            return std::future::pending().await;
        }
    };
    let (kubernetes, elected, metrics) =
        (clients.kubernetes.clone(), elected.clone(), metrics.clone());
    let migrated = async {
        // On the heap, because a thread's stack is too small for the futures of a migration and of
        // its callers.
        match Box::pin(migration::run(
            kubernetes,
            calico.configured_group(),
            used,
            elected,
            metrics,
            stop.clone(),
        ))
        .await
        {
            Some(moved) => moved,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        moved = wait_for_group_move(calico, used) => moved,
        moved = migrated => moved,
    }
}

/// Waits until Calico's objects are in another API group than at the start of the process. If the
/// environment names a group that did not hold the objects even at the start, the process logs that
/// and continues: a restart would not help, because the environment stays the same.
async fn wait_for_group_move(calico: &Kubernetes, used: ApiGroup) -> StartError {
    let read_group = async || calico.discover_group().await;
    let began = match calico.configured_group() {
        None => used,
        Some(_) => wait_for_stable_group(CHECK_INTERVAL, read_group).await,
    };
    if began != used {
        tracing::error!(
            hint = "correct CALICO_API_GROUP (in deploy/: calico_api_group of the ConfigMap calico-cni-config)",
            "CALICO_API_GROUP is {used}, but Calico's objects are in {began}",
            used = used.api_version(),
            began = began.api_version()
        );
    }
    let now = wait_for_changed_group(began, CHECK_INTERVAL, read_group).await;
    let configured = calico.configured_group().map(ApiGroup::api_version);
    StartError::Moved {
        was: began.api_version(),
        now: now.api_version(),
        configured,
    }
}

//! The events that end the process: a signal, or a move of Calico's objects to another API group.

use std::time::Duration;

use datastore::kubernetes::{wait_for_changed_group, wait_for_stable_group};
use datastore::{Datastore, Kubernetes};
use futures::future::LocalBoxFuture;
use libcalico::kubernetes::ApiGroup;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::context::Clients;
use crate::leader::Leadership;
use crate::settings::Mode;
use crate::startup::StartError;
use crate::telemetry::Metrics;

/// Interval between two requests for the API group of Calico's objects.
const CHECK_INTERVAL: Duration = Duration::from_secs(60);

/// The task that moves Calico's objects to another API group while this replica is the leader.
/// Returns the group once the objects are in another group than this process uses, or `None` after
/// [`MigrationContext::stop`].
pub type MigrationTask = fn(MigrationContext) -> LocalBoxFuture<'static, Option<ApiGroup>>;

/// The parts of the process that a [`MigrationTask`] uses.
#[derive(Clone)]
pub struct MigrationContext {
    /// Client of the API server.
    pub kubernetes: kube::Client,
    /// The API group in the environment of this process.
    pub configured: Option<ApiGroup>,
    /// The API group that this process uses.
    pub used: ApiGroup,
    /// The right to write, regardless of the lock of the datastore.
    pub elected: Leadership,
    /// The metrics that `/metrics` serves.
    pub metrics: Metrics,
    /// Ends the task.
    pub stop: CancellationToken,
}

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
/// if the datastore is etcd. If `migrate` moves them, the wait ends at once.
pub(super) async fn wait_for_move(
    clients: &Clients,
    elected: &Leadership,
    metrics: &Metrics,
    stop: &CancellationToken,
    migrate: MigrationTask,
) -> StartError {
    let (used, calico) = match (clients.mode, &*clients.calico) {
        (Mode::Kubernetes(used), Datastore::Kubernetes(calico)) => (used, calico),
        // Only an API server has groups.
        (Mode::Etcd, _) | (_, Datastore::Etcd(_) | Datastore::Local(_)) => {
            return std::future::pending().await;
        }
    };
    let configured = calico.configured_group();
    let migrated = migrate(MigrationContext {
        kubernetes: clients.kubernetes.clone(),
        configured,
        used,
        elected: elected.clone(),
        metrics: metrics.clone(),
        stop: stop.clone(),
    });
    let migrated = async {
        match migrated.await {
            Some(now) => moved(used, now, configured),
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
    moved(began, now, calico.configured_group())
}

fn moved(was: ApiGroup, now: ApiGroup, configured: Option<ApiGroup>) -> StartError {
    StartError::Moved {
        was: was.api_version(),
        now: now.api_version(),
        configured: configured.map(ApiGroup::api_version),
    }
}

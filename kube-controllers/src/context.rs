//! The state that every controller receives: clients, settings and the right to write.

use std::sync::Arc;

use datastore::Datastore;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::leader::Leadership;
use crate::same_cluster::SameCluster;
use crate::settings::{Mode, Settings};
use crate::status::Watchdog;
use crate::telemetry::Metrics;

#[derive(Clone)]
pub(crate) struct Clients {
    pub(crate) kubernetes: kube::Client,
    /// Client of the datastore with Calico's objects.
    pub(crate) calico: Arc<Datastore>,
    pub(crate) mode: Mode,
}

/// Clients, settings and the stop signal, shared by all controllers. Cheap to clone.
#[derive(Clone)]
pub struct Context {
    /// Client of the Kubernetes API.
    pub kubernetes: kube::Client,
    /// Client of the datastore with Calico's objects.
    pub calico: Arc<Datastore>,
    /// The place where Calico's objects are stored.
    pub mode: Mode,
    /// The settings in force; notifies of changes.
    pub settings: watch::Receiver<Arc<Settings>>,
    /// The right to write: this replica is the leader and the datastore is not locked.
    pub leadership: Leadership,
    /// The nodes that Kubernetes and the datastore have in common. Without any, deletions wait.
    pub same_cluster: SameCluster,
    /// The metrics that `/metrics` serves.
    pub metrics: Metrics,
    /// Detects work that is stuck.
    pub watchdog: Watchdog,
    /// Canceled when the controllers have to stop: each finishes its current work within a time
    /// limit, and returns.
    pub stop: CancellationToken,
}

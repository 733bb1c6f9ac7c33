//! The state that every controller receives: clients, settings and the right to write.

use std::sync::Arc;

use datastore::Datastore;
use libcalico::kubernetes::ApiGroup;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::feed::Feeds;
use crate::runtime::Leadership;
use crate::settings::Settings;
use crate::telemetry::Metrics;

/// The place where Calico's objects are stored, which decides what the controllers have to do. Upstream selects
/// controllers by configuration alone (KC-020).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// In etcd. Endpoints, profiles and policies are objects of their own.
    Etcd,
    /// In the Kubernetes API, as custom resources of this group. Endpoints are derived from pods, Calico's nodes are
    /// Kubernetes nodes, and calico-node reads Kubernetes policies itself.
    Kubernetes(ApiGroup),
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
    /// The metrics that `/metrics` serves.
    pub metrics: Metrics,
    /// Canceled when the controllers have to stop: finish the current write and return.
    pub stop: CancellationToken,
}

/// A controller that has subscribed to its watches.
pub trait Controller: Send + 'static {
    /// The controller's name in logs and metrics.
    const NAME: &'static str;
    /// Subscribes to watches. Sends no request and does not wait: the watches start when all controllers have
    /// subscribed.
    fn new(context: &Context, feeds: &mut Feeds) -> Self;
    /// Runs until `context.stop` is canceled.
    fn run(self, context: Context) -> impl Future<Output = ()> + Send;
}

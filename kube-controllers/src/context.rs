//! What every controller is given.

use std::sync::Arc;

use datastore::Datastore;
use libcalico::kubernetes::ApiGroup;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::feed::Feeds;
use crate::runtime::Leadership;
use crate::settings::Settings;
use crate::telemetry::Metrics;

/// Where Calico's objects are kept, which decides what there is to do (KC-020).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// In etcd: endpoints, profiles and policies are objects of their own.
    Etcd,
    /// In the Kubernetes API, as this group's custom resources: endpoints are pods, nodes are nodes, and calico-node reads
    /// Kubernetes policies by itself.
    Kubernetes(ApiGroup),
}

/// The clients, the settings, and when to stop. Cheap to clone.
#[derive(Clone)]
pub struct Context {
    /// The Kubernetes API.
    pub kubernetes: kube::Client,
    /// Calico's objects.
    pub calico: Arc<Datastore>,
    /// Where those are.
    pub mode: Mode,
    /// What is in force now, and whether it changed.
    pub settings: watch::Receiver<Arc<Settings>>,
    /// Who may write, while nobody has locked the datastore.
    pub leadership: Leadership,
    /// What `/metrics` tells.
    pub metrics: Metrics,
    /// Cancelled when the process is to end: finish the write under way and return.
    pub stop: CancellationToken,
}

/// A controller that has subscribed to its feeds. `run` ends after `stop`.
pub trait Controller: Send + 'static {
    /// As it is named in logs and metrics.
    const NAME: &'static str;
    /// Subscribes. Nothing is sent or awaited here: feeds start when all controllers have subscribed.
    fn new(context: &Context, feeds: &mut Feeds) -> Self;
    /// Works until `context.stop` is cancelled.
    fn run(self, context: Context) -> impl Future<Output = ()> + Send;
}

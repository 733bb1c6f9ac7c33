//! [`World`]: the kinds of datastore, API server, clock and right to write on which a pass acts.

use std::fmt::Debug;

use allocation::write_gate::WriteGate;
use datastore::ClusterStore;
use datastore::watch::WatchEvent;
use futures::Stream;
use libcalico::api::ObjectKey;
use libcalico::failure::Failure;
use libcalico::kubernetes::Resource;
use libcalico::store::{Entry, Kind};
use os::clock::Clock;
use serde_json::Value;
use serde_json::value::RawValue;
use time::OffsetDateTime;

use crate::events::Posted;
use crate::runtime::ReconcileError;
use crate::watched::Pod;

/// The kinds of datastore, API server, clock and right to write on which a pass acts.
pub trait World: 'static {
    /// The datastore with Calico's objects.
    type Store: ListedStore;
    /// The API server.
    type Api: ClusterApi;
    /// The clock of grace periods. Clones share the same time.
    type Clock: Clock + Clone + 'static;
    /// The right to write.
    type Gate: PassGate;
    /// The work beside the passes.
    type Background: Background;
}

/// A datastore that lists a kind object by object.
pub trait ListedStore: ClusterStore + 'static {
    /// Returns the events of a list of the selected objects: at least those until the first
    /// [`WatchEvent::ListEnd`]. All failures are retried. Returns `None` if the datastore has no
    /// such lists.
    fn events<K: Kind>(
        &self,
        select: &K::Select,
    ) -> Option<impl Stream<Item = WatchEvent<Entry<K>, K::Key>> + Send>;
}

/// The API server, from which a pass reads the owners of addresses, and to which it reports.
pub trait ClusterApi: Send + Sync + 'static {
    /// Returns true if the object exists.
    fn exists(
        &self,
        resource: Resource,
        key: &ObjectKey,
    ) -> impl Future<Output = Result<bool, ReconcileError>> + Send;

    /// Returns the JSON of a pod, or `None` if the pod is missing.
    fn pod(
        &self,
        key: &ObjectKey,
    ) -> impl Future<Output = Result<Option<Box<RawValue>>, ReconcileError>> + Send;

    /// Returns a page of the pods on a node: the first one, or the page of a token. An unreadable
    /// pod is an error.
    fn pods_of_node(
        &self,
        node: &str,
        token: Option<&str>,
    ) -> impl Future<Output = Result<PodPage, ReconcileError>> + Send;

    /// Returns true if the API server serves at least one of these kinds in any version of `group`.
    fn serves(
        &self,
        group: &str,
        plurals: &[&str],
    ) -> impl Future<Output = Result<bool, ReconcileError>> + Send;

    /// Returns the time of the API server, in whole seconds.
    fn time(&self) -> impl Future<Output = Result<OffsetDateTime, Failure>> + Send;

    /// Posts an Event if `may_write` is true.
    fn post_event(&self, may_write: bool, event: Value) -> impl Future<Output = Posted> + Send;
}

/// A page of pods.
#[derive(Debug, Default)]
pub struct PodPage {
    /// The pods.
    pub pods: Vec<Pod>,
    /// The token of the next page; `None` after the last page.
    pub next: Option<String>,
}

/// The right to write, and the limit of the rate of requests.
pub trait PassGate: WriteGate + Send + 'static {
    /// Returns true while writes are allowed.
    fn is_open(&self) -> bool;

    /// Waits until the rate limit allows this number of requests.
    fn pace(&self, requests: usize) -> impl Future<Output = ()> + Send;

    /// Returns the output of `work`. If this replica is not the leader, or is it no longer before
    /// `work` ends, drops `work` and returns `None`.
    fn while_leading<F: Future>(&self, work: F) -> impl Future<Output = Option<F::Output>>;

    /// Reports once why deletions wait although this replica is the leader.
    fn report_wait(&self) -> impl Future<Output = ()>;
}

/// The work beside the passes, which wait for none of it.
pub trait Background: Debug + Send + 'static {
    /// Starts the work, or drops it if earlier work has not ended.
    fn start_if_idle(&mut self, work: impl Future<Output = ()> + Send + 'static);
}

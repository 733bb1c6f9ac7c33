//! Calico's datastores: the I/O behind [`libcalico::store::Store`].
//!
//! [`Datastore`] is an etcd cluster, one SQLite file or a Kubernetes API server. The first two hold the same pairs, the
//! paths and JSON of upstream's etcd layout (DS-24..DS-34), so a file can be loaded into etcd and back ([`transfer`]);
//! the third holds them as custom resources, pods and nodes. Which one a process uses comes from a [`DatastoreConfig`].
//! Nothing is opened before the first request, and each process has one connection; to etcd one more for each watch
//! ([`watch`]).
//!
//! Without the feature `local` there is no SQLite: a configuration that names a file is refused.

pub mod config;
mod deadline;
mod dial;
pub mod error_chain;
pub mod etcd;
pub mod first_use;
mod identity;
pub mod kubernetes;
#[cfg(feature = "local")]
pub mod local;
#[cfg(not(feature = "local"))]
mod no_local;
mod pages;
pub mod transfer;
pub mod watch;

use std::sync::Arc;
use std::time::Duration;

use libcalico::ipam::Sighting;
use libcalico::store::{
    Answers, Entry, Kind, RawEntry, ReadBatch, Revision, Store, StoreError, Survey, Write, WriteError,
};
use watch::{Meter, Watch, WatchEvent};

pub use config::{ConfigError, DatastoreConfig, Settings};
pub use etcd::Etcd;
pub use kubernetes::Kubernetes;
pub use kubernetes::WhenBusy;
pub use kubernetes::config::KubernetesConfig;
#[cfg(feature = "local")]
pub use local::Local;
#[cfg(not(feature = "local"))]
pub use no_local::Local;
pub use pages::{Listed, Pages};

/// The datastore of this process.
#[derive(Debug)]
pub enum Datastore {
    /// An etcd cluster.
    Etcd(Box<Etcd>),
    /// A SQLite file on this node.
    Local(Local),
    /// A Kubernetes cluster.
    Kubernetes(Arc<Kubernetes>),
}

impl Datastore {
    /// Prepares the datastore that `config` describes. Reads certificates and keys, sends nothing and opens no
    /// database: what is out of reach shows with the first request.
    pub fn open(config: &DatastoreConfig) -> Result<Self, ConfigError> {
        Ok(match config {
            DatastoreConfig::Etcd(config) => Datastore::Etcd(Box::new(Etcd::new(config)?)),
            DatastoreConfig::Local(config) => Datastore::Local(Local::open(config)?),
            DatastoreConfig::Kubernetes(config) => {
                Datastore::Kubernetes(Arc::new(Kubernetes::new(config, kubernetes::GROUP_FILE)))
            }
        })
    }

    /// How many requests have been sent so far: remote procedure calls to etcd, transactions on the file.
    pub fn requests(&self) -> u64 {
        match self {
            Datastore::Etcd(etcd) => etcd.requests(),
            Datastore::Local(local) => local.requests(),
            Datastore::Kubernetes(kubernetes) => kubernetes.requests(),
        }
    }

    /// Ends all requests that long after now if the server has answered none of them by then. Once it has, each request
    /// has the time of the configuration. A file is always there.
    pub fn expect_first_answer_within(&self, patience: Duration) {
        match self {
            Datastore::Etcd(etcd) => etcd.expect_first_answer_within(patience),
            Datastore::Local(_) => {}
            Datastore::Kubernetes(kubernetes) => kubernetes.expect_first_answer_within(patience),
        }
    }

    /// Returns whether upstream's migration has moved Calico's objects to `projectcalico.org/v3`, asked when this
    /// process has found the ClusterInformation of `crd.projectcalico.org/v1` missing or not ready.
    pub async fn has_moved(&self) -> Result<bool, StoreError> {
        match self {
            Datastore::Kubernetes(kubernetes) => kubernetes.has_moved().await,
            Datastore::Etcd(_) | Datastore::Local(_) => Ok(false),
        }
    }

    /// Returns whether the settings name the API group of Calico's objects.
    pub fn has_configured_group(&self) -> bool {
        matches!(self, Datastore::Kubernetes(kubernetes) if kubernetes.configured_group().is_some())
    }

    /// Reads and writes in `projectcalico.org/v3` from now on, and lets later processes on this node do so. What was
    /// read and written before stays in the other group.
    pub async fn go_on_in_v3(&self) -> Result<(), StoreError> {
        match self {
            Datastore::Kubernetes(kubernetes) => kubernetes.go_on_in_v3().await,
            Datastore::Etcd(_) | Datastore::Local(_) => Ok(()),
        }
    }

    /// Has requests wait in turn with other processes while the API server is busy (429), beyond the time that a
    /// request may take. Other datastores do not say so.
    pub fn wait_while_busy(&self, rule: WhenBusy) {
        if let Datastore::Kubernetes(kubernetes) = self {
            kubernetes.wait_while_busy(rule);
        }
    }

    /// Returns true if the API server was busy, and a request waited for it or failed.
    pub fn was_busy(&self) -> bool {
        matches!(self, Datastore::Kubernetes(kubernetes) if kubernetes.was_busy())
    }

    /// All pairs whose path begins with `prefix`, in path order, as one snapshot.
    pub async fn scan(&self, prefix: &str) -> Result<Vec<RawEntry>, StoreError> {
        match self {
            Datastore::Etcd(etcd) => etcd.scan(prefix).await,
            Datastore::Local(local) => local.scan(prefix),
            Datastore::Kubernetes(_) => Err(StoreError::Other(
                "the Kubernetes datastore keeps objects, not pairs; export it with kubectl get -o yaml".into(),
            )),
        }
    }

    /// Watches a selection of a kind. Nothing is sent before the first event is asked for. `None` on a file, which
    /// cannot be watched.
    pub fn watch<K: Kind>(&self, select: &K::Select) -> Option<CalicoWatch<K>> {
        match self {
            Datastore::Etcd(etcd) => Some(CalicoWatch::Etcd(Box::new(Watch::new(etcd.source(select))))),
            Datastore::Local(_) => None,
            Datastore::Kubernetes(kubernetes) => {
                Some(CalicoWatch::Kubernetes(Box::new(Watch::new(kubernetes.source(select)))))
            }
        }
    }

    /// Walks through a selection of a kind, page by page. Nothing is sent before the first page is asked for.
    pub fn pages<K: Kind>(&self, select: K::Select) -> Pages<'_, K> {
        Pages::of(self, select)
    }

    /// Makes the datastore usable: adds ClusterInformation and the built-in tiers where they are missing (DS-51).
    /// A new file does so by itself.
    pub async fn ensure_initialized(&self) -> Result<(), StoreError> {
        first_use::ensure_initialized(self, "").await
    }

    /// The same, and notes that Kubernetes runs the cluster: `k8s`, with `kdd` where its API is the datastore (KC-112).
    pub async fn ensure_initialized_for_kubernetes(&self) -> Result<(), StoreError> {
        first_use::ensure_initialized(self, self.cluster_type()).await
    }

    /// Adds the ClusterInformation where there is none, with the same note. Says whether it was added.
    pub async fn ensure_cluster_information(&self) -> Result<bool, StoreError> {
        first_use::ensure_cluster_information(self, self.cluster_type()).await
    }

    fn cluster_type(&self) -> &'static str {
        match self {
            Datastore::Kubernetes(_) => "k8s,kdd",
            Datastore::Etcd(_) | Datastore::Local(_) => "k8s",
        }
    }
}

/// A watch of one of Calico's kinds.
pub enum CalicoWatch<K: Kind> {
    /// In etcd.
    Etcd(Box<Watch<etcd::EtcdSource<K>>>),
    /// In the Kubernetes API.
    Kubernetes(Box<Watch<kubernetes::ApiSource<kubernetes::CalicoObjects<K>>>>),
}

impl<K: Kind> CalicoWatch<K> {
    /// What happens next. Waits for ever while nothing does.
    pub async fn next(&mut self) -> WatchEvent<Entry<K>, K::Key> {
        match self {
            CalicoWatch::Etcd(watch) => watch.next().await,
            CalicoWatch::Kubernetes(watch) => watch.next().await,
        }
    }

    /// Shows how it is doing.
    pub fn meter(&self) -> Meter {
        match self {
            CalicoWatch::Etcd(watch) => watch.meter(),
            CalicoWatch::Kubernetes(watch) => watch.meter(),
        }
    }
}

/// The futures of a remote call are large, and each operation above would hold several of them: they are boxed.
impl Store for Datastore {
    async fn read(&self, batch: &ReadBatch) -> Result<Answers, StoreError> {
        match self {
            Datastore::Etcd(etcd) => Box::pin(etcd.read(batch)).await,
            Datastore::Local(local) => local.read(batch).await,
            Datastore::Kubernetes(kubernetes) => Box::pin(kubernetes.read(batch)).await,
        }
    }

    async fn survey(&self, survey: &Survey, tell: &mut (dyn FnMut(Sighting) + Send)) -> Result<(), StoreError> {
        match self {
            Datastore::Etcd(etcd) => Box::pin(etcd.survey(survey, tell)).await,
            Datastore::Local(local) => local.survey(survey, tell).await,
            Datastore::Kubernetes(kubernetes) => Box::pin(kubernetes.survey(survey, tell)).await,
        }
    }

    fn has_given_up(&self) -> bool {
        matches!(self, Datastore::Kubernetes(kubernetes) if kubernetes.has_given_up())
    }

    fn has_transactions(&self) -> bool {
        match self {
            Datastore::Etcd(etcd) => etcd.has_transactions(),
            Datastore::Local(local) => local.has_transactions(),
            Datastore::Kubernetes(kubernetes) => kubernetes.has_transactions(),
        }
    }

    async fn write(&self, writes: &[Write]) -> Result<Vec<Revision>, WriteError> {
        match self {
            Datastore::Etcd(etcd) => Box::pin(etcd.write(writes)).await,
            Datastore::Local(local) => local.write(writes).await,
            Datastore::Kubernetes(kubernetes) => Box::pin(kubernetes.write(writes)).await,
        }
    }
}

/// Refuses a list that writes one path twice: in a transaction the two have no order (etcd rejects them).
fn check_distinct(writes: &[Write]) -> Result<(), WriteError> {
    for (index, write) in writes.iter().enumerate() {
        if writes[..index].iter().any(|earlier| earlier.path == write.path) {
            let cause = StoreError::Other(format!("two writes to {} in one transaction; send them apart", write.key));
            return Err(WriteError { index, applied: 0, cause });
        }
    }
    Ok(())
}

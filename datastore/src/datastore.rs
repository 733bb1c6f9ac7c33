//! [`Datastore`]: an etcd cluster, a SQLite file or an API server.

use std::sync::Arc;
use std::time::Duration;

use libcalico::api::{ClusterInformation, ObjectKey};
use libcalico::ipam::ListedBlock;
use libcalico::kubernetes::Namespace;
use libcalico::store::{
    Answers, EndpointForm, Entry, Kind, ProfileOrigin, RawEntry, ReadBatch, Revision, Sharing,
    Store, StoreError, Survey, Write, WriteError, WriteModel,
};

use crate::Local;
use crate::bootstrap::{self, CLUSTER_TYPE_OF_API_SERVER, InitialObjects};
use crate::cluster_store::ClusterStore;
use crate::config::{ConfigError, DatastoreConfig};
use crate::etcd::{Etcd, EtcdSource};
use crate::kubernetes::{API_GROUP_FILE, ApiSource, BusyRule, CalicoObjects, Kubernetes};
use crate::pairs::prefix_range;
use crate::watch::{StatsHandle, WatchEvent, Watcher};

/// A namespace that every cluster has from its creation and never deletes.
const FIRST_NAMESPACE: &str = "kube-system";
const NO_PAIRS: &str =
    "the Kubernetes datastore has no key-value pairs; export objects with kubectl get -o yaml";

/// The datastore of this process.
#[derive(Debug)]
pub enum Datastore {
    /// An etcd cluster.
    Etcd(Box<Etcd>),
    /// A SQLite file on this node.
    Local(Local),
    /// An API server.
    Kubernetes(Arc<Kubernetes>),
}

/// Evaluates the same expression for the store of each variant.
macro_rules! each_store {
    ($datastore:expr, $store:ident => $call:expr) => {
        match $datastore {
            Datastore::Etcd($store) => $call,
            Datastore::Local($store) => $call,
            Datastore::Kubernetes($store) => $call,
        }
    };
}

impl Datastore {
    /// Prepares the datastore that `config` describes. Sends no request and opens no database.
    pub fn open(config: &DatastoreConfig) -> Result<Self, ConfigError> {
        Ok(match config {
            DatastoreConfig::Etcd(config) => Self::Etcd(Box::new(Etcd::new(config)?)),
            DatastoreConfig::Local(config) => Self::Local(Local::open(config)?),
            DatastoreConfig::Kubernetes(config) => {
                Self::Kubernetes(Arc::new(Kubernetes::new(config, API_GROUP_FILE)))
            }
        })
    }

    /// Does the same as [`open`](Self::open), but uses no API group that an earlier process on this
    /// node found. After a migration to `projectcalico.org/v3`, that group may still be v1.
    pub fn open_uncached(config: &DatastoreConfig) -> Result<Self, ConfigError> {
        match config {
            DatastoreConfig::Kubernetes(config) => {
                Ok(Self::Kubernetes(Arc::new(Kubernetes::uncached(config))))
            }
            DatastoreConfig::Etcd(_) | DatastoreConfig::Local(_) => Self::open(config),
        }
    }

    /// Returns all pairs whose path begins with `prefix`, in path order, as one snapshot. Fails for
    /// an API server.
    pub async fn scan(&self, prefix: &str) -> Result<Vec<RawEntry>, StoreError> {
        let ranges = [prefix_range(prefix)];
        let pairs = match self {
            Datastore::Etcd(etcd) => etcd.read_ranges(&ranges).await?,
            Datastore::Local(local) => local.read_ranges(&ranges)?,
            Datastore::Kubernetes(_) => return Err(StoreError::Other(NO_PAIRS.into())),
        };
        Ok(pairs.into_iter().flatten().collect())
    }

    /// Passes the pairs of [`scan`](Self::scan) to `on_pair`. Those of a file are read one by one.
    pub async fn for_each_pair(
        &self,
        prefix: &str,
        on_pair: &mut (dyn FnMut(&RawEntry) + Send),
    ) -> Result<(), StoreError> {
        match self {
            Datastore::Local(local) => local.for_each_pair(prefix, on_pair),
            Datastore::Etcd(_) | Datastore::Kubernetes(_) => {
                // Each pair is freed after its use.
                self.scan(prefix)
                    .await?
                    .into_iter()
                    .for_each(|pair| on_pair(&pair));
                Ok(())
            }
        }
    }

    /// Passes the stored pair of each selected object to `on_pair`, as one snapshot. Reads those of
    /// a file one by one.
    pub async fn for_each_object<K: Kind>(
        &self,
        select: &K::Select,
        on_pair: &mut (dyn FnMut(&RawEntry) + Send),
    ) -> Result<(), StoreError> {
        if let Datastore::Local(local) = self {
            return local.for_each_pair(&K::prefix(select), on_pair);
        }
        let mut batch = ReadBatch::new();
        let objects = batch.list::<K>(select);
        self.read(&batch)
            .await?
            .raw_entries(&objects)
            .iter()
            .for_each(on_pair);
        Ok(())
    }

    /// Watches a selection of a kind. Returns `None` for a file, which cannot be watched.
    pub fn watch<K: Kind>(&self, select: &K::Select) -> Option<CalicoWatcher<K>> {
        match self {
            Datastore::Etcd(etcd) => Some(CalicoWatcher::Etcd(Box::new(Watcher::new(
                etcd.source(select),
            )))),
            Datastore::Local(_) => None,
            Datastore::Kubernetes(api) => Some(CalicoWatcher::Kubernetes(Box::new(Watcher::new(
                api.source(select),
            )))),
        }
    }

    /// Creates missing objects that Calico needs. Records in the ClusterInformation if an API
    /// server is the datastore (DS-52). See [`bootstrap::ensure_initialized`].
    pub async fn ensure_initialized(&self) -> Result<(), StoreError> {
        let cluster_type = if matches!(self, Datastore::Kubernetes(_)) {
            CLUSTER_TYPE_OF_API_SERVER
        } else {
            ""
        };
        bootstrap::ensure_initialized(self, cluster_type, InitialObjects::All).await
    }

    /// Does the same as [`ensure_initialized`](Self::ensure_initialized) for these objects, and
    /// records in the ClusterInformation that Kubernetes runs the cluster (KC-112).
    pub async fn ensure_initialized_for_kubernetes(
        &self,
        objects: InitialObjects,
    ) -> Result<(), StoreError> {
        bootstrap::ensure_initialized(self, self.cluster_type(), objects).await
    }

    /// Creates the ClusterInformation if it is missing. Returns true if the object was created.
    pub async fn ensure_cluster_information(&self) -> Result<bool, StoreError> {
        bootstrap::ensure_cluster_information(self, self.cluster_type()).await
    }

    fn cluster_type(&self) -> &'static str {
        if matches!(self, Datastore::Kubernetes(_)) {
            "k8s,kdd"
        } else {
            "k8s"
        }
    }
}

impl ClusterStore for Datastore {
    async fn identity(&self) -> Result<Option<String>, StoreError> {
        let (kind, id) = match self {
            Datastore::Kubernetes(api) => {
                let namespace = api
                    .get::<Namespace>(&ObjectKey::global(FIRST_NAMESPACE))
                    .await?;
                ("kubernetes", namespace.value.metadata.uid)
            }
            Datastore::Etcd(etcd) => {
                let cluster = etcd
                    .get::<ClusterInformation>(&ObjectKey::global("default"))
                    .await?;
                ("etcd", cluster.value.spec.cluster_guid)
            }
            Datastore::Local(local) => ("local", local.identity()?),
        };
        Ok((!id.is_empty()).then(|| format!("{kind} {id}")))
    }

    fn requests(&self) -> u64 {
        each_store!(self, store => store.requests())
    }

    fn expect_first_answer_within(&self, patience: Duration) {
        match self {
            Datastore::Etcd(etcd) => etcd.deadline.expect_first_answer_within(patience),
            Datastore::Local(_) => {}
            Datastore::Kubernetes(kubernetes) => kubernetes.expect_first_answer_within(patience),
        }
    }

    async fn has_migrated_to_v3(&self) -> Result<bool, StoreError> {
        match self {
            Datastore::Kubernetes(kubernetes) => kubernetes.has_migrated_to_v3().await,
            Datastore::Etcd(_) | Datastore::Local(_) => Ok(false),
        }
    }

    async fn has_marked_v1(&self) -> Result<bool, StoreError> {
        match self {
            Datastore::Kubernetes(kubernetes) => kubernetes.has_marked_v1().await,
            Datastore::Etcd(_) | Datastore::Local(_) => Ok(false),
        }
    }

    fn has_configured_group(&self) -> bool {
        matches!(self, Datastore::Kubernetes(kubernetes) if kubernetes.configured_group().is_some())
    }

    async fn switch_to_v3(&self) -> Result<(), StoreError> {
        match self {
            Datastore::Kubernetes(kubernetes) => kubernetes.switch_to_v3().await,
            Datastore::Etcd(_) | Datastore::Local(_) => Ok(()),
        }
    }

    fn wait_while_busy(&self, rule: BusyRule) {
        if let Datastore::Kubernetes(kubernetes) = self {
            kubernetes.wait_while_busy(rule);
        }
    }

    fn was_busy(&self) -> bool {
        matches!(self, Datastore::Kubernetes(kubernetes) if kubernetes.was_busy())
    }

    async fn find_alarm(&self) -> Option<StoreError> {
        match self {
            Datastore::Etcd(etcd) => Box::pin(etcd.find_alarm()).await,
            Datastore::Local(_) | Datastore::Kubernetes(_) => None,
        }
    }
}

/// A watch of one of Calico's kinds.
pub enum CalicoWatcher<K: Kind> {
    /// A watch of etcd.
    Etcd(Box<Watcher<EtcdSource<K>>>),
    /// A watch of the API server.
    Kubernetes(Box<Watcher<ApiSource<CalicoObjects<K>>>>),
}

impl<K: Kind> CalicoWatcher<K> {
    /// Returns the next event, and waits until there is one. Retries all failures.
    pub async fn next(&mut self) -> WatchEvent<Entry<K>, K::Key> {
        match self {
            CalicoWatcher::Etcd(watch) => watch.next().await,
            CalicoWatcher::Kubernetes(watch) => watch.next().await,
        }
    }

    /// Returns a handle to the statistics of the watch.
    pub fn stats(&self) -> StatsHandle {
        match self {
            CalicoWatcher::Etcd(watch) => watch.stats(),
            CalicoWatcher::Kubernetes(watch) => watch.stats(),
        }
    }
}

/// The futures are boxed, because those of remote calls are large.
impl Store for Datastore {
    async fn read(&self, batch: &ReadBatch) -> Result<Answers, StoreError> {
        each_store!(self, store => Box::pin(store.read(batch)).await)
    }

    async fn survey(
        &self,
        survey: &Survey,
        on_block: &mut (dyn FnMut(ListedBlock) + Send),
    ) -> Result<(), StoreError> {
        each_store!(self, store => Box::pin(store.survey(survey, on_block)).await)
    }

    fn has_given_up(&self) -> bool {
        matches!(self, Datastore::Kubernetes(kubernetes) if kubernetes.has_given_up())
    }

    fn write_model(&self) -> WriteModel {
        each_store!(self, store => store.write_model())
    }

    fn endpoint_form(&self) -> EndpointForm {
        each_store!(self, store => store.endpoint_form())
    }

    fn profile_origin(&self) -> ProfileOrigin {
        each_store!(self, store => store.profile_origin())
    }

    fn sharing(&self) -> Sharing {
        each_store!(self, store => store.sharing())
    }

    async fn write(&self, writes: &[Write]) -> Result<Vec<Revision>, WriteError> {
        each_store!(self, store => Box::pin(store.write(writes)).await)
    }
}

#[cfg(test)]
mod tests {
    use libcalico::variables::Variables;

    use super::*;
    use crate::config::DatastoreSettings;

    fn open(variable: (&str, &str)) -> Datastore {
        let lookup = |name: &str| (name == variable.0).then(|| variable.1.to_owned());
        let config =
            DatastoreConfig::new(&DatastoreSettings::default(), Variables::new(&lookup)).unwrap();
        Datastore::open(&config).unwrap()
    }

    #[tokio::test]
    async fn each_datastore_says_where_endpoints_are_and_who_shares_it() {
        let (objects, annotations) = (EndpointForm::Object, EndpointForm::PodAnnotations);
        let (stored, derived) = (ProfileOrigin::Stored, ProfileOrigin::Derived);
        let at_once = WriteModel::Transactional;
        let etcd = ("ETCD_ENDPOINTS", "http://127.0.0.1:2379");
        let api = ("KUBECONFIG", "/kubeconfig");
        for (variable, expected) in [
            (etcd, (at_once, objects, stored, Sharing::Cluster)),
            #[cfg(feature = "local")]
            (
                ("DATASTORE_PATH", "/calico.db"),
                (at_once, objects, stored, Sharing::ThisNode),
            ),
            (
                api,
                (
                    WriteModel::PerObject,
                    annotations,
                    derived,
                    Sharing::Cluster,
                ),
            ),
        ] {
            let store = open(variable);
            let answers = (
                store.write_model(),
                store.endpoint_form(),
                store.profile_origin(),
                store.sharing(),
            );
            assert_eq!(answers, expected, "{variable:?}");
        }
    }
}

//! [`KubernetesApi`]: the access to the API server, for Kubernetes' own objects, such as namespaces
//! and pods. The API server may be the datastore, or a server beside it.

use datastore::config::ClientPlace;
use datastore::{ClusterStore, Datastore, DatastoreConfig};
use libcalico::kubernetes::may_be_virt_launcher;
use libcalico::store::{Answers, ReadBatch, StoreError};
use libcalico::variables::Variables;
use netconf::{Call, CniError, Code, Command, NetConf};
use node_process::process;

use crate::datastore_settings;

/// The access to the API server.
#[derive(Debug)]
pub enum KubernetesApi<S = Datastore> {
    /// The call needs none of these objects, and the datastore is not the API server.
    Unused,
    /// The datastore is the API server.
    Datastore,
    /// The API server is separate from the datastore (CNI-69).
    Separate(S),
}

impl KubernetesApi {
    /// Returns the access that the configuration describes. `is_used` is true if the call reads
    /// Kubernetes' own objects.
    pub fn for_call(
        conf: &NetConf,
        datastore: &DatastoreConfig,
        is_used: bool,
    ) -> Result<Self, CniError> {
        match datastore {
            DatastoreConfig::Etcd(_) | DatastoreConfig::Local(_) if !is_used => {
                Ok(KubernetesApi::Unused)
            }
            DatastoreConfig::Etcd(_)
            | DatastoreConfig::Local(_)
            | DatastoreConfig::Kubernetes(_) => {
                Self::with_environment(conf, datastore, process::variables())
            }
        }
    }

    /// Returns the access that the configuration describes, with these environment variables.
    ///
    /// # Errors
    /// Returns code 7 if a setting is invalid.
    pub fn with_environment(
        conf: &NetConf,
        datastore: &DatastoreConfig,
        variables: Variables<'_>,
    ) -> Result<Self, CniError> {
        match datastore {
            DatastoreConfig::Kubernetes(_) => Ok(KubernetesApi::Datastore),
            DatastoreConfig::Etcd(_) | DatastoreConfig::Local(_) => {
                Self::open_separate(conf, ClientPlace::Node, variables)
            }
        }
    }

    /// Prepares the access to an API server beside the datastore, for a client at `place`. Sends no
    /// request.
    ///
    /// # Errors
    /// Returns code 7 if a setting is invalid.
    pub fn open_separate(
        conf: &NetConf,
        place: ClientPlace,
        variables: Variables<'_>,
    ) -> Result<Self, CniError> {
        let config = datastore_settings::separate_kubernetes(conf, None, variables)?;
        let config = DatastoreConfig::Kubernetes(Box::new(config)).placed(place);
        Datastore::open(&config)
            .map(KubernetesApi::Separate)
            .map_err(|error| CniError::new(Code::INVALID_CONFIG, error.to_string()))
    }
}

impl<S: ClusterStore> KubernetesApi<S> {
    /// Returns the store to read from, or `None` if the call needs no object.
    pub fn reached<'a>(&'a self, datastore: &'a S) -> Option<&'a S> {
        match self {
            KubernetesApi::Unused => None,
            KubernetesApi::Datastore => Some(datastore),
            KubernetesApi::Separate(api) => Some(api),
        }
    }

    /// Returns the API server beside the datastore, or `None` without one.
    pub fn separate(&self) -> Option<&S> {
        match self {
            KubernetesApi::Unused | KubernetesApi::Datastore => None,
            KubernetesApi::Separate(api) => Some(api),
        }
    }

    /// Reads a batch from a separate API server. Returns `None` without one.
    pub async fn read_separate(&self, batch: &ReadBatch) -> Option<Result<Answers, StoreError>> {
        Some(self.separate()?.read(batch).await)
    }

    /// Returns the number of requests sent to a separate API server; zero without one.
    pub fn requests(&self) -> u64 {
        self.separate().map_or(0, S::requests)
    }
}

/// Returns true if a configuration refers to an API server.
pub fn is_configured(conf: &NetConf, datastore: &DatastoreConfig) -> bool {
    let urls = [
        &conf.kubernetes.kubeconfig,
        &conf.kubernetes.k8s_api_root,
        &conf.policy.k8s_api_root,
    ];
    match datastore {
        DatastoreConfig::Kubernetes(_) => true,
        DatastoreConfig::Etcd(_) | DatastoreConfig::Local(_) => {
            conf.policy.policy_type == "k8s" || urls.into_iter().any(|text| !text.is_empty())
        }
    }
}

/// Returns true if a call needs the labels of its pod's namespace, which pools may select
/// (IPAM-36).
pub fn selects_by_namespace(call: &Call, datastore: &DatastoreConfig) -> bool {
    call.command == Command::Add
        && call.args.pod().is_some()
        && is_configured(&call.conf, datastore)
}

/// Returns true if the pod of a call may have a VMI in the API server (IPAM-50).
pub fn may_have_vmi(call: &Call, datastore: &DatastoreConfig) -> bool {
    is_configured(&call.conf, datastore)
        && call
            .args
            .pod()
            .is_some_and(|pod| may_be_virt_launcher(pod.name))
}

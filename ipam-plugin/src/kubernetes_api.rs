//! [`KubernetesApi`]: the access to the Kubernetes API, for Kubernetes' own objects, such as
//! namespaces and pods.

use datastore::{Datastore, DatastoreConfig};
use libcalico::kubernetes::may_be_virt_launcher;
use libcalico::store::{Answers, ReadBatch, Store, StoreError};
use netconf::{Call, CniError, Code, Command, NetConf};

use crate::datastore_settings;

/// The access to the Kubernetes API.
#[derive(Debug)]
pub enum KubernetesApi {
    /// The call needs no object from the API, and the datastore is not the API server.
    Unused,
    /// The datastore is the API server.
    Datastore,
    /// The API server is separate from the datastore (CNI-69).
    Separate(Datastore),
}

impl KubernetesApi {
    /// Returns the access that the configuration describes. `is_used` is true if the call reads
    /// objects from the API.
    pub fn for_call(
        conf: &NetConf,
        datastore: &DatastoreConfig,
        is_used: bool,
    ) -> Result<Self, CniError> {
        if !is_used && !matches!(datastore, DatastoreConfig::Kubernetes(_)) {
            return Ok(KubernetesApi::Unused);
        }
        Self::with_environment(conf, datastore, |name| std::env::var(name).ok())
    }

    /// Returns the access that the configuration describes, with the environment `env`.
    ///
    /// # Errors
    /// Returns code 7 if a setting is invalid.
    pub fn with_environment(
        conf: &NetConf,
        datastore: &DatastoreConfig,
        env: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, CniError> {
        if matches!(datastore, DatastoreConfig::Kubernetes(_)) {
            return Ok(KubernetesApi::Datastore);
        }
        let config = datastore_settings::separate_kubernetes(conf, None, env)?;
        let api = Datastore::open(&DatastoreConfig::Kubernetes(Box::new(config)));
        api.map(KubernetesApi::Separate)
            .map_err(|error| CniError::new(Code::INVALID_CONFIG, error.to_string()))
    }

    /// Returns the store to read from, or `None` if the call needs no object.
    pub fn reached<'a>(&'a self, datastore: &'a Datastore) -> Option<&'a Datastore> {
        match self {
            KubernetesApi::Unused => None,
            KubernetesApi::Datastore => Some(datastore),
            KubernetesApi::Separate(api) => Some(api),
        }
    }

    /// Reads a batch from a separate API server. Returns `None` without one.
    pub async fn read_separate(&self, batch: &ReadBatch) -> Option<Result<Answers, StoreError>> {
        let KubernetesApi::Separate(api) = self else {
            return None;
        };
        Some(api.read(batch).await)
    }

    /// Returns the number of requests sent to a separate API server; zero without one.
    pub fn requests(&self) -> u64 {
        let KubernetesApi::Separate(api) = self else {
            return 0;
        };
        api.requests()
    }
}

/// Returns true if a configuration refers to an API server.
pub fn is_configured(conf: &NetConf, datastore: &DatastoreConfig) -> bool {
    let urls = [
        &conf.kubernetes.kubeconfig,
        &conf.kubernetes.k8s_api_root,
        &conf.policy.k8s_api_root,
    ];
    matches!(datastore, DatastoreConfig::Kubernetes(_))
        || conf.policy.policy_type == "k8s"
        || urls.into_iter().any(|text| !text.is_empty())
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

//! [`Api`]: where the Kubernetes API is, for what a datastore does not have.

use datastore::{Datastore, DatastoreConfig};
use libcalico::kubernetes::may_be_machine;
use libcalico::store::{Answers, ReadBatch, Store, StoreError};
use netconf::{Call, CniError, Code, Command, NetConf};

use crate::datastore_settings;

/// Where it is.
#[derive(Debug)]
pub enum Api {
    /// Nothing is asked there.
    Unasked,
    /// It is the datastore.
    Datastore,
    /// Beside the datastore, which is another (CNI-69).
    Beside(Datastore),
}

impl Api {
    /// Where a configuration has it, if it `is_asked` anything. Reads no file and asks nobody.
    pub fn of(conf: &NetConf, datastore: &DatastoreConfig, is_asked: bool) -> Result<Self, CniError> {
        if matches!(datastore, DatastoreConfig::Kubernetes(_)) {
            return Ok(Api::Datastore);
        }
        if !is_asked {
            return Ok(Api::Unasked);
        }
        Self::with_environment(conf, datastore, |name| std::env::var(name).ok())
    }

    /// Returns the place that a configuration names for a process with this environment. Reads no file and asks nobody.
    ///
    /// # Errors
    /// Code 7: the settings contradict themselves.
    pub fn with_environment(
        conf: &NetConf,
        datastore: &DatastoreConfig,
        env: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, CniError> {
        if matches!(datastore, DatastoreConfig::Kubernetes(_)) {
            return Ok(Api::Datastore);
        }
        let config = datastore_settings::kubernetes_beside(conf, None, env)?;
        let api = Datastore::open(&DatastoreConfig::Kubernetes(Box::new(config)));
        api.map(Api::Beside).map_err(|error| CniError::new(Code::INVALID_CONFIG, error.to_string()))
    }

    /// Whom to ask; nobody when nothing is asked.
    pub fn reached<'a>(&'a self, datastore: &'a Datastore) -> Option<&'a Datastore> {
        match self {
            Api::Unasked => None,
            Api::Datastore => Some(datastore),
            Api::Beside(api) => Some(api),
        }
    }

    /// Answers a batch that is not for the datastore.
    pub async fn read_beside(&self, batch: &ReadBatch) -> Option<Result<Answers, StoreError>> {
        match self {
            Api::Beside(api) => Some(api.read(batch).await),
            Api::Unasked | Api::Datastore => None,
        }
    }

    /// How many requests it got that the datastore did not.
    pub fn requests(&self) -> u64 {
        match self {
            Api::Beside(api) => api.requests(),
            Api::Unasked | Api::Datastore => 0,
        }
    }
}

/// Whether a configuration leads to an API server, be it the datastore or beside it.
pub fn is_there(conf: &NetConf, datastore: &DatastoreConfig) -> bool {
    let told = [&conf.kubernetes.kubeconfig, &conf.kubernetes.k8s_api_root, &conf.policy.k8s_api_root];
    matches!(datastore, DatastoreConfig::Kubernetes(_))
        || conf.policy.policy_type == "k8s"
        || told.into_iter().any(|text| !text.is_empty())
}

/// Whether a call needs the labels of its pod's namespace, which pools' namespace selectors look at (IPAM-36).
pub fn selects_by_namespace(call: &Call, datastore: &DatastoreConfig) -> bool {
    call.command == Command::Add && call.args.pod().is_some() && is_there(&call.conf, datastore)
}

/// Whether the pod of a call may have a virtual machine that the API knows of (IPAM-50).
pub fn knows_machine(call: &Call, datastore: &DatastoreConfig) -> bool {
    is_there(&call.conf, datastore) && call.args.pod().is_some_and(|pod| may_be_machine(pod.name))
}

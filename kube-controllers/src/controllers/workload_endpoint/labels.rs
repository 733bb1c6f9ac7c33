//! What an endpoint says of its pod, and a fingerprint of it.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use libcalico::api::WorkloadEndpoint;
use libcalico::conversion::pod_labels;

/// What an endpoint says of its pod.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Said {
    pub(super) labels: BTreeMap<String, String>,
    pub(super) service_account: String,
}

impl Said {
    /// What it is to say.
    pub(super) fn of_pod(namespace: &str, labels: &BTreeMap<String, String>, service_account: &str) -> Self {
        let labels = pod_labels(namespace, labels, service_account);
        Said { labels, service_account: service_account.into() }
    }

    /// What it says.
    pub(super) fn by(endpoint: &WorkloadEndpoint) -> Self {
        let labels = endpoint.metadata.labels.clone();
        Said { labels, service_account: endpoint.spec.service_account_name.clone() }
    }

    /// Makes the endpoint say this. Labels are replaced, not merged (KC-265); all else stays as it is.
    pub(super) fn put_into(self, endpoint: &mut WorkloadEndpoint) {
        endpoint.metadata.labels = self.labels;
        endpoint.spec.service_account_name = self.service_account;
    }

    /// Equal for what is equal; only within this process.
    pub(super) fn fingerprint(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.hash(&mut hasher);
        hasher.finish()
    }
}

//! The fields of an endpoint that are copied from its pod, and their fingerprint.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use libcalico::api::WorkloadEndpoint;
use libcalico::conversion::pod_labels;

/// The fields of an endpoint that are copied from its pod.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct EndpointLabels {
    pub(super) labels: BTreeMap<String, String>,
    pub(super) service_account: String,
}

impl EndpointLabels {
    /// Returns the desired fields of a pod's endpoint.
    pub(super) fn for_pod(namespace: &str, labels: &BTreeMap<String, String>, service_account: &str) -> Self {
        let labels = pod_labels(namespace, labels, service_account);
        EndpointLabels { labels, service_account: service_account.into() }
    }

    /// Returns the fields of an endpoint.
    pub(super) fn from_endpoint(endpoint: &WorkloadEndpoint) -> Self {
        let labels = endpoint.metadata.labels.clone();
        EndpointLabels { labels, service_account: endpoint.spec.service_account_name.clone() }
    }

    /// Sets the fields in the endpoint. Labels are replaced, not merged (KC-265). All other fields stay as they are.
    pub(super) fn apply_to(self, endpoint: &mut WorkloadEndpoint) {
        endpoint.metadata.labels = self.labels;
        endpoint.spec.service_account_name = self.service_account;
    }

    /// Returns a hash of the fields, which is comparable only within this process.
    pub(super) fn fingerprint(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.hash(&mut hasher);
        hasher.finish()
    }
}

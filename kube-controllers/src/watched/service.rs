//! [`Service`].

use std::collections::BTreeMap;

use libcalico::api::ObjectKey;

use super::Watched;

/// A Service.
#[derive(Debug, Clone, PartialEq)]
pub struct Service {
    /// Namespace and name.
    pub name: ObjectKey,
    /// `metadata.uid`.
    pub uid: String,
    /// `metadata.resourceVersion`, for the write of its status.
    pub resource_version: String,
    /// `metadata.annotations` that Calico reads.
    pub annotations: BTreeMap<String, String>,
    /// `spec`.
    pub spec: k8s_openapi::api::core::v1::ServiceSpec,
    /// `status.loadBalancer`.
    pub load_balancer: Option<k8s_openapi::api::core::v1::LoadBalancerStatus>,
}

impl Watched for Service {
    type Key = ObjectKey;
    const KIND: &'static str = "Service";

    fn key(&self) -> ObjectKey {
        self.name.clone()
    }
}

//! Projections that keep an object's `spec`: [`NetworkPolicy`] and [`Service`].

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{LoadBalancerStatus, ServiceSpec};
use libcalico::api::ObjectKey;
use libcalico::kubernetes::NetworkPolicySpec;
use serde::Deserialize;

use super::{Projection, ProjectionOptions};

/// A Kubernetes network policy.
#[derive(Debug, Clone, PartialEq)]
pub struct NetworkPolicy {
    /// Namespace and name.
    pub name: ObjectKey,
    /// `metadata.uid`.
    pub uid: String,
    /// `spec`.
    pub spec: NetworkPolicySpec,
}

#[derive(Deserialize)]
struct StoredPolicy {
    metadata: PolicyMetadata,
    #[serde(default)]
    spec: NetworkPolicySpec,
}

#[derive(Deserialize)]
struct PolicyMetadata {
    name: String,
    namespace: String,
    uid: String,
}

impl Projection for NetworkPolicy {
    const OBJECT: &'static str = "NetworkPolicy";
    const COLLECTION: &'static str = "/apis/networking.k8s.io/v1/networkpolicies";

    fn name(&self) -> &ObjectKey {
        &self.name
    }

    fn project(json: &str, _: ProjectionOptions) -> Result<Self, serde_json::Error> {
        let StoredPolicy {
            metadata:
                PolicyMetadata {
                    name,
                    namespace,
                    uid,
                },
            spec,
        } = serde_json::from_str(json)?;
        Ok(NetworkPolicy {
            name: ObjectKey::namespaced(namespace, name),
            uid,
            spec,
        })
    }
}

/// A Service.
#[derive(Debug, Clone, PartialEq)]
pub struct Service {
    /// Namespace and name.
    pub name: ObjectKey,
    /// `metadata.uid`.
    pub uid: String,
    /// The annotations whose domain is `projectcalico.org` or a subdomain.
    pub annotations: BTreeMap<String, String>,
    /// `spec`.
    pub spec: ServiceSpec,
    /// `status.loadBalancer`.
    pub load_balancer: Option<LoadBalancerStatus>,
}

#[derive(Deserialize)]
struct StoredService {
    metadata: ServiceMetadata,
    #[serde(default)]
    spec: ServiceSpec,
    #[serde(default)]
    status: ServiceStatus,
}

#[derive(Deserialize)]
struct ServiceMetadata {
    name: String,
    namespace: String,
    uid: String,
    // Required: an object without it is unreadable.
    #[serde(rename = "resourceVersion")]
    _resource_version: String,
    #[serde(default)]
    annotations: Option<BTreeMap<String, String>>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase")]
struct ServiceStatus {
    #[serde(default)]
    load_balancer: Option<LoadBalancerStatus>,
}

impl Projection for Service {
    const OBJECT: &'static str = "Service";
    const COLLECTION: &'static str = "/api/v1/services";

    fn name(&self) -> &ObjectKey {
        &self.name
    }

    fn project(json: &str, _: ProjectionOptions) -> Result<Self, serde_json::Error> {
        let StoredService {
            metadata,
            spec,
            status,
        } = serde_json::from_str(json)?;
        let mut annotations = metadata.annotations.unwrap_or_default();
        annotations.retain(|name, _| has_calico_domain(name));
        Ok(Service {
            name: ObjectKey::namespaced(metadata.namespace, metadata.name),
            uid: metadata.uid,
            annotations,
            spec,
            load_balancer: status.load_balancer,
        })
    }
}

fn has_calico_domain(annotation: &str) -> bool {
    let domain = annotation.split_once('/').map_or("", |(domain, _)| domain);
    domain == "projectcalico.org" || domain.ends_with(".projectcalico.org")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn unrelated_service_annotations_are_dropped() {
        let service = json!({
            "metadata": {
                "name": "web", "namespace": "shop", "uid": "u", "resourceVersion": "9",
                "annotations": {
                    "projectcalico.org/ipv4pools": "[]", "notprojectcalico.org/a": "", "b": "",
                },
            },
            "spec": {"type": "LoadBalancer"},
            "status": {"loadBalancer": {"ingress": [{"ip": "10.0.0.1"}]}},
        });
        let service = Service::project(&service.to_string(), ProjectionOptions::default()).unwrap();
        assert_eq!(
            service.annotations.keys().collect::<Vec<_>>(),
            ["projectcalico.org/ipv4pools"]
        );
        assert_eq!(service.spec.type_.as_deref(), Some("LoadBalancer"));
        assert_eq!(
            service.load_balancer.unwrap().ingress.unwrap()[0]
                .ip
                .as_deref(),
            Some("10.0.0.1")
        );
    }
}

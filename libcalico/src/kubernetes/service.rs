//! [`Service`]: a Service, as far as Calico's addresses for Services depend on it.
//! [`LoadBalancerRequest`]: the rule by which Calico manages the addresses of a Service.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::api::{ObjectKey, ObjectMeta, ObjectSelect};
use crate::store::{Kind, Revision};

/// The annotation of a Service with the IPv4 pools that the Service requests.
pub const IPV4_POOLS: &str = "projectcalico.org/ipv4pools";
/// The annotation of a Service with the IPv6 pools that the Service requests.
pub const IPV6_POOLS: &str = "projectcalico.org/ipv6pools";
/// The annotation of a Service with the addresses that the Service requests.
pub const LOAD_BALANCER_IPS: &str = "projectcalico.org/loadBalancerIPs";

/// The load balancer class of Services that Calico manages with each value of [`AssignIps`].
const CLASS: &str = "calico";
/// The type of the Services that have a load balancer.
const LOAD_BALANCER: &str = "LoadBalancer";

/// The Services of type LoadBalancer that receive addresses from Calico's pools (KC-501).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AssignIps {
    /// All Services, except those with a load balancer class other than `calico`.
    #[default]
    AllServices,
    /// Only Services that request an address, by the load balancer class `calico`, an annotation or
    /// `spec.loadBalancerIP`.
    RequestedServicesOnly,
}

impl AssignIps {
    /// The values of `loadBalancer.assignIPs` in the KubeControllersConfiguration, with their
    /// meaning.
    pub const WORDS: [(&str, AssignIps); 2] = [
        ("AllServices", AssignIps::AllServices),
        ("RequestedServicesOnly", AssignIps::RequestedServicesOnly),
    ];

    /// Returns the meaning of a value of `loadBalancer.assignIPs`, where an empty or missing one is
    /// the default. Returns `None` for an unknown value.
    pub fn of(value: Option<&str>) -> Option<Self> {
        match value.filter(|value| !value.is_empty()) {
            None => Some(AssignIps::default()),
            Some(value) => Self::WORDS
                .iter()
                .find(|(word, _)| *word == value)
                .map(|(_, meaning)| *meaning),
        }
    }
}

/// The fields of a Service of type LoadBalancer by which Calico decides whether to manage its
/// addresses. Empty texts count as missing, except in the class.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LoadBalancerRequest {
    /// `spec.loadBalancerClass`.
    pub class: Option<String>,
    /// The annotation [`IPV4_POOLS`].
    pub pools4: Option<String>,
    /// The annotation [`IPV6_POOLS`].
    pub pools6: Option<String>,
    /// The annotation [`LOAD_BALANCER_IPS`].
    pub addresses: Option<String>,
    /// `spec.loadBalancerIP`.
    pub address: Option<String>,
}

impl LoadBalancerRequest {
    /// Reads the request from the class, the annotations and `spec.loadBalancerIP`.
    pub fn new(
        class: Option<&str>,
        annotations: &BTreeMap<String, String>,
        address: Option<&str>,
    ) -> Self {
        let non_empty =
            |text: Option<&str>| text.filter(|text| !text.is_empty()).map(str::to_owned);
        let annotation = |name: &str| non_empty(annotations.get(name).map(String::as_str));
        LoadBalancerRequest {
            class: class.map(str::to_owned),
            pools4: annotation(IPV4_POOLS),
            pools6: annotation(IPV6_POOLS),
            addresses: annotation(LOAD_BALANCER_IPS),
            address: non_empty(address),
        }
    }

    /// Returns true if the Service requests an address from Calico, by its class or otherwise.
    pub fn requests_address(&self) -> bool {
        let requests = [&self.pools4, &self.pools6, &self.addresses, &self.address];
        self.class.as_deref() == Some(CLASS) || requests.iter().any(|requests| requests.is_some())
    }

    /// Returns true if Calico manages the addresses of the Service (KC-501).
    pub fn is_managed(&self, assign: AssignIps) -> bool {
        match (assign, self.class.as_deref()) {
            (_, Some(CLASS)) => true,
            (_, Some(_)) => false,
            (AssignIps::AllServices, None) => true,
            (AssignIps::RequestedServicesOnly, None) => self.requests_address(),
        }
    }
}

/// A Service.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Service {
    /// The metadata.
    pub metadata: ObjectMeta,
    /// The desired state.
    pub spec: ServiceSpec,
    /// The observed state.
    pub status: ServiceStatus,
}

/// `spec` of a Service.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ServiceSpec {
    /// `ClusterIP` (also when empty), `NodePort`, `LoadBalancer` or `ExternalName`.
    #[serde(rename = "type", skip_serializing_if = "String::is_empty")]
    pub service_type: String,
    /// The class of the load balancer that is to serve the Service.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub load_balancer_class: Option<String>,
    /// The requested address; empty for none.
    #[serde(rename = "loadBalancerIP", skip_serializing_if = "String::is_empty")]
    pub load_balancer_ip: String,
}

/// `status` of a Service.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ServiceStatus {
    /// The load balancer.
    pub load_balancer: ServiceLoadBalancer,
}

/// `status.loadBalancer` of a Service.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ServiceLoadBalancer {
    /// The points at which the load balancer receives traffic.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ingress: Vec<ServiceIngress>,
}

/// A point at which a load balancer receives traffic. A point with a host name alone has no
/// address.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ServiceIngress {
    /// The address; empty for none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub ip: String,
}

impl Service {
    /// Returns namespace and name.
    pub fn key(&self) -> ObjectKey {
        ObjectKey::namespaced(&self.metadata.namespace, &self.metadata.name)
    }

    /// Returns the request for addresses; `None` if the Service is not of type LoadBalancer.
    pub fn load_balancer_request(&self) -> Option<LoadBalancerRequest> {
        let ServiceSpec {
            service_type,
            load_balancer_class,
            load_balancer_ip,
        } = &self.spec;
        (service_type == LOAD_BALANCER).then(|| {
            LoadBalancerRequest::new(
                load_balancer_class.as_deref(),
                &self.metadata.annotations,
                Some(load_balancer_ip.as_str()),
            )
        })
    }

    /// Returns the addresses in the status.
    pub fn published(&self) -> impl Iterator<Item = IpAddr> {
        self.status
            .load_balancer
            .ingress
            .iter()
            .filter_map(|ingress| ingress.ip.parse().ok())
    }
}

/// The prefix of the paths of Services in a read batch.
pub(super) const SERVICES: &str = "/kubernetes/services/";

impl Kind for Service {
    const KIND: &'static str = "Service";
    type Key = ObjectKey;
    type Select = ObjectSelect;

    fn path(key: &ObjectKey) -> String {
        format!(
            "{SERVICES}{}/{}",
            key.namespace.as_deref().unwrap_or_default(),
            key.name
        )
    }

    fn parse_path(path: &str) -> Option<ObjectKey> {
        ObjectKey::parse_namespaced(path.strip_prefix(SERVICES)?)
    }

    fn prefix(select: &ObjectSelect) -> String {
        match &select.namespace {
            Some(namespace) => format!("{SERVICES}{namespace}/{}", select.name_prefix),
            None => SERVICES.to_owned(),
        }
    }

    fn set_revision(&mut self, revision: &Revision) {
        self.metadata.resource_version = revision.resource_version().to_owned();
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::kubernetes::{ApiGroup, Codec, Query};
    use crate::store::{Answers, ReadBatch};

    fn service(spec: Value, annotations: Value) -> Service {
        let metadata =
            json!({"name": "s", "namespace": "n", "uid": "u", "annotations": annotations});
        serde_json::from_value(json!({"metadata": metadata, "spec": spec})).unwrap()
    }

    #[test]
    fn class_and_requested_addresses_decide_if_a_service_is_managed() {
        use AssignIps::{AllServices, RequestedServicesOnly};
        let plain = || json!({"type": "LoadBalancer"});
        let class = |class: &str| json!({"type": "LoadBalancer", "loadBalancerClass": class});
        let asked = || json!({LOAD_BALANCER_IPS: "[\"10.0.0.1\"]"});
        for (spec, annotations, all, requested) in [
            (plain(), json!({}), true, false),
            (plain(), asked(), true, true),
            (plain(), json!({IPV4_POOLS: "[\"p\"]"}), true, true),
            (plain(), json!({IPV6_POOLS: ""}), true, false),
            (
                json!({"type": "LoadBalancer", "loadBalancerIP": "10.0.0.1"}),
                json!({}),
                true,
                true,
            ),
            (class("calico"), json!({}), true, true),
            (class("other"), json!({}), false, false),
            (class("other"), asked(), false, false),
        ] {
            let request = service(spec.clone(), annotations.clone())
                .load_balancer_request()
                .unwrap();
            let managed =
                [AllServices, RequestedServicesOnly].map(|assign| request.is_managed(assign));
            assert_eq!(managed, [all, requested], "{spec} {annotations}");
        }
        assert_eq!(
            service(json!({"type": "NodePort"}), asked()).load_balancer_request(),
            None
        );
    }

    #[test]
    fn words_of_assign_ips_are_read() {
        assert_eq!(AssignIps::of(None), Some(AssignIps::AllServices));
        assert_eq!(AssignIps::of(Some("")), Some(AssignIps::AllServices));
        assert_eq!(
            AssignIps::of(Some("RequestedServicesOnly")),
            Some(AssignIps::RequestedServicesOnly)
        );
        assert_eq!(AssignIps::of(Some("Some")), None);
    }

    #[test]
    fn published_addresses_of_a_service_leave_out_host_names() {
        let mut service = service(json!({"type": "LoadBalancer"}), json!({}));
        let ingress = json!([
            {"hostname": "x.example"}, {"ip": "FD00:0::1"}, {"ip": "10.0.0.1", "ipMode": "VIP"},
        ]);
        service.status =
            serde_json::from_value(json!({"loadBalancer": {"ingress": ingress}})).unwrap();
        let published: Vec<String> = service.published().map(|ip| ip.to_string()).collect();
        assert_eq!(published, ["fd00::1", "10.0.0.1"]);
        assert_eq!(
            Service::parse_path(&Service::path(&service.key())),
            Some(service.key())
        );
    }

    #[test]
    fn services_are_listed_and_decoded_unchanged() {
        let codec = Codec::new(ApiGroup::CrdV1);
        let mut batch = ReadBatch::new();
        let all = batch.list::<Service>(&ObjectSelect::default());
        let one = batch.get::<Service>(&ObjectKey::namespaced("n", "s"));
        let [list, get] = batch.ranges() else {
            panic!("two ranges")
        };
        let Query::List(found) = codec.query(list).unwrap() else {
            panic!("a list")
        };
        assert_eq!(
            (found.url_path().as_str(), found.namespace),
            ("/api/v1/services", None)
        );
        let Query::Get(found) = codec.query(get).unwrap() else {
            panic!("a get")
        };
        assert_eq!(found.url_path(), "/api/v1/namespaces/n/services/s");

        let object = json!({
            "metadata": {"name": "s", "namespace": "n", "uid": "u", "resourceVersion": "5"},
            "spec": {"type": "LoadBalancer", "clusterIP": "10.1.0.1", "ports": [{"port": 80}]},
            "status": {"loadBalancer": {}},
        });
        let entries = |range| {
            codec
                .decode(range, object.clone())
                .map(|decoded| decoded.entry)
                .into_iter()
                .collect()
        };
        let answers = Answers::new(vec![entries(list), entries(get)]);
        let listed = answers.list(&all);
        assert_eq!(listed, [answers.get(&one).unwrap().unwrap()]);
        let service = &listed[0].value;
        assert_eq!(
            (service.key(), service.metadata.resource_version.as_str()),
            (listed[0].key.clone(), "5")
        );
        assert!(service.load_balancer_request().is_some());
    }
}

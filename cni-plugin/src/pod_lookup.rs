//! Reads the pod, its namespace and, for `usePodCidr`, the node from the Kubernetes API, as far as
//! the call needs them. If the API is not the datastore, the plugin queries both at the same time
//! (CNI-69).

use datastore::DatastoreConfig;
use ipam_plugin::kubernetes_api::{KubernetesApi, may_have_vmi, selects_by_namespace};
use libcalico::api::{Node, ObjectKey};
use libcalico::ipam::Labels;
use libcalico::kubernetes::{Namespace, Pod, PodCidrError, PodCidrs};
use libcalico::net::IpVersion;
use libcalico::store::{Answers, GetTicket, ReadBatch, StoreError};
use netconf::{Call, CniError, Code, Command};

use crate::cni_error::store_error;
use crate::ipam::pod_cidr::{self, PodCidrSubnets};
use crate::pod::{PodWithNamespace, no_such_namespace};

#[derive(Debug, Clone, Copy, Default)]
struct PodQueries {
    pod_and_namespace: bool,
    /// Whether to read the namespace for its labels, which the namespace selectors of pools match.
    namespace_labels: bool,
    /// Whether to read the pod because it may belong to a KubeVirt VMI.
    vmi: bool,
    node: bool,
}

/// The pending reads of a call.
#[derive(Debug, Default)]
pub struct PendingPodLookup {
    pod: Option<GetTicket<Pod>>,
    namespace: Option<GetTicket<Namespace>>,
    node: Option<GetTicket<Node>>,
    queries: PodQueries,
}

/// The objects read. A field is `None` if the call does not need it, or if the object is missing
/// and the call works without it.
#[derive(Debug, Default)]
pub struct PodLookup {
    /// The pod and its namespace.
    pub pod: Option<PodWithNamespace>,
    /// The labels of the pod's namespace.
    pub namespace_labels: Option<Labels>,
    /// The values for the placeholders `usePodCidr` and `usePodCidrIPv6`.
    pub subnets: Option<PodCidrSubnets>,
    /// The pod, if it may belong to a KubeVirt VMI.
    pub vmi_pod: Option<Pod>,
}

/// A failure to read the objects.
#[derive(Debug)]
pub enum PodLookupError {
    /// The API did not return the objects for this pod.
    ReadFailed {
        /// Namespace and name.
        pod: String,
        /// The cause.
        cause: StoreError,
    },
    /// The API responded, but an ADD cannot continue: an object is missing or unsuitable.
    Rejected(CniError),
}

impl PodLookupError {
    /// Returns true if the same reads may succeed later; see [`StoreError::is_postponable`].
    pub fn is_postponable(&self) -> bool {
        matches!(self, PodLookupError::ReadFailed { cause, .. } if cause.is_postponable())
    }
}

impl From<PodLookupError> for CniError {
    fn from(error: PodLookupError) -> Self {
        match error {
            PodLookupError::ReadFailed { pod, cause } => store_error(
                &format!("read from the Kubernetes API for pod {pod}"),
                &cause,
            ),
            PodLookupError::Rejected(error) => error,
        }
    }
}

impl From<CniError> for PodLookupError {
    fn from(error: CniError) -> Self {
        PodLookupError::Rejected(error)
    }
}

/// Returns the access to the Kubernetes API that a call needs.
pub fn open_api(call: &Call, datastore: &DatastoreConfig) -> Result<KubernetesApi, CniError> {
    KubernetesApi::for_call(
        &call.conf,
        datastore,
        PodQueries::for_call(call, datastore).is_any(),
    )
}

impl PodQueries {
    fn for_call(call: &Call, datastore: &DatastoreConfig) -> Self {
        // An API server that is the datastore cannot store the endpoint of a missing pod.
        let is_datastore = matches!(datastore, DatastoreConfig::Kubernetes(_));
        // With this policy type the Kubernetes API configures the network of pods, whatever the
        // datastore is.
        let is_configured_by_api = call.conf.policy.policy_type == "k8s";
        let pod_and_namespace = call.args.pod().is_some() && (is_datastore || is_configured_by_api);
        let namespace_labels = call.conf.ipam.is_calico() && selects_by_namespace(call, datastore);
        let vmi = call.conf.ipam.is_calico() && may_have_vmi(call, datastore);
        let node = call.args.pod().is_some() && pod_cidr::is_required(&call.conf.ipam);
        match call.command {
            Command::Add => PodQueries {
                pod_and_namespace,
                namespace_labels,
                vmi,
                node,
            },
            // A pod with the annotation `ipAddrsNoIpam` has addresses that IPAM does not record.
            Command::Check => {
                let pod_and_namespace =
                    pod_and_namespace && call.conf.feature_control.ip_addrs_no_ipam;
                PodQueries {
                    pod_and_namespace,
                    vmi,
                    ..PodQueries::default()
                }
            }
            Command::Del => PodQueries {
                vmi,
                ..PodQueries::default()
            },
            Command::Status | Command::Gc | Command::Version => PodQueries::default(),
        }
    }

    fn is_any(self) -> bool {
        self.pod_and_namespace || self.namespace_labels || self.vmi || self.node
    }
}

impl PendingPodLookup {
    /// Adds the reads for the pod of a call to a batch of the Kubernetes API; none for a plain
    /// container. `node` is the name of the Kubernetes Node unless `kubernetes.node_name` is
    /// configured.
    pub fn add_to(
        batch: &mut ReadBatch,
        call: &Call,
        config: &DatastoreConfig,
        node: &str,
    ) -> Self {
        let Some(pod) = call.args.pod() else {
            return PendingPodLookup::default();
        };
        let queries = PodQueries::for_call(call, config);
        let node = match call.conf.kubernetes.node_name.as_str() {
            "" => node,
            name => name,
        };
        let key = ObjectKey::namespaced(pod.namespace, pod.name);
        PendingPodLookup {
            pod: (queries.pod_and_namespace || queries.vmi).then(|| batch.get(&key)),
            namespace: (queries.pod_and_namespace || queries.namespace_labels)
                .then(|| batch.get(&ObjectKey::global(pod.namespace))),
            node: queries.node.then(|| batch.get(&ObjectKey::global(node))),
            queries,
        }
    }

    /// Returns the objects in the answers. On ADD, fails if an object that the ADD needs is
    /// missing, except a namespace that only [`PodWithNamespace`] needs.
    pub fn resolve(
        &self,
        call: &Call,
        answers: Result<&Answers, StoreError>,
    ) -> Result<PodLookup, PodLookupError> {
        let read_error = |cause: StoreError| {
            let pod = call
                .args
                .pod()
                .map(|pod| format!("{}/{}", pod.namespace, pod.name))
                .unwrap_or_default();
            PodLookupError::ReadFailed { pod, cause }
        };
        let answers = answers.map_err(read_error)?;
        let mut lookup = PodLookup::default();
        let pod = self
            .pod
            .as_ref()
            .map(|ticket| answers.get(ticket))
            .transpose()
            .map_err(read_error)?;
        let pod = match pod {
            Some(None) if call.command == Command::Add => return Err(no_such_pod(call).into()),
            pod => pod.flatten().map(|entry| entry.value),
        };
        lookup.vmi_pod = pod.clone().filter(|_| self.queries.vmi);
        let namespace = self
            .namespace
            .as_ref()
            .map(|ticket| answers.get(ticket))
            .transpose()
            .map_err(read_error)?;
        let namespace = namespace.flatten().map(|entry| entry.value);
        if self.queries.namespace_labels {
            let name = call.args.pod().map(|pod| pod.namespace).unwrap_or_default();
            let namespace = namespace.as_ref().ok_or_else(|| no_such_namespace(name))?;
            lookup.namespace_labels = Some(namespace.metadata.labels.clone());
        }
        if let Some(pod) = pod.filter(|_| self.queries.pod_and_namespace) {
            lookup.pod = Some(PodWithNamespace {
                pod,
                namespace: namespace.unwrap_or_default(),
            });
        }
        if let Some(ticket) = &self.node {
            let node = answers
                .get(ticket)
                .map_err(read_error)?
                .ok_or_else(|| no_such_node(call))?;
            let subnets = PodCidrs::of(&node.value)
                .and_then(|cidrs| PodCidrSubnets::of_node(&call.conf.ipam, &cidrs));
            lookup.subnets = Some(subnets.map_err(|error| no_pod_cidr(&error))?);
        }
        Ok(lookup)
    }
}

fn no_such_pod(call: &Call) -> CniError {
    let (namespace, name) = call
        .args
        .pod()
        .map(|pod| (pod.namespace, pod.name))
        .unwrap_or_default();
    CniError::new(Code::TRY_AGAIN, format!("pods \"{name}\" not found")).with_details(format!(
        "namespace {namespace}: the pod was deleted, or K8S_POD_NAME in CNI_ARGS is wrong"
    ))
}

fn no_such_node(call: &Call) -> CniError {
    let named = match call.conf.kubernetes.node_name.as_str() {
        "" => String::new(),
        name => format!(" \"{name}\""),
    };
    CniError::new(
        Code::TRY_AGAIN,
        format!("nodes{named} not found: usePodCidr needs the podCIDRs of the node"),
    )
    .with_details(
        "set $.kubernetes.node_name to the name of the Kubernetes node; the default is the \
         plugin's node name",
    )
}

fn no_pod_cidr(error: &PodCidrError) -> CniError {
    let details = match error {
        PodCidrError::None { .. } => {
            "usePodCidr needs spec.podCIDRs of the node; run kube-controller-manager with \
             --allocate-node-cidrs"
        }
        PodCidrError::Family {
            version: IpVersion::V4,
            ..
        } => "usePodCidr is IPv4; on a node with IPv6 alone write usePodCidrIPv6 in $.ipam",
        PodCidrError::Family {
            version: IpVersion::V6,
            ..
        } => "usePodCidrIPv6 is IPv6; on a node with IPv4 alone write usePodCidr in $.ipam",
        PodCidrError::OneFamily { .. } => {
            "spec.podCIDRs of the node must have at most one range of each family"
        }
        PodCidrError::Cidr { .. } => "correct spec.podCIDRs of the node",
    };
    CniError::new(Code::TRY_AGAIN, error.to_string()).with_details(details)
}

#[cfg(test)]
mod tests {
    use libcalico::variables::Variables;
    use std::time::Duration;

    use datastore::config::LocalConfig;

    use super::*;

    fn call(verb: &str, keys: &str) -> Call {
        let env = |name: &str| {
            let value = match name {
                "CNI_COMMAND" => verb,
                "CNI_CONTAINERID" | "CNI_IFNAME" => "c1",
                "CNI_ARGS" => "K8S_POD_NAMESPACE=ns;K8S_POD_NAME=p",
                "CNI_NETNS" | "CNI_PATH" => "/x",
                _ => return None,
            };
            Some(value.to_owned())
        };
        let conf = format!(r#"{{"cniVersion":"1.0.0","name":"net","type":"calico"{keys}}}"#);
        netconf::read_call(Variables::new(&env), || Ok(conf.into_bytes())).unwrap()
    }

    #[test]
    fn missing_pod_cidr_comes_with_the_placeholder_of_the_other_family() {
        let node = || "n1".to_owned();
        for (error, way_out) in [
            (PodCidrError::None { node: node() }, "--allocate-node-cidrs"),
            (
                PodCidrError::Family {
                    node: node(),
                    version: IpVersion::V4,
                },
                "write usePodCidrIPv6",
            ),
            (
                PodCidrError::Family {
                    node: node(),
                    version: IpVersion::V6,
                },
                "write usePodCidr ",
            ),
            (
                PodCidrError::OneFamily {
                    node: node(),
                    found: "10.1.0.0/24, 10.2.0.0/24".into(),
                },
                "one range of each",
            ),
        ] {
            assert!(no_pod_cidr(&error).details.contains(way_out), "{error}");
        }
    }

    /// A standalone `calico-ipam` uses the same condition (IPAM-36).
    #[test]
    fn kubeconfig_or_policy_type_requests_the_namespace_labels_on_add() {
        let beside = DatastoreConfig::Local(LocalConfig {
            path: "/x".into(),
            deadline: Duration::ZERO,
        });
        let calico = r#","ipam":{"type":"calico-ipam"}"#;
        for (verb, keys, expected) in [
            ("ADD", r#","kubernetes":{"kubeconfig":"/k"}"#, true),
            ("ADD", r#","policy":{"type":"k8s"}"#, true),
            ("ADD", "", false),
            ("DEL", r#","kubernetes":{"kubeconfig":"/k"}"#, false),
        ] {
            let queries = PodQueries::for_call(&call(verb, &format!("{calico}{keys}")), &beside);
            assert_eq!(queries.namespace_labels, expected, "{verb} {keys}");
            let foreign = PodQueries::for_call(
                &call(verb, &format!(r#","ipam":{{"type":"host-local"}}{keys}"#)),
                &beside,
            );
            assert!(!foreign.namespace_labels, "{verb} {keys}");
        }
    }
}

//! Reads the pod, its namespace and, if its pod CIDRs are needed, the node from the Kubernetes API. If the API is not
//! the datastore, the plugin queries it in addition, at the same time as the datastore (CNI-69).

use datastore::DatastoreConfig;
use ipam_plugin::kubernetes_api::{KubernetesApi, may_have_vmi, selects_by_namespace};
use libcalico::api::{Node, ObjectKey};
use libcalico::ipam::Labels;
use libcalico::kubernetes::{Namespace, Pod, PodCidrError, PodCidrs};
use libcalico::store::{Answers, GetTicket, ReadBatch, StoreError};
use netconf::{Call, CniError, Code, Command};

use crate::cni_error::store_error;
use crate::ipam::pod_cidr::{self, Subnets};
use crate::pod::{Described, no_such_namespace};

/// The objects that a call needs.
#[derive(Debug, Clone, Copy, Default)]
struct Questions {
    /// Whether to read the pod and its namespace, which configure the network of the pod.
    description: bool,
    /// Whether to read the namespace for its labels, which the namespace selectors of pools match.
    labels: bool,
    /// Whether to read the pod because it may belong to a KubeVirt VMI.
    vmi: bool,
    /// Whether to read the node.
    node: bool,
}

/// The pending reads of a call.
#[derive(Debug, Default)]
pub struct Tickets {
    pod: Option<GetTicket<Pod>>,
    namespace: Option<GetTicket<Namespace>>,
    node: Option<GetTicket<Node>>,
    questions: Questions,
}

/// The objects read. A field is `None` if the call does not need it.
#[derive(Debug, Default)]
pub struct Facts {
    /// The pod and its namespace.
    pub described: Option<Described>,
    /// The labels of the pod's namespace.
    pub labels: Option<Labels>,
    /// The values for the placeholders `usePodCidr` and `usePodCidrIPv6`.
    pub subnets: Option<Subnets>,
    /// The pod, if it may belong to a KubeVirt VMI.
    pub machine_pod: Option<Pod>,
}

/// A failure to read the objects.
#[derive(Debug)]
pub enum FactsError {
    /// The API did not return the objects for this pod.
    Unanswered {
        /// Namespace and name.
        pod: String,
        /// The cause.
        cause: StoreError,
    },
    /// The API returned the objects, but an ADD cannot continue with them.
    Refused(CniError),
}

impl FactsError {
    /// Returns true if the same reads may succeed later; see [`StoreError::is_postponable`].
    pub fn is_postponable(&self) -> bool {
        matches!(self, FactsError::Unanswered { cause, .. } if cause.is_postponable())
    }
}

impl From<FactsError> for CniError {
    fn from(error: FactsError) -> Self {
        match error {
            FactsError::Unanswered { pod, cause } => {
                store_error(&format!("read from the Kubernetes API for pod {pod}"), &cause)
            }
            FactsError::Refused(told) => told,
        }
    }
}

impl From<CniError> for FactsError {
    fn from(error: CniError) -> Self {
        FactsError::Refused(error)
    }
}

/// Returns the access to the Kubernetes API that a call needs.
pub fn api_of(call: &Call, datastore: &DatastoreConfig) -> Result<KubernetesApi, CniError> {
    KubernetesApi::for_call(&call.conf, datastore, Questions::of(call, datastore).is_any())
}

impl Questions {
    fn of(call: &Call, datastore: &DatastoreConfig) -> Self {
        // An API server that is the datastore cannot store the endpoint of a missing pod.
        let is_datastore = matches!(datastore, DatastoreConfig::Kubernetes(_));
        let description = call.args.pod().is_some() && (is_datastore || describes_pods(call));
        let labels = call.conf.ipam.is_calico() && selects_by_namespace(call, datastore);
        let vmi = call.conf.ipam.is_calico() && may_have_vmi(call, datastore);
        let node = call.args.pod().is_some() && pod_cidr::is_asked_for(&call.conf.ipam);
        match call.command {
            Command::Add => Questions { description, labels, vmi, node },
            // A pod with the annotation `ipAddrsNoIpam` has addresses that IPAM does not record.
            Command::Check => {
                let description = description && call.conf.feature_control.ip_addrs_no_ipam;
                Questions { description, vmi, ..Questions::default() }
            }
            Command::Del => Questions { vmi, ..Questions::default() },
            Command::Status | Command::Gc | Command::Version => Questions::default(),
        }
    }

    fn is_any(self) -> bool {
        self.description || self.labels || self.vmi || self.node
    }
}

impl Tickets {
    /// Adds the reads of a call on `node` to the batch of the datastore, or to the batch of the API beside it.
    pub fn ask(
        api: &KubernetesApi,
        call: &Call,
        config: &DatastoreConfig,
        node: &str,
        datastore: &mut ReadBatch,
        beside: &mut ReadBatch,
    ) -> Self {
        let batch = match api {
            KubernetesApi::Datastore => datastore,
            KubernetesApi::Beside(_) => beside,
            KubernetesApi::Unused => return Tickets::default(),
        };
        let Some(pod) = call.args.pod() else { return Tickets::default() };
        let questions = Questions::of(call, config);
        let node = match call.conf.kubernetes.node_name.as_str() {
            "" => node,
            name => name,
        };
        let key = ObjectKey::namespaced(pod.namespace, pod.name);
        Tickets {
            pod: (questions.description || questions.vmi).then(|| batch.get(&key)),
            namespace: (questions.description || questions.labels)
                .then(|| batch.get(&ObjectKey::global(pod.namespace))),
            node: questions.node.then(|| batch.get(&ObjectKey::global(node))),
            questions,
        }
    }

    /// Returns the objects in the answers. On ADD, the pod and the node must exist.
    pub fn facts(&self, call: &Call, answers: Result<&Answers, StoreError>) -> Result<Facts, FactsError> {
        let unreadable = |cause: StoreError| unanswered(call, cause);
        let answers = answers.map_err(unreadable)?;
        let mut facts = Facts::default();
        let pod = self.pod.as_ref().map(|ticket| answers.get(ticket)).transpose().map_err(unreadable)?;
        let pod = match pod {
            Some(None) if call.command == Command::Add => return Err(no_such_pod(call).into()),
            found => found.flatten().map(|entry| entry.value),
        };
        facts.machine_pod = pod.clone().filter(|_| self.questions.vmi);
        let namespace = self.namespace.as_ref().map(|ticket| answers.get(ticket)).transpose().map_err(unreadable)?;
        let namespace = namespace.flatten().map(|entry| entry.value);
        if self.questions.labels {
            let name = call.args.pod().map(|pod| pod.namespace).unwrap_or_default();
            let found = namespace.as_ref().ok_or_else(|| no_such_namespace(name))?;
            facts.labels = Some(found.metadata.labels.clone());
        }
        if let Some(pod) = pod.filter(|_| self.questions.description) {
            facts.described = Some(Described { pod, namespace: namespace.unwrap_or_default() });
        }
        if let Some(ticket) = &self.node {
            let node = answers.get(ticket).map_err(unreadable)?.ok_or_else(|| no_such_node(call))?;
            let subnets = PodCidrs::of(&node.value).and_then(|cidrs| Subnets::of_node(&call.conf.ipam, &cidrs));
            facts.subnets = Some(subnets.map_err(|error| no_pod_cidr(&error))?);
        }
        Ok(facts)
    }
}

/// Returns true if the Kubernetes API configures the network of pods, whatever the datastore is.
fn describes_pods(call: &Call) -> bool {
    call.conf.policy.policy_type == "k8s"
}

fn unanswered(call: &Call, cause: StoreError) -> FactsError {
    let pod = call.args.pod().map(|pod| format!("{}/{}", pod.namespace, pod.name)).unwrap_or_default();
    FactsError::Unanswered { pod, cause }
}

/// Returns the error for a pod that was deleted while the runtime creates its network.
fn no_such_pod(call: &Call) -> CniError {
    let (namespace, name) = call.args.pod().map(|pod| (pod.namespace, pod.name)).unwrap_or_default();
    CniError::new(Code::TRY_AGAIN, format!("pods \"{name}\" not found"))
        .with_details(format!("namespace {namespace}: the pod was deleted, or K8S_POD_NAME in CNI_ARGS is wrong"))
}

fn no_such_node(call: &Call) -> CniError {
    let named = match call.conf.kubernetes.node_name.as_str() {
        "" => String::new(),
        name => format!(" \"{name}\""),
    };
    CniError::new(Code::TRY_AGAIN, format!("nodes{named} not found: usePodCidr needs the podCIDRs of the node"))
        .with_details(
            "set $.kubernetes.node_name to the name of the Kubernetes node; the default is the plugin's node name",
        )
}

fn no_pod_cidr(error: &PodCidrError) -> CniError {
    CniError::new(Code::TRY_AGAIN, error.to_string()).with_details(
        "usePodCidr needs spec.podCIDRs of the node; run kube-controller-manager with --allocate-node-cidrs",
    )
}

#[cfg(test)]
mod tests {
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
        netconf::read_call(&env, || Ok(conf.into_bytes())).unwrap()
    }

    /// A standalone `calico-ipam` uses the same condition (IPAM-36).
    #[test]
    fn kubeconfig_or_policy_type_requests_the_namespace_labels_on_add() {
        let beside = DatastoreConfig::Local(LocalConfig { path: "/x".into(), deadline: Duration::ZERO });
        let calico = r#","ipam":{"type":"calico-ipam"}"#;
        for (verb, keys, expected) in [
            ("ADD", r#","kubernetes":{"kubeconfig":"/k"}"#, true),
            ("ADD", r#","policy":{"type":"k8s"}"#, true),
            ("ADD", "", false),
            ("DEL", r#","kubernetes":{"kubeconfig":"/k"}"#, false),
        ] {
            let asked = Questions::of(&call(verb, &format!("{calico}{keys}")), &beside);
            assert_eq!(asked.labels, expected, "{verb} {keys}");
            let foreign = Questions::of(&call(verb, &format!(r#","ipam":{{"type":"host-local"}}{keys}"#)), &beside);
            assert!(!foreign.labels, "{verb} {keys}");
        }
    }
}

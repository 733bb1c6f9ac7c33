//! What is asked of the Kubernetes API: the pod, its namespace, and the node where its ranges are wanted. Where the
//! datastore is not that API, it is asked beside the datastore, at the same time (CNI-69).

use datastore::DatastoreConfig;
use ipam_plugin::kubernetes_api::{Api, knows_machine};
use libcalico::api::{Node, ObjectKey};
use libcalico::kubernetes::{Namespace, Pod, PodCidrError, PodCidrs};
use libcalico::store::{Answers, GetTicket, ReadBatch, StoreError};
use netconf::{Call, CniError, Code, Command};

use crate::ipam::pod_cidr::{self, Subnets};
use crate::pod::Described;
use crate::session::{Session, store_error};

/// What is asked.
#[derive(Debug, Clone, Copy, Default)]
struct Questions {
    /// The pod and its namespace: what the network is to be.
    description: bool,
    /// The pod alone: whether a virtual machine runs in it.
    machine: bool,
    /// The node.
    node: bool,
}

/// Where the answers will be.
#[derive(Debug, Default)]
pub struct Tickets {
    pod: Option<GetTicket<Pod>>,
    namespace: Option<GetTicket<Namespace>>,
    node: Option<GetTicket<Node>>,
    machine: bool,
}

/// What the API said, as far as it was asked.
#[derive(Debug, Default)]
pub struct Facts {
    /// The pod and its namespace.
    pub pod: Option<Described>,
    /// What stands for `usePodCidr` and `usePodCidrIPv6`.
    pub subnets: Option<Subnets>,
    /// The pod, if a virtual machine may run in it.
    pub machine_pod: Option<Pod>,
}

/// Where a call finds the API.
pub fn api_of(call: &Call, datastore: &DatastoreConfig) -> Result<Api, CniError> {
    Api::of(&call.conf, datastore, Questions::of(call, datastore).is_any())
}

impl Questions {
    fn of(call: &Call, datastore: &DatastoreConfig) -> Self {
        // As the datastore, the API cannot keep the endpoint of a pod that is not there.
        let is_datastore = matches!(datastore, DatastoreConfig::Kubernetes(_));
        let description = call.args.pod().is_some() && (is_datastore || describes_pods(call));
        let machine = call.conf.ipam.is_calico() && knows_machine(call, datastore);
        let node = call.args.pod().is_some() && pod_cidr::is_asked_for(&call.conf.ipam);
        match call.command {
            Command::Add => Questions { description, machine, node },
            // A pod may have addresses that IPAM does not keep (CNI-122).
            Command::Check => {
                let description = description && call.conf.feature_control.ip_addrs_no_ipam;
                Questions { description, machine, node: false }
            }
            Command::Del => Questions { machine, ..Questions::default() },
            Command::Status | Command::Gc | Command::Version => Questions::default(),
        }
    }

    fn is_any(self) -> bool {
        self.description || self.machine || self.node
    }
}

impl Tickets {
    /// Adds the questions of a call to the batch of whoever answers them.
    pub fn ask(session: &Session, datastore: &mut ReadBatch, beside: &mut ReadBatch) -> Self {
        let batch = match &session.api {
            Api::Datastore => datastore,
            Api::Beside(_) => beside,
            Api::Unasked => return Tickets::default(),
        };
        let call = &session.call;
        let Some(pod) = call.args.pod() else { return Tickets::default() };
        let questions = Questions::of(call, &session.datastore_config);
        let node = match call.conf.kubernetes.node_name.as_str() {
            "" => &session.facts.node,
            name => name,
        };
        let key = ObjectKey::namespaced(pod.namespace, pod.name);
        Tickets {
            pod: (questions.description || questions.machine).then(|| batch.get(&key)),
            namespace: questions.description.then(|| batch.get(&ObjectKey::global(pod.namespace))),
            node: questions.node.then(|| batch.get(&ObjectKey::global(node))),
            machine: questions.machine,
        }
    }

    /// Takes the answers out of what came back. For ADD pod and node must be there.
    pub fn facts(&self, call: &Call, answers: Result<&Answers, StoreError>) -> Result<Facts, CniError> {
        let unreadable = |error: StoreError| unanswered(call, &error);
        let answers = answers.map_err(unreadable)?;
        let mut facts = Facts::default();
        let pod = self.pod.as_ref().map(|ticket| answers.get(ticket)).transpose().map_err(unreadable)?;
        let pod = match pod {
            Some(None) if call.command == Command::Add => return Err(no_such_pod(call)),
            found => found.flatten().map(|entry| entry.value),
        };
        facts.machine_pod = pod.clone().filter(|_| self.machine);
        if let (Some(pod), Some(ticket)) = (pod, &self.namespace) {
            let namespace = answers.get(ticket).map_err(unreadable)?;
            let namespace = namespace.map(|namespace| namespace.value).unwrap_or_default();
            facts.pod = Some(Described { pod, namespace });
        }
        if let Some(ticket) = &self.node {
            let node = answers.get(ticket).map_err(unreadable)?.ok_or_else(|| no_such_node(call))?;
            let subnets = PodCidrs::of(&node.value).and_then(|cidrs| Subnets::of_node(&call.conf.ipam, &cidrs));
            facts.subnets = Some(subnets.map_err(|error| no_pod_cidr(&error))?);
        }
        Ok(facts)
    }
}

/// Whether the Kubernetes API says what a pod's network is to be, whatever the datastore is (CNI-113).
fn describes_pods(call: &Call) -> bool {
    call.conf.policy.policy_type == "k8s"
}

fn unanswered(call: &Call, error: &StoreError) -> CniError {
    let (namespace, name) = call.args.pod().map(|pod| (pod.namespace, pod.name)).unwrap_or_default();
    store_error(&format!("ask the Kubernetes API about pod {namespace}/{name}"), error)
}

/// The runtime networks a pod that was deleted meanwhile.
fn no_such_pod(call: &Call) -> CniError {
    let (namespace, name) = call.args.pod().map(|pod| (pod.namespace, pod.name)).unwrap_or_default();
    CniError::new(Code::TRY_AGAIN, format!("pods \"{name}\" not found"))
        .with_details(format!("namespace {namespace}: the pod was deleted, or K8S_POD_NAME in CNI_ARGS names another"))
}

fn no_such_node(call: &Call) -> CniError {
    let named = match call.conf.kubernetes.node_name.as_str() {
        "" => String::new(),
        name => format!(" \"{name}\""),
    };
    CniError::new(Code::TRY_AGAIN, format!("nodes{named} not found: its podCIDRs replace usePodCidr")).with_details(
        "$.kubernetes.node_name names the node as Kubernetes knows it; without it, it is the plugin's own",
    )
}

fn no_pod_cidr(error: &PodCidrError) -> CniError {
    CniError::new(Code::TRY_AGAIN, error.to_string()).with_details(
        "usePodCidr needs spec.podCIDRs of the node; kube-controller-manager gives them with --allocate-node-cidrs",
    )
}

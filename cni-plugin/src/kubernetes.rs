//! What an ADD asks of the Kubernetes API: the pod, its namespace, and the node where its ranges are wanted. Where the
//! datastore is not that API, it is asked beside the datastore, at the same time (CNI-69).

use datastore::{Datastore, DatastoreConfig};
use ipam_plugin::datastore_settings;
use libcalico::api::{Node, ObjectKey};
use libcalico::kubernetes::{Namespace, Pod, PodCidrError, PodCidrs};
use libcalico::store::{Answers, GetTicket, ReadBatch, Store, StoreError};
use netconf::{Call, CniError, Code, Command};

use crate::ipam::pod_cidr::{self, Subnets};
use crate::pod::Described;
use crate::session::store_error;

/// Where the Kubernetes API is.
#[derive(Debug)]
pub enum Api {
    /// Nothing is asked there.
    Unasked,
    /// It is the datastore.
    Datastore,
    /// Beside the datastore, which is another.
    Beside(Datastore),
}

/// Where its answers will be.
#[derive(Debug, Default)]
pub struct Tickets {
    pod: Option<(GetTicket<Pod>, GetTicket<Namespace>)>,
    node: Option<GetTicket<Node>>,
}

/// What it said, as far as it was asked.
#[derive(Debug, Default)]
pub struct Facts {
    /// The pod and its namespace.
    pub pod: Option<Described>,
    /// What stands for `usePodCidr` and `usePodCidrIPv6`.
    pub subnets: Option<Subnets>,
}

impl Api {
    /// Where this call finds it. Reads no file and asks nobody.
    pub fn of(call: &Call, datastore: &DatastoreConfig) -> Result<Self, CniError> {
        if matches!(datastore, DatastoreConfig::Kubernetes(_)) {
            return Ok(Api::Datastore);
        }
        let questions = describes_pods(call) || pod_cidr::is_asked_for(&call.conf.ipam);
        if !has_questions(call) || call.args.pod().is_none() || !questions {
            return Ok(Api::Unasked);
        }
        let config = datastore_settings::kubernetes_beside(&call.conf, None)?;
        let api = Datastore::open(&DatastoreConfig::Kubernetes(Box::new(config)));
        api.map(Api::Beside).map_err(|error| CniError::new(Code::INVALID_CONFIG, error.to_string()))
    }

    /// Adds the questions of an ADD to the batch of whoever answers them.
    pub fn ask(&self, call: &Call, node: &str, datastore: &mut ReadBatch, beside: &mut ReadBatch) -> Tickets {
        let batch = match self {
            Api::Datastore => datastore,
            Api::Beside(_) => beside,
            Api::Unasked => return Tickets::default(),
        };
        let Some(pod) = call.args.pod().filter(|_| has_questions(call)) else { return Tickets::default() };
        // As the datastore, the API cannot keep the endpoint of a pod that is not there.
        let pod_matters = matches!(self, Api::Datastore) || describes_pods(call);
        let node = match call.conf.kubernetes.node_name.as_str() {
            "" => node,
            name => name,
        };
        Tickets {
            pod: pod_matters.then(|| {
                let key = ObjectKey::namespaced(pod.namespace, pod.name);
                (batch.get(&key), batch.get(&ObjectKey::global(pod.namespace)))
            }),
            node: pod_cidr::is_asked_for(&call.conf.ipam).then(|| batch.get(&ObjectKey::global(node))),
        }
    }

    /// Answers the questions that are not for the datastore.
    pub async fn read(&self, beside: &ReadBatch) -> Option<Result<Answers, StoreError>> {
        match self {
            Api::Beside(api) => Some(api.read(beside).await),
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

impl Tickets {
    /// Takes the answers out of what came back. Pod and node must be there.
    pub fn facts(&self, call: &Call, answers: Result<&Answers, StoreError>) -> Result<Facts, CniError> {
        let unreadable = |error: StoreError| unanswered(call, &error);
        let answers = answers.map_err(unreadable)?;
        let mut facts = Facts::default();
        if let Some((pod, namespace)) = &self.pod {
            let pod = answers.get(pod).map_err(unreadable)?.ok_or_else(|| no_such_pod(call))?;
            let namespace = answers.get(namespace).map_err(unreadable)?;
            let namespace = namespace.map(|namespace| namespace.value).unwrap_or_default();
            facts.pod = Some(Described { pod: pod.value, namespace });
        }
        if let Some(node) = &self.node {
            let node = answers.get(node).map_err(unreadable)?.ok_or_else(no_such_node)?;
            let subnets = PodCidrs::of(&node.value).and_then(|cidrs| Subnets::of_node(&call.conf.ipam, &cidrs));
            facts.subnets = Some(subnets.map_err(|error| no_pod_cidr(&error))?);
        }
        Ok(facts)
    }
}

/// ADD has. CHECK only where a pod may have addresses that IPAM does not keep (CNI-122).
fn has_questions(call: &Call) -> bool {
    match call.command {
        Command::Add => true,
        Command::Check => call.conf.feature_control.ip_addrs_no_ipam,
        _ => false,
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

fn no_such_node() -> CniError {
    CniError::new(Code::TRY_AGAIN, "the node whose podCIDRs replace usePodCidr is not in the Kubernetes API")
        .with_details("$.kubernetes.node_name names it, else $.nodename")
}

fn no_pod_cidr(error: &PodCidrError) -> CniError {
    CniError::new(Code::TRY_AGAIN, error.to_string())
        .with_details("usePodCidr needs spec.podCIDRs of the node: kube-controller-manager gives them with --allocate-node-cidrs")
}

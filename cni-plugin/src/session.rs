//! [`Session`]: one invocation with everything its verb needs, opened once and handed down.

use std::collections::BTreeMap;

use datastore::{Datastore, DatastoreConfig};
use futures::future::join;
use ipam_plugin::ahead::{self, Ahead, EarlyHandle};
use ipam_plugin::clock::SystemClock;
use ipam_plugin::cni::IpamCall;
use ipam_plugin::journal::{self, Journal};
use ipam_plugin::kubernetes_api::Api;
use ipam_plugin::prelude::Prelude;
use ipam_plugin::release::ReleasePrelude;
use ipam_plugin::{busy_server, datastore_settings, node_name};
use libcalico::api::{ClusterInformation, ObjectKey, Profile, WorkloadEndpoint};
use libcalico::conversion::{ContainerFacts, EndpointFacts, Orchestrator, PodFacts};
use libcalico::ipam::HandleId;
use libcalico::kubernetes::{MachinePod, Pod};
use libcalico::names::InterfaceAlias;
use libcalico::store::{Answers, Entry, ReadBatch, Store, StoreError};
use libcalico::validation::ValidationError;
use netconf::conf::DatastoreType;
use netconf::{Call, CniError, Code, Command, NetConf};
use tokio::time::Instant;

use crate::dataplane::Before;
use crate::del;
use crate::endpoint::Listing;
use crate::ipam::{self, pod_cidr::Subnets};
use crate::kubernetes;
use crate::migration;
use crate::status;
use crate::timings::Timings;

/// One invocation.
#[derive(Debug)]
pub struct Session {
    /// The decoded call.
    pub call: Box<Call>,
    /// Who is networked: node, container or pod, interface. A DEL has no node where nothing tells the name.
    pub facts: EndpointFacts,
    /// What an ADD writes for `usePodCidr`; it is known after the first read.
    pub subnets: Option<Subnets>,
    /// The virtual machine in the pod, if it keeps its addresses; it is known soon after that read.
    pub machine: Option<MachinePod>,
    /// The annotations of the pod, for a dataplane behind gRPC; empty for the kernel's, and before the first read.
    pub pod_annotations: BTreeMap<String, String>,
    /// The interface that had the name of the host's end when the ADD began; it is known after the first read.
    pub before: Before,
    /// How to reach the datastore; also names it in the journal.
    pub datastore_config: DatastoreConfig,
    /// The datastore, not yet contacted.
    pub store: Datastore,
    /// The Kubernetes API, not yet contacted either.
    pub api: Api,
    /// Until when requests wait for an API server that is busy.
    pub busy_until: Instant,
    /// What earlier DELs still owe.
    pub journal: Journal,
    /// Stage clock.
    pub timings: Timings,
}

impl Session {
    /// Finds out which node this is, and prepares the datastore without contacting it.
    pub fn open(call: Box<Call>, timings: Timings) -> Result<Self, CniError> {
        let node = match call.command {
            Command::Del => del::node_of(&call.conf),
            Command::Add | Command::Status => {
                ensure_nodename_file(&call.conf)?;
                node_name::of(&call.conf)?
            }
            Command::Check | Command::Gc | Command::Version => node_name::of(&call.conf)?,
        };
        let deadline = (call.command == Command::Status).then_some(status::DEADLINE);
        let datastore_config = datastore_settings::of(&call.conf, deadline)?;
        let store = Datastore::open(&datastore_config)
            .map_err(|error| CniError::new(Code::INVALID_CONFIG, error.to_string()))?;
        let api = kubernetes::api_of(&call, &datastore_config)?;
        let mut busy_until = Instant::now();
        match call.command {
            Command::Del => del::hurry(&store, &api),
            command => busy_until += busy_server::longest_wait(command),
        }
        busy_server::wait_until(busy_until, &store, &api);
        if call.command == Command::Add && matches!(api, Api::Datastore) {
            // It keeps endpoints of pods only: without one, ADD would fail at its last step.
            call.args.require_pod()?;
        }
        let facts = facts_of(&call, node);
        let journal = Journal::new(journal::DEFAULT_DIRECTORY);
        Ok(Session {
            call,
            facts,
            subnets: None,
            machine: None,
            pod_annotations: BTreeMap::new(),
            before: Before::Unknown,
            datastore_config,
            store,
            api,
            busy_until,
            journal,
            timings,
        })
    }
}

/// Fails until calico-node has started on this node and written the nodename file, even when the name comes from
/// elsewhere (CNI-71). The embedded datastore works without calico-node, so nobody writes it there.
pub fn ensure_nodename_file(conf: &NetConf) -> Result<(), CniError> {
    let node = &conf.node;
    if node.nodename_file_optional || conf.datastore.kind() == DatastoreType::Local {
        return Ok(());
    }
    std::fs::metadata(&node.nodename_file).map(drop).map_err(|error| {
        CniError::new(Code::TRY_AGAIN, format!("nodename file {}: {error}", node.nodename_file)).with_details(
            "check that the calico/node container is running and has mounted /var/lib/calico/; \
             without calico-node set \"nodename_file_optional\": true",
        )
    })
}

/// Who is networked. A pod, when CNI_ARGS names one (CNI-31); its labels and ports come from the Kubernetes API, which
/// only a configuration with `policy.type` `k8s` asks.
fn facts_of(call: &Call, node: String) -> EndpointFacts {
    let orchestrator = match call.args.pod() {
        Some(pod) => Orchestrator::Kubernetes(PodFacts {
            namespace: pod.namespace.into(),
            name: pod.name.into(),
            ..PodFacts::default()
        }),
        None => {
            let mut container = ContainerFacts::new(&call.conf.name);
            if !call.args.test_namespace.is_empty() {
                container.namespace = call.args.test_namespace.clone();
            }
            // Every verb: a label may name the namespace, where DEL must look too (CNI-260).
            let labels = &call.conf.args.mesos.network_info.labels.labels;
            container.add_mesos_labels(labels.iter().map(|label| (label.key.as_str(), label.value.as_str())));
            Orchestrator::Cni(container)
        }
    };
    EndpointFacts { node, container_id: call.container_id.clone(), endpoint: call.ifname.clone(), orchestrator }
}

/// What a verb needs to know beside the cluster's state, asked for in the same batch.
#[derive(Debug, Clone, Copy)]
pub enum Question<'a> {
    /// Nothing more.
    Cluster,
    /// The endpoint and the profile.
    Endpoint,
    /// These, and what the allocator needs first, some of which may be done ahead.
    Assign(&'a IpamCall, Option<&'a Ahead>),
    /// What the allocator needs first, for a call without a container.
    Allocator(&'a IpamCall),
    /// The endpoint, and what these handles hold.
    Release(&'a [HandleId]),
}

impl Question<'_> {
    fn without_ahead(self) -> Self {
        match self {
            Question::Assign(call, _) => Question::Assign(call, None),
            other => other,
        }
    }
}

/// What the datastore says about the cluster and this endpoint.
#[derive(Debug)]
pub struct Known {
    /// The switch that stops all plugins.
    pub cluster: Option<Entry<ClusterInformation>>,
    /// Endpoints of this container or pod on this node, whatever their interface.
    pub endpoints: Vec<Entry<WorkloadEndpoint>>,
    /// The same, as far as they list addresses, for a DEL; `None` where that could not be read.
    pub listings: Option<Vec<Listing>>,
    /// The profile named after the network, if asked for.
    pub profile: Option<Entry<Profile>>,
    /// What the allocator needs first, if asked for.
    pub assign: Option<Prelude>,
    /// What the handles hold, if asked for.
    pub release: Option<ReleasePrelude>,
    /// What the Kubernetes API says. An error when an ADD's pod or node is not there, or when it is not the datastore
    /// and did not answer.
    pub kubernetes: Result<kubernetes::Facts, kubernetes::FactsError>,
    /// Whether Calico's objects moved to `projectcalico.org/v3`, and the configuration names the other group.
    pub has_moved: bool,
}

impl Session {
    /// Reads all that a verb needs before it acts, in one batch.
    pub async fn read(&self, question: Question<'_>) -> Result<Box<Known>, CniError> {
        self.try_read(question).await.map_err(|error| reading_cluster(&error))
    }

    /// As [`Session::read`], for a caller that must tell a datastore out of reach from one that refuses. Where
    /// upstream's migration has locked the objects that this call read, and moved them to `projectcalico.org/v3`, the
    /// call goes on there, unless the configuration names the other group.
    pub async fn try_read(&self, question: Question<'_>) -> Result<Box<Known>, StoreError> {
        let mut known = self.read_once(question).await?;
        match known.is_ready() || !Box::pin(migration::follow(&self.store, question, &mut known)).await? {
            true => Ok(known),
            false => self.read_once(question.without_ahead()).await,
        }
    }

    async fn read_once(&self, question: Question<'_>) -> Result<Box<Known>, StoreError> {
        let mut batch = ReadBatch::new();
        let cluster = batch.get::<ClusterInformation>(&cluster_key());
        let endpoints = match (question, self.facts.select()) {
            (Question::Cluster | Question::Allocator(_), _) | (_, Err(_)) => None,
            (_, Ok(select)) => Some(batch.list::<WorkloadEndpoint>(&select)),
        };
        // The same request as the endpoint's.
        let pod = match (question, &self.facts.orchestrator) {
            (Question::Release(_), Orchestrator::Kubernetes(pod)) if self.is_on_kubernetes() => {
                Some(batch.get::<Pod>(&ObjectKey::namespaced(pod.namespace.clone(), pod.name.clone())))
            }
            _ => None,
        };
        let profile = match question {
            Question::Endpoint | Question::Assign(..) => {
                Some(batch.get::<Profile>(&ObjectKey::global(&self.call.conf.name)))
            }
            Question::Cluster | Question::Allocator(_) | Question::Release(_) => None,
        };
        let assign = match question {
            Question::Assign(call, ahead) => {
                let query = call.prelude_query().sparing(&self.store);
                let query = match ahead {
                    Some(ahead) => ahead.extend(query),
                    None => query,
                };
                Some(Prelude::ask(&mut batch, &query))
            }
            Question::Allocator(call) => Some(Prelude::ask(&mut batch, &call.prelude_query().sparing(&self.store))),
            _ => None,
        };
        let release = match question {
            Question::Release(handles) if !handles.is_empty() => Some(ReleasePrelude::ask(&mut batch, handles)),
            _ => None,
        };

        let mut beside = ReadBatch::new();
        let kubernetes = match question {
            Question::Cluster | Question::Allocator(_) => kubernetes::Tickets::default(),
            _ => kubernetes::Tickets::ask(self, &mut batch, &mut beside),
        };

        let ((answers, early), said) = join(self.answer(question, &batch), self.api.read_beside(&beside)).await;
        let known = answers.and_then(|answers| {
            let found = endpoints.iter().flat_map(|ticket| answers.each(ticket));
            let (endpoints, unreadable): (Vec<_>, Vec<_>) =
                found.filter(|(key, _)| self.facts.owns(&key.name)).map(|(_, found)| found).partition(Result::is_ok);
            let endpoints: Vec<_> = endpoints.into_iter().flatten().collect();
            let listings = match &pod {
                Some(ticket) => answers.get(ticket).ok().and_then(|pod| self.listings_of(pod)),
                None => unreadable.is_empty().then(|| endpoints.iter().cloned().map(Listing::from).collect()),
            };
            Ok(Box::new(Known {
                cluster: answers.get(&cluster)?,
                endpoints,
                listings,
                profile: profile.map(|ticket| answers.get(&ticket)).transpose()?.flatten(),
                assign: assign.map(|tickets| Prelude::from_answers(&answers, &tickets)).transpose()?,
                release: release.map(|tickets| ReleasePrelude::from_answers(&answers, &tickets)).transpose()?,
                kubernetes: match said {
                    Some(said) => kubernetes.facts(&self.call, said.as_ref().map_err(Clone::clone)),
                    None => kubernetes.facts(&self.call, Ok(&answers)),
                },
                has_moved: false,
            }))
        });
        if let Ok(known) = &known {
            self.remember_readiness(question, known);
        }
        let Some(early) = early else { return known };
        match (known, question) {
            (Ok(mut known), _) => {
                if let Some(prelude) = &mut known.assign {
                    early.join(prelude);
                }
                Ok(known)
            }
            (Err(error), Question::Assign(call, _)) => {
                Box::pin(early.forget(&self.store, &SystemClock::start(), call)).await;
                Err(error)
            }
            (Err(error), _) => Err(error),
        }
    }

    /// Has no ADD of the node write ahead from now on if the datastore is not ready.
    fn remember_readiness(&self, question: Question<'_>, known: &Known) {
        if known.is_ready() {
            return;
        }
        match question {
            Question::Assign(call, ahead) => ahead::stop(call, ahead),
            _ => ipam::call_of(self).iter().for_each(|call| ahead::stop(call, None)),
        }
    }

    fn listings_of(&self, pod: Option<Entry<Pod>>) -> Option<Vec<Listing>> {
        pod.map(|pod| Listing::of_pod(pod, &self.facts.node).ok()).into_iter().collect()
    }

    async fn answer(
        &self,
        question: Question<'_>,
        batch: &ReadBatch,
    ) -> (Result<Answers, StoreError>, Option<EarlyHandle>) {
        match question {
            Question::Assign(call, Some(ahead)) => {
                let clock = SystemClock::start();
                let (answers, early) = Box::pin(ahead.read(&self.store, &clock, call, batch)).await;
                (answers, Some(early))
            }
            _ => (self.store.read(batch).await, None),
        }
    }

    /// Has requests wait until then while the API server is busy.
    pub fn wait_while_busy(&mut self, until: Instant) {
        self.busy_until = until;
        busy_server::wait_until(until, &self.store, &self.api);
    }

    /// Does `work` without waiting for an API server that is busy: other processes wait for what it holds.
    pub async fn unless_busy<T>(&self, work: impl Future<Output = T>) -> T {
        busy_server::wait_until(Instant::now(), &self.store, &self.api);
        let done = work.await;
        busy_server::wait_until(self.busy_until, &self.store, &self.api);
        done
    }

    /// Whether the Kubernetes API is the datastore: endpoints are pods' annotations there, and profiles its own.
    pub fn is_on_kubernetes(&self) -> bool {
        matches!(self.api, Api::Datastore)
    }

    /// K8S_POD_UID where endpoints are pods, and have their uid (CNI-223); empty elsewhere, and when it is not said.
    pub fn pod_uid(&self) -> &str {
        self.call.args.pod().filter(|_| self.is_on_kubernetes()).and_then(|pod| pod.uid).unwrap_or_default()
    }

    /// Name of the host's end of the interface (CNI-88, CNI-89).
    pub fn host_ifname(&self) -> String {
        let prefix = std::env::var("FELIX_INTERFACEPREFIX").ok();
        self.facts.host_interface(prefix.as_deref())
    }

    /// What is noted on the host's end of the interface.
    pub fn interface_alias(&self) -> InterfaceAlias {
        let call = &self.call;
        match &self.facts.orchestrator {
            Orchestrator::Cni(_) => InterfaceAlias::for_container(&call.container_id),
            Orchestrator::Kubernetes(pod) => {
                InterfaceAlias::for_pod(&call.conf.name, &pod.namespace, &pod.name, &call.container_id)
            }
        }
    }

    /// The datastore in words, without credentials: what the journal knows it by.
    pub fn datastore_name(&self) -> String {
        journal::name_of(&self.datastore_config)
    }
}

impl Known {
    /// Refuses to work while the cluster is being upgraded, or was never set up (CNI-75, CNI-76).
    pub fn ensure_ready(&self) -> Result<(), CniError> {
        if self.has_moved {
            return Err(migration::way_out());
        }
        let Some(_) = &self.cluster else {
            return Err(no_cluster_information());
        };
        if self.is_ready() {
            return Ok(());
        }
        let reason = "ClusterInformation default has datastoreReady unset or false: an upgrade may be in progress";
        Err(CniError::new(Code::TRY_AGAIN, "Calico is currently not ready to process requests").with_details(reason))
    }

    fn is_ready(&self) -> bool {
        self.cluster.as_ref().is_some_and(|cluster| cluster.value.spec.datastore_ready == Some(true))
    }
}

/// The only ClusterInformation.
pub fn cluster_key() -> ObjectKey {
    ObjectKey::global("default")
}

/// An error of the datastore as the runtime sees it; `doing` completes "cannot …".
pub fn store_error(doing: &str, error: &StoreError) -> CniError {
    let msg = format!("cannot {doing}: {error}");
    match error {
        StoreError::Unavailable { .. } | StoreError::Conflict { .. } => CniError::new(Code::TRY_AGAIN, msg),
        StoreError::DiskFull { .. } => CniError::new(Code::IO, msg),
        _ => CniError::internal(msg),
    }
}

/// Returns the error of a datastore that nobody has set up yet.
fn no_cluster_information() -> CniError {
    reading_cluster(&StoreError::NotFound { key: "ClusterInformation(default)".into() })
}

/// The first read failed: an error of the datastore, told as upstream tells it (CNI-75).
pub fn reading_cluster(error: &StoreError) -> CniError {
    let code = match error {
        StoreError::Unavailable { .. } | StoreError::NotFound { .. } => Code::TRY_AGAIN,
        StoreError::DiskFull { .. } => Code::IO,
        _ => Code::INTERNAL,
    };
    let advice = match error {
        StoreError::NotFound { .. } => "calico-node creates it at its first start; by hand: calico-ipam init",
        _ => "",
    };
    CniError::new(code, format!("error getting ClusterInformation: {error}")).with_details(advice)
}

/// An identifier that no WorkloadEndpoint name can be made of.
pub fn naming_error(reason: &ValidationError) -> CniError {
    CniError::new(Code::INVALID_ENVIRONMENT, format!("error constructing WorkloadEndpoint name: {reason}"))
        .with_details("a node, pod, container id or interface name may not begin or end with '-'")
}

#[cfg(test)]
mod tests;

//! GC: releases what `cni.dev/valid-attachments` does not name (CNI-216), for this network and this node only.
//!
//! One failure does not stop the rest; all are reported together.

use std::collections::{BTreeMap, BTreeSet};

use datastore::Datastore;
use ipam_plugin::cni::Leaked;
use libcalico::api::{ObjectSelect, WorkloadEndpoint};
use libcalico::conversion::{EndpointFacts, Orchestrator, PodFacts};
use libcalico::store::{Entry, ReadBatch, Store, StoreError};
use netconf::{CniError, Code};

use crate::attach::host_link_of;
use crate::dataplane::{self, DataplaneError, Interface, Running, Suspect};
use crate::endpoint::EndpointsOf;
use crate::session::{Question, Session, store_error};
use crate::{ipam, owed};

/// What the runtime says exists.
struct Valid {
    containers: BTreeSet<String>,
    attachments: BTreeSet<(String, String)>,
}

impl Valid {
    fn of(session: &Session) -> Self {
        let named = session.call.conf.valid_attachments.iter().flatten();
        let attachments: BTreeSet<_> = named.map(|a| (a.container_id.clone(), a.ifname.clone())).collect();
        Valid { containers: attachments.iter().map(|(container, _)| container.clone()).collect(), attachments }
    }
}

/// Releases addresses and deletes endpoints whose container the runtime does not know any more.
pub async fn gc(session: &mut Session) -> Result<(), CniError> {
    let known = session.read(Question::Cluster).await?;
    known.ensure_ready()?;
    owed::settle_some(session).await;
    let valid = Valid::of(session);

    let mut failures = Vec::new();
    let leaked = ipam::leaked(session, &valid.containers).await.unwrap_or_else(|error| {
        failures.push(format!("find leaked addresses: {error}"));
        Leaked::default()
    });
    let endpoints = endpoints(session, &leaked).await;
    let mut stale = endpoints.map_err(|error| store_error("list the endpoints", &error))?;
    stale.retain(|entry| is_stale(session, &valid, entry));
    let (interfaces, running) = look(session, &suspects(&valid, &leaked, &stale)).map_err(|error| {
        CniError::new(Code::TRY_AGAIN, format!("nothing is collected: which containers run is not known: {error}"))
    })?;
    let mut staying: BTreeSet<String> = running.iter().map(|running| running.container_id.clone()).collect();
    // As in DEL: no address is given back while an interface still answers for it.
    for interface in interfaces {
        let Interface { container_id, ifname, .. } = interface.clone();
        if !staying.contains(&container_id)
            && let Err(error) = interface.remove()
        {
            failures.push(format!("remove interface {ifname} of container {container_id}: {error}"));
            staying.insert(container_id);
        }
    }
    stale.retain(|entry| !staying.contains(&entry.value.spec.container_id));
    let mut keeping = valid.containers;
    keeping.extend(staying);
    // Nor while an endpoint lists it.
    for entry in stale {
        if let Err(error) = endpoints_of(session, &entry).give_up().await {
            failures.push(format!("delete WorkloadEndpoint {}: {error}", entry.key));
            keeping.insert(entry.value.spec.container_id);
        }
    }
    failures.extend(ipam::gc(session, leaked, &keeping, !running.is_empty()).await);
    failures.extend(running.iter().map(|running| left(session, running)));
    match failures.first() {
        None => Ok(()),
        Some(first) => Err(CniError::new(Code::TRY_AGAIN, format!("garbage collection is incomplete: {first}"))
            .with_details(failures.join("; "))),
    }
}

/// The endpoints to look at. Where they are pods, the plugin may read one by its name and not list them (DS-84): there,
/// those of pods that leaked addresses are noted for. A pod with addresses of a foreign plugin is found by its next ADD.
async fn endpoints(session: &Session, leaked: &Leaked) -> Result<Vec<Entry<WorkloadEndpoint>>, StoreError> {
    if !session.is_on_kubernetes() {
        return session.store.list::<WorkloadEndpoint>(&ObjectSelect::default()).await;
    }
    let of_pod = |(namespace, name): &(String, String)| {
        let pod = PodFacts { namespace: namespace.clone(), name: name.clone(), ..PodFacts::default() };
        EndpointFacts { orchestrator: Orchestrator::Kubernetes(pod), ..session.facts.clone() }.select().ok()
    };
    let mut batch = ReadBatch::new();
    let tickets: Vec<_> =
        leaked.pods().filter_map(of_pod).map(|select| batch.list::<WorkloadEndpoint>(&select)).collect();
    let answers = session.store.read(&batch).await?;
    Ok(tickets.iter().flat_map(|ticket| answers.list(ticket)).collect())
}

/// Whether an endpoint of this node is of this network and of an attachment that is gone. A plain container's endpoint
/// names its network as a profile. A pod's does not: with Kubernetes' policy it is told from its namespace profile, and
/// a node has one network for pods.
///
/// A pod has one endpoint, of the interface that the first ADD was asked for: there the container alone decides.
fn is_stale(session: &Session, valid: &Valid, entry: &Entry<WorkloadEndpoint>) -> bool {
    let spec = &entry.value.spec;
    let attachment = (spec.container_id.clone(), spec.endpoint.clone());
    let is_valid = match spec.orchestrator.as_str() {
        "k8s" => valid.containers.contains(&spec.container_id),
        _ => valid.attachments.contains(&attachment),
    };
    spec.node == session.facts.node
        && !spec.container_id.is_empty()
        && !is_valid
        && (spec.profiles.contains(&session.call.conf.name)
            || (spec.orchestrator == "k8s" && session.call.conf.policy.policy_type == "k8s"))
}

/// Returns the containers whose network is to be taken, with their addresses.
fn suspects(valid: &Valid, leaked: &Leaked, stale: &[Entry<WorkloadEndpoint>]) -> Vec<Suspect> {
    let mut suspects = BTreeMap::<String, Suspect>::new();
    for (container, address) in leaked.held() {
        suspects.entry(container.to_owned()).or_default().held.push(address.ip);
    }
    for entry in stale {
        let (_, listed) = host_link_of(&entry.value.spec);
        suspects.entry(entry.value.spec.container_id.clone()).or_default().listed.extend(listed);
    }
    let named = suspects.into_iter().map(|(container_id, suspect)| {
        let is_named = valid.containers.contains(&container_id);
        Suspect { container_id, is_named, ..suspect }
    });
    named.collect()
}

/// Returns the interfaces of the suspects, and those of the suspects that run. Where the configuration takes containers that run,
/// none is looked for.
fn look(session: &Session, suspects: &[Suspect]) -> Result<(Vec<Interface>, Vec<Running>), DataplaneError> {
    let interfaces = dataplane::interfaces(suspects)?;
    let running = match session.call.conf.feature_control.gc_running_containers {
        true => Vec::new(),
        false => dataplane::running(&interfaces)?,
    };
    Ok((interfaces, running))
}

/// Logs that a container is left, and returns the words for the error.
fn left(session: &Session, running: &Running) -> String {
    let Running { container_id, ifname, process } = running;
    let network = &session.call.conf.name;
    let words = format!(
        "container {container_id} is not in cni.dev/valid-attachments and runs: interface {ifname} has carrier, and process \
         {process} is in its network namespace. It is left alone. If another runtime uses network {network}, name the networks \
         differently; feature_control.gc_running_containers takes its network nevertheless"
    );
    tracing::warn!("{words}");
    words
}

/// The endpoint itself, as long as it is of the container that is gone.
fn endpoints_of<'s>(session: &'s Session, entry: &Entry<WorkloadEndpoint>) -> EndpointsOf<'s, Datastore> {
    let spec = &entry.value.spec;
    let namespace = entry.key.namespace.clone().unwrap_or_default();
    let pod = PodFacts { namespace, name: spec.pod.clone(), ..PodFacts::default() };
    let facts = EndpointFacts {
        node: spec.node.clone(),
        container_id: spec.container_id.clone(),
        endpoint: String::new(),
        orchestrator: Orchestrator::Kubernetes(pod),
    };
    let in_pods = session.is_on_kubernetes();
    // A pod says more than its endpoint does.
    let known = (!in_pods).then(|| vec![entry.clone().into()]);
    EndpointsOf::new(&session.store, in_pods, facts).known(known)
}

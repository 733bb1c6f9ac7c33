//! GC: releases what `cni.dev/valid-attachments` does not name (CNI-216), for this network and this node only.
//!
//! One failure does not stop the rest; all are reported together.

use std::collections::BTreeSet;

use datastore::Datastore;
use ipam_plugin::cni::Leaked;
use libcalico::api::{ObjectSelect, WorkloadEndpoint};
use libcalico::conversion::{EndpointFacts, Orchestrator, PodFacts};
use libcalico::store::{Entry, ReadBatch, Store, StoreError};
use netconf::{CniError, Code};

use crate::attach::host_link_of;
use crate::dataplane::{DataplaneError, Endpoint, HostLinkProof, Teardown};
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
    // As in DEL: no address is given back while an interface still answers for it.
    let mut keeping = valid.containers.clone();
    stale.retain(|entry| {
        let removed = remove_link(entry);
        if let Err(error) = &removed {
            failures.push(format!("remove the interface of WorkloadEndpoint {}: {error}", entry.key));
            keeping.insert(entry.value.spec.container_id.clone());
        }
        removed.is_ok()
    });
    // Nor while an endpoint lists it.
    for entry in stale {
        if let Err(error) = endpoints_of(session, &entry).give_up().await {
            failures.push(format!("delete WorkloadEndpoint {}: {error}", entry.key));
            keeping.insert(entry.value.spec.container_id);
        }
    }
    failures.extend(ipam::gc(session, leaked, &keeping).await);
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
fn is_stale(session: &Session, valid: &Valid, entry: &Entry<WorkloadEndpoint>) -> bool {
    let spec = &entry.value.spec;
    let attachment = (spec.container_id.clone(), spec.endpoint.clone());
    spec.node == session.facts.node
        && !spec.container_id.is_empty()
        && !valid.attachments.contains(&attachment)
        && (spec.profiles.contains(&session.call.conf.name)
            || (spec.orchestrator == "k8s" && session.call.conf.policy.policy_type == "k8s"))
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

/// Removes the host's end of an endpoint's interface, if a route proves it to be this endpoint's.
fn remove_link(entry: &Entry<WorkloadEndpoint>) -> Result<(), DataplaneError> {
    let (host_ifname, addresses) = host_link_of(&entry.value.spec);
    if host_ifname.is_empty() || addresses.is_empty() {
        return Ok(());
    }
    let endpoint = Endpoint {
        netns: None,
        container_ifname: entry.value.spec.endpoint.clone(),
        host_ifname,
        container_id: Some(entry.value.spec.container_id.clone()),
        proof: HostLinkProof::RouteTo(addresses),
    };
    Teardown::start(endpoint).and_then(Teardown::finish).map(drop)
}

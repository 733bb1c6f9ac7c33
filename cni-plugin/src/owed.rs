//! Pays what earlier DELs owe the datastore (design decision 7).

use ipam_plugin::cni::cni_error;
use ipam_plugin::lock::LockError;
use ipam_plugin::logging::Subject;
use libcalico::api::WorkloadEndpoint;
use libcalico::conversion::{ContainerFacts, EndpointFacts, Orchestrator, PodFacts};
use libcalico::names::EndpointIdentifiers;
use libcalico::store::{Store, StoreError};
use netconf::{CniError, Code};
use tracing::{Instrument as _, Span};

use crate::endpoint::EndpointsOf;
use crate::journal::{Debt, JournalError, Locked};
use crate::session::{Question, Session, store_error};
use crate::{ipam, kubevirt};

/// The node in the name of the endpoint of a debt whose DEL could not tell the node.
const UNKNOWN_NODE: &str = "unknown";

/// What this call's DEL owes.
pub fn debt(session: &Session) -> Debt {
    let call = &session.call;
    let mut facts = session.facts.clone();
    if facts.node.is_empty() {
        facts.node = UNKNOWN_NODE.into();
    }
    let endpoint = facts.key().map(|key| (key.namespace.unwrap_or_default(), key.name)).unwrap_or_default();
    Debt {
        network: call.conf.name.clone(),
        container_id: call.container_id.clone(),
        ifname: call.ifname.clone(),
        node: session.facts.node.clone(),
        datastore: session.datastore_name(),
        endpoint,
        pod_uid: session.pod_uid().to_owned(),
        handles: ipam::handles_of(session).iter().map(|handle| handle.as_str().to_owned()).collect(),
    }
}

/// A DEL that reached the datastore owes nothing any more.
pub fn settled(session: &Session) -> Result<(), CniError> {
    let call = &session.call;
    if !session.journal.owes(&call.conf.name, &call.container_id, &call.ifname) {
        return Ok(());
    }
    let locked = session.journal.lock().map_err(journal_error)?;
    locked.settle(&debt(session)).map_err(journal_error)
}

/// Before an ADD: the attachment's own debt must be paid first, or a later replay would take back what ADD gives.
/// Others are paid as far as nobody else does so now. Nothing is written while the datastore is not ready (CNI-76).
pub async fn settle_before_add(session: &Session) -> Result<(), CniError> {
    if session.journal.is_empty() {
        return Ok(());
    }
    session.read(Question::Cluster).await?.ensure_ready()?;
    let call = &session.call;
    if session.journal.owes(&call.conf.name, &call.container_id, &call.ifname) {
        let locked = session.journal.lock().map_err(journal_error)?;
        for owed in locked.debts(&session.datastore_name()) {
            if (&owed.network, &owed.container_id, &owed.ifname) == (&call.conf.name, &call.container_id, &call.ifname)
            {
                pay(session, &locked, &owed).instrument(span_of(session, &owed)).await?;
            }
        }
    }
    settle_some(session).await;
    Ok(())
}

/// Tries to pay a bounded number of entries; failures are logged, and stay for a later time.
pub async fn settle_some(session: &Session) {
    if session.journal.is_empty() {
        return;
    }
    let locked = match session.journal.try_lock() {
        Ok(Some(locked)) => locked,
        Ok(None) => return,
        Err(error) => return tracing::warn!(%error, "journal"),
    };
    locked.remove_abandoned();
    for owed in locked.due(&session.datastore_name()) {
        let span = span_of(session, &owed);
        let Err(error) = pay(session, &locked, &owed).instrument(span.clone()).await else { continue };
        let _of_the_debt = span.entered();
        tracing::warn!(container = %owed.container_id, %error, "a journal entry stays");
        // One that can never be paid must not stand in the way of the others; an outage stops them all.
        if let Err(error) = locked.postpone(&owed) {
            tracing::warn!(%error, "journal");
        }
        if error.code == Code::TRY_AGAIN {
            return;
        }
    }
}

/// The lines of a payment are about the attachment of the debt.
fn span_of(session: &Session, owed: &Debt) -> Span {
    Subject::of_attachment(&facts_of(owed)).span(&session.call.container_id)
}

/// The endpoint first, then the addresses: as in DEL.
async fn pay(session: &Session, locked: &Locked<'_>, owed: &Debt) -> Result<(), CniError> {
    let owed = &owed.clone().or_on_node(&session.facts.node);
    let facts = facts_of(owed);
    let (store, in_pods) = (&session.store, session.is_on_kubernetes());
    let endpoints = EndpointsOf::new(store, in_pods, facts.clone()).or_unnamed(&owed.pod_uid);
    endpoints.give_up().await.map_err(|error| cni_error(&error))?;
    // In Kubernetes a pod has one endpoint, whatever its interface is called.
    let is_shared = !in_pods && has_other_interface(store, &facts).await.map_err(unlisted)?;
    if is_shared {
        tracing::info!(container = %owed.container_id, "it still has another interface, which keeps the addresses");
    } else {
        ipam::release_owed(store, owed, &endpoints).await?;
        Box::pin(kubevirt::settle(session, owed, &endpoints)).await?;
    }
    locked.settle(owed).map_err(journal_error)?;
    tracing::info!(container = %owed.container_id, network = %owed.network, "settled what an earlier DEL could not");
    Ok(())
}

/// The attachment that a debt is of, by the name of its endpoint.
fn facts_of(owed: &Debt) -> EndpointFacts {
    let (namespace, name) = &owed.endpoint;
    let ids = EndpointIdentifiers::parse(name).unwrap_or_default();
    let namespace = namespace.clone();
    let orchestrator = match ids.pod.as_str() {
        "" => Orchestrator::Cni(ContainerFacts { namespace, ..ContainerFacts::new(&owed.network) }),
        pod => Orchestrator::Kubernetes(PodFacts { namespace, name: pod.into(), ..PodFacts::default() }),
    };
    let (node, container_id, endpoint) = (owed.node.clone(), owed.container_id.clone(), owed.ifname.clone());
    EndpointFacts { node, container_id, endpoint, orchestrator }
}

/// Returns true if the container has an endpoint under another interface's name: handle and host's end are named after the
/// container alone, and are that interface's then, as for a DEL that reached the datastore.
async fn has_other_interface<S: Store>(store: &S, facts: &EndpointFacts) -> Result<bool, StoreError> {
    let (Ok(key), Ok(select)) = (facts.key(), facts.select()) else { return Ok(false) };
    let endpoints = store.list::<WorkloadEndpoint>(&select).await?;
    Ok(endpoints.iter().any(|entry| {
        facts.owns(&entry.key.name) && entry.key != key && entry.value.spec.container_id == facts.container_id
    }))
}

fn unlisted(error: StoreError) -> CniError {
    store_error("list the endpoints", &error)
}

fn journal_error(error: JournalError) -> CniError {
    let code = match &error {
        JournalError::Lock(LockError::Busy { .. }) => Code::TRY_AGAIN,
        _ => Code::IO,
    };
    CniError::new(code, error.to_string())
}

#[cfg(test)]
mod tests {
    use datastore::Local;
    use datastore::config::LocalConfig;

    use super::*;

    fn facts(container_id: &str, ifname: &str, orchestrator: Orchestrator) -> EndpointFacts {
        let (node, container_id, endpoint) = ("node1".into(), container_id.into(), ifname.into());
        EndpointFacts { node, container_id, endpoint, orchestrator }
    }

    fn debt_of(facts: &EndpointFacts) -> Debt {
        let key = facts.key().unwrap();
        Debt {
            network: "net1".into(),
            container_id: facts.container_id.clone(),
            ifname: facts.endpoint.clone(),
            node: facts.node.clone(),
            datastore: "local".into(),
            endpoint: (key.namespace.unwrap(), key.name),
            pod_uid: String::new(),
            handles: Vec::new(),
        }
    }

    #[tokio::test]
    async fn a_containers_other_interface_is_seen_and_nothing_else() {
        let directory = tempfile::tempdir().unwrap();
        let config = LocalConfig { path: directory.path().join("db"), deadline: std::time::Duration::from_secs(10) };
        let store = Local::new(&config);
        let plain = || Orchestrator::Cni(ContainerFacts::new("net1"));
        let pod = || {
            let names = PodFacts { namespace: "default".into(), name: "web".into(), ..PodFacts::default() };
            Orchestrator::Kubernetes(names)
        };
        for there in [facts("c1", "eth0", plain()), facts("c1", "eth0", pod())] {
            let endpoint = there.create(&["10.0.0.1".parse().unwrap()]).unwrap();
            store.create(&endpoint.key(), &endpoint).await.unwrap();
        }
        for (owes, expected) in [
            (facts("c1", "eth1", plain()), true),
            (facts("c1", "eth0", plain()), false),
            (facts("c", "eth1", plain()), false),
            (facts("c2", "eth1", plain()), false),
            (facts("c1", "eth1", pod()), true),
            (facts("c1", "eth0", pod()), false),
            (facts("c2", "eth1", pod()), false),
        ] {
            let owed = facts_of(&debt_of(&owes));
            assert_eq!(owed.key(), owes.key());
            assert_eq!(has_other_interface(&store, &owed).await.unwrap(), expected, "{owes:?}");
        }
    }

    #[tokio::test]
    async fn the_endpoint_of_a_successor_that_is_not_networked_yet_stays() {
        let directory = tempfile::tempdir().unwrap();
        let config = LocalConfig { path: directory.path().join("db"), deadline: std::time::Duration::from_secs(10) };
        let store = Local::new(&config);
        let names = PodFacts { namespace: "default".into(), name: "web".into(), ..PodFacts::default() };
        let old = facts("c1", "eth0", Orchestrator::Kubernetes(names));
        let mut endpoint = old.create(&[]).unwrap();
        (endpoint.spec.container_id, endpoint.metadata.uid) = (String::new(), "u2".into());
        store.create(&endpoint.key(), &endpoint).await.unwrap();
        for (pod_uid, left) in [("u1", 1), ("u2", 0)] {
            let owed = Debt { pod_uid: pod_uid.into(), ..debt_of(&old) };
            EndpointsOf::new(&store, false, facts_of(&owed)).or_unnamed(&owed.pod_uid).give_up().await.unwrap();
            let endpoints = store.list::<WorkloadEndpoint>(&old.select().unwrap()).await.unwrap();
            assert_eq!(endpoints.len(), left, "for the pod {pod_uid}");
        }
    }
}

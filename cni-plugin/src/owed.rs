//! Pays what earlier DELs owe the datastore (design decision 7).

mod wanted;

use std::path::PathBuf;
use std::time::Duration;

use datastore::{Datastore, DatastoreConfig};
use ipam_plugin::cni::cni_error;
use ipam_plugin::journal::{Creditor, Debt, JournalError, Locked};
use ipam_plugin::kubernetes_api::Api;
use ipam_plugin::lock::LockError;
use libcalico::api::WorkloadEndpoint;
use libcalico::conversion::{ContainerFacts, EndpointFacts, Orchestrator, PodFacts};
use libcalico::names::EndpointIdentifiers;
use libcalico::store::{Store, StoreError};
use netconf::{CniError, Code, NetConf};
use tokio::time::Instant;

use self::wanted::Wanted;
use crate::endpoint::EndpointsOf;
use crate::session::{Question, Session, store_error};
use crate::{ipam, kubevirt};

/// The node in the name of the endpoint of a debt whose DEL could not tell the node.
const UNKNOWN_NODE: &str = "unknown";

/// How many debts of others a call or a pass of the agent tries: a long outage must not make one pod wait for all others.
pub const MOST: Limit = Limit { debts: 16, time: None };
/// The same for an ADD, whose pod waits: no further debt is begun when this many were tried, or this time is over.
const OF_AN_ADD: Limit = Limit { debts: 2, time: Some(Duration::from_secs(1)) };

/// How much of the journal is paid at a time.
#[derive(Debug, Clone, Copy)]
pub struct Limit {
    debts: usize,
    time: Option<Duration>,
}

/// The datastore that debts are paid to, and what paying needs beside it.
#[derive(Debug)]
pub struct Payer<'a> {
    /// The configuration of the plugins.
    pub conf: &'a NetConf,
    /// How the datastore is reached.
    pub datastore_config: &'a DatastoreConfig,
    /// The datastore.
    pub store: &'a Datastore,
    /// The Kubernetes API.
    pub api: &'a Api,
    /// The node of debts that have none.
    pub node: &'a str,
    /// The datastore as the debts know it.
    pub creditor: Creditor,
}

/// What this call's DEL owes for `reason`.
pub fn debt(session: &Session, reason: &CniError) -> Debt {
    let call = &session.call;
    let mut facts = session.facts.clone();
    if facts.node.is_empty() {
        facts.node = UNKNOWN_NODE.into();
    }
    let endpoint = facts.key().map(|key| (key.namespace.unwrap_or_default(), key.name)).unwrap_or_default();
    // A DEL must not fail on its prevResult.
    let result = call.conf.read_prev_result(call.version).ok().flatten();
    Debt {
        network: call.conf.name.clone(),
        container_id: call.container_id.clone(),
        ifname: call.ifname.clone(),
        node: session.facts.node.clone(),
        datastore: session.datastore_name(),
        identity: String::new(),
        endpoint,
        pod_uid: session.pod_uid().to_owned(),
        handles: ipam::handles_of(session).iter().map(|handle| handle.as_str().to_owned()).collect(),
        addresses: result.map(|result| result.ips.iter().map(|ip| ip.address.addr()).collect()).unwrap_or_default(),
        noted: time::OffsetDateTime::now_utc().unix_timestamp().try_into().unwrap_or_default(),
        reason: printable(reason),
    }
}

fn printable(reason: &CniError) -> String {
    netconf::printable::line(&reason.to_string()).into_owned()
}

impl<'a> Payer<'a> {
    /// Pays as a call of the plugin, whose datastore has answered. The datastore is asked for its identity: what a spelling
    /// reaches today may be another datastore than yesterday.
    async fn of_call(session: &'a Session) -> Payer<'a> {
        let Session { call, datastore_config, store, api, .. } = session;
        let name = session.datastore_name();
        let creditor = creditor(store, name).await;
        Payer { conf: &call.conf, datastore_config, store, api, node: &session.facts.node, creditor }
    }

    /// Tries to pay debts until `limit`; failures are logged, and stay for a later time. Returns how many were paid.
    pub async fn pay_some(&self, locked: &Locked<'_>, limit: Limit) -> usize {
        self.pay_those(locked, limit, |_| false).await
    }

    /// The same, but all that `must` be tried are, and first.
    async fn pay_those(&self, locked: &Locked<'_>, limit: Limit, must: impl Fn(&Debt) -> bool) -> usize {
        let begun = Instant::now();
        let (firsts, others): (Vec<_>, Vec<_>) = self.debts(locked).into_iter().partition(|(_, debt)| must(debt));
        let (mut tried, mut paid, obliged) = (0, 0, firsts.len());
        for (entry, owed) in firsts.into_iter().chain(others) {
            let is_over = tried >= limit.debts || limit.time.is_some_and(|time| begun.elapsed() >= time);
            if is_over && tried >= obliged {
                break;
            }
            tried += 1;
            let Err(error) = self.pay(locked, &entry, &owed).await else {
                paid += 1;
                continue;
            };
            tracing::warn!(
                container = %owed.container_id, entry = %entry.display(), %error,
                "what an earlier DEL owes cannot be paid; the journal entry stays"
            );
            // One that can never be paid must not stand in the way of the others; an outage stops them all.
            if let Err(error) = locked.postpone(&entry) {
                tracing::warn!(%error, "the journal entry stays in front of the others");
            }
            if error.code == Code::TRY_AGAIN {
                break;
            }
        }
        paid
    }

    /// The debts that are owed to this datastore.
    fn debts(&self, locked: &Locked<'_>) -> Vec<(PathBuf, Debt)> {
        if let Err(error) = locked.learn(&self.creditor) {
            tracing::warn!(datastore = %self.creditor.name, %error, "the identity of the datastore is not noted");
        }
        locked.debts(&self.creditor)
    }

    /// The endpoint first, then the addresses: as in DEL.
    async fn pay(&self, locked: &Locked<'_>, entry: &std::path::Path, owed: &Debt) -> Result<(), CniError> {
        let owed = &owed.clone().or_on_node(self.node);
        let facts = facts_of(owed);
        let (store, in_pods) = (self.store, matches!(self.api, Api::Datastore));
        let endpoints = EndpointsOf::new(store, in_pods, facts.clone()).or_unnamed(&owed.pod_uid);
        endpoints.give_up().await.map_err(|error| cni_error(&error))?;
        // In Kubernetes a pod has one endpoint, whatever its interface is called.
        let is_shared = !in_pods && has_other_interface(store, &facts).await.map_err(unlisted)?;
        if is_shared {
            tracing::info!(container = %owed.container_id, "it still has another interface, which keeps the addresses");
        } else {
            ipam::release_owed(store, owed, &endpoints).await?;
            Box::pin(kubevirt::settle(self, owed, &endpoints)).await?;
        }
        locked.settle(entry).map_err(journal_error)?;
        tracing::info!(container = %owed.container_id, network = %owed.network, "settled what an earlier DEL could not");
        Ok(())
    }
}

/// Returns the datastore as debts know it. A datastore that does not tell its identity is known by its spelling alone.
pub async fn creditor(store: &Datastore, name: String) -> Creditor {
    let identity = store.identity().await.unwrap_or_else(|error| {
        tracing::warn!(datastore = %name, %error, "the identity of the datastore cannot be read; debts that name one stay");
        None
    });
    Creditor { name, identity: identity.unwrap_or_default() }
}

/// Returns true if a debt of the call's attachment is noted.
pub fn is_owed(session: &Session) -> bool {
    let call = &session.call;
    session.journal.owes(&call.conf.name, &call.container_id, &call.ifname)
}

/// A DEL that reached the datastore owes that one nothing any more.
pub async fn settled(session: &Session) -> Result<(), CniError> {
    let call = &session.call;
    if !is_owed(session) {
        return Ok(());
    }
    let payer = Payer::of_call(session).await;
    let locked = session.journal.lock().map_err(journal_error)?;
    for (entry, owed) in payer.debts(&locked) {
        if owed.is_of_attachment(&call.conf.name, &call.container_id, &call.ifname) {
            locked.settle(&entry).map_err(journal_error)?;
        }
    }
    Ok(())
}

/// Before an ADD: the attachment's own debt must be paid first, or a later replay would take back what ADD gives. All debts of the
/// pod and of the addresses that it asks for are tried; others are paid as far as nobody else does so now. Nothing is written while
/// the datastore is not ready (CNI-76).
pub async fn settle_before_add(session: &Session) -> Result<(), CniError> {
    if !may_pay(session) {
        return Ok(());
    }
    let known = session.read(Question::Endpoint).await?;
    known.ensure_ready()?;
    let wanted = Wanted::of(session, &known);
    let is_urgent = session
        .journal
        .entries()
        .is_ok_and(|entries| entries.iter().any(|entry| entry.debt.as_ref().is_ok_and(|debt| wanted.is_owed_by(debt))));
    let locked = match is_urgent {
        true => session.journal.lock().map_err(journal_error)?,
        false => match session.journal.try_lock() {
            Ok(Some(locked)) => locked,
            Ok(None) => return Ok(()),
            Err(error) => {
                tracing::warn!(%error, "the journal of DELs cannot be locked; what they owe is left to a later call");
                return Ok(());
            }
        },
    };
    locked.remove_abandoned();
    let payer = Payer::of_call(session).await;
    let call = &session.call;
    for (entry, owed) in payer.debts(&locked) {
        if owed.is_of_attachment(&call.conf.name, &call.container_id, &call.ifname) {
            payer.pay(&locked, &entry, &owed).await?;
        }
    }
    session.unless_busy(payer.pay_those(&locked, OF_AN_ADD, |debt| wanted.is_owed_by(debt))).await;
    Ok(())
}

/// Tries to pay a bounded number of entries; failures are logged, and stay for a later time.
pub async fn settle_some(session: &Session) {
    if !may_pay(session) {
        return;
    }
    let locked = match session.journal.try_lock() {
        Ok(Some(locked)) => locked,
        Ok(None) => return,
        Err(error) => {
            return tracing::warn!(%error, "the journal of DELs cannot be locked; what they owe is left to a later call");
        }
    };
    locked.remove_abandoned();
    let payer = Payer::of_call(session).await;
    session.unless_busy(payer.pay_some(&locked, MOST)).await;
}

/// Returns true if the datastore of this call may be owed something: one system call where the journal is empty.
fn may_pay(session: &Session) -> bool {
    !session.journal.is_empty() && session.journal.may_owe(&session.datastore_name())
}

/// Has the node learn what the datastore of this call is, if it has not yet: a DEL that cannot reach it needs that. While there are
/// debts the datastore is asked again, as another one may be in its place.
pub async fn learn(session: &Session) {
    let name = session.datastore_name();
    if session.journal.is_empty() && !session.journal.identity_of(&name).is_empty() {
        return;
    }
    let creditor = creditor(&session.store, name).await;
    let learned = match session.journal.try_lock() {
        Ok(Some(locked)) => locked.learn(&creditor),
        Ok(None) => Ok(()),
        Err(error) => Err(error),
    };
    if let Err(error) = learned {
        tracing::warn!(datastore = %creditor.name, %error, "the identity of the datastore is not noted");
    }
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
mod tests;

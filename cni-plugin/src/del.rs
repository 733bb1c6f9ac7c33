//! DEL: takes back what ADD gave, whatever of it is still there.
//!
//! Traffic is cut, then the endpoint gives its addresses up, then the addresses are released, so that no two containers
//! ever answer for one and no two endpoints ever list it; the kernel takes its 12 to 50 ms to delete the interface
//! meanwhile. A datastore that is out of reach, refuses this process or the write of the endpoint, or is not installed,
//! and a node whose name nothing tells, do not keep the container: what is owed goes into the journal (design decision
//! 7). A datastore that answers "not ready" does, as upstream.

use std::time::Duration;

use datastore::Datastore;
use futures::future::join;
use ipam_plugin::journal::{Debt, Journal, JournalError};
use ipam_plugin::kubernetes_api::Api;
use ipam_plugin::release::ReleasePrelude;
use ipam_plugin::{busy_server, node_name};
use libcalico::api::WorkloadEndpoint;
use libcalico::conversion::Orchestrator;
use libcalico::kubernetes::MachinePod;
use libcalico::store::Entry;
use netconf::{CniError, Code, Command, NetConf};
use tokio::time::{Instant, timeout_at};

use crate::attach::{self, Recorded};
use crate::endpoint::{EndpointsOf, Listing};
use crate::ipam::{self, ReleaseError};
use crate::kubernetes::{Facts, FactsError};
use crate::session::{Question, Session, ensure_nodename_file, naming_error, reading_cluster};
use crate::{endpoint, kubevirt, owed};

/// The time in which a datastore must answer anything at all.
const FIRST_ANSWER: Duration = Duration::from_secs(3);
/// The time of the datastore for all that a call asks of it. Runtimes give a DEL a minute, and kill it then.
const WHOLE_CALL: Duration = Duration::from_secs(30);

/// The way in which a debt is noted.
type Record = fn(&Journal, &Debt) -> Result<(), JournalError>;

/// Returns the name of the node, or nothing where calico-node has not written it and the configuration does not have
/// it: the kernel's host name may be another node's name.
pub fn node_of(conf: &NetConf) -> String {
    if let Err(error) = ensure_nodename_file(conf) {
        tracing::warn!(%error, "the node has the name of the configuration, if any");
        return conf.node.nodename.clone();
    }
    node_name::of(conf).unwrap_or_else(|error| {
        tracing::warn!(%error, "the node has no name");
        String::new()
    })
}

/// Ends all requests early if none of them is answered.
pub fn hurry(store: &Datastore, api: &Api) {
    store.expect_first_answer_within(FIRST_ANSWER);
    if let Api::Beside(api) = api {
        api.expect_first_answer_within(FIRST_ANSWER);
    }
}

/// Takes everything back. Succeeds when there is nothing.
///
/// A DEL does not wait for an API server that is busy before the traffic is cut and the debt noted: the runtime may
/// kill it at any time. Then it begins anew, and waits.
pub async fn del(session: &mut Session) -> Result<(), CniError> {
    let begun = Instant::now();
    let first = take_back(session, begun + WHOLE_CALL).await;
    if !busy_server::was_met(&session.store, &session.api) || (first.is_ok() && !owed::is_owed(session).unwrap_or(true))
    {
        return first;
    }
    let until = begun + busy_server::longest_wait(Command::Del);
    session.wait_while_busy(until);
    match timeout_at(until, take_back(session, until)).await {
        // The debt is noted: the runtime need not try again.
        Ok(Err(error)) if first.is_ok() => {
            tracing::warn!(%error, "the rest of this DEL is left to the debt that is noted");
            first
        }
        second => second.unwrap_or(first),
    }
}

/// Does so by `until`. What is left then is noted.
async fn take_back(session: &mut Session, until: Instant) -> Result<(), CniError> {
    if session.facts.node.is_empty() {
        let file = &session.call.conf.node.nodename_file;
        let cause = format!("nothing tells which node this is: neither nodename nor {file}");
        return without_datastore(session, &CniError::new(Code::TRY_AGAIN, cause), Journal::record).await;
    }
    let handles = ipam::handles_to_read(session);
    let known = match timeout_at(until, session.try_read(Question::Release(&handles))).await {
        Err(_) => return without_datastore(session, &late(), Journal::record).await,
        Ok(Ok(known)) => known,
        Ok(Err(error)) if error.is_postponable() => {
            return without_datastore(session, &reading_cluster(&error), Journal::record).await;
        }
        Ok(Err(error)) => return Err(reading_cluster(&error)),
    };
    session.timings.stage("read");
    match known.ensure_ready() {
        // Setting the datastore up anew gives it another identity.
        Err(cause) if known.cluster.is_none() => {
            return without_datastore(session, &cause, Journal::record_by_spelling).await;
        }
        ready => ready?,
    }

    let name = session.facts.key().map_err(|error| naming_error(&error))?.name;
    let (found, others): (Vec<_>, Vec<_>) = known.endpoints.into_iter().partition(|entry| entry.key.name == name);
    let (is_named, mut listings) = (!found.is_empty(), known.listings);
    let is_shared = is_of_another_interface(session, is_named, &others, listings.is_none())?;
    if is_shared {
        // The endpoint that cannot be read is that of the other interface.
        listings.get_or_insert_default();
    }
    let endpoint = found.into_iter().find(|entry| is_ours(session, entry));
    let recorded = match &endpoint {
        Some(entry) => Recorded::Endpoint(&entry.value),
        None if is_shared => Recorded::OtherInterface,
        None if listings.is_none() => Recorded::Unknown,
        None => Recorded::Nothing,
    };
    let removal = attach::remove(session, recorded).await?;
    session.timings.stage("cut");

    // A newer sandbox of the same pod has its machine's addresses now.
    let is_superseded = is_named && endpoint.is_none();
    let machine = match is_superseded {
        true => Ok(None),
        false => in_time(until, machine(session, known.kubernetes)).await,
    };
    let machine = machine.map(|machine| session.machine = machine);
    let prelude = known.release.filter(|_| !is_shared);
    let released = in_time(until, release(session, prelude, listings)).await.and(machine);
    session.timings.stage("release");
    removal.finish()?;
    session.timings.stage("dataplane");
    match released {
        Ok(()) => {
            // Debts that are not paid in time are left to the next call.
            _ = timeout_at(until, owed::settle_after_del(session)).await;
            Ok(())
        }
        Err(ReleaseError::Postponed(error)) => keep(session, &error, Journal::record),
        Err(ReleaseError::Refused(error)) => Err(error),
    }
}

/// An endpoint of another container of the same pod stays: this is a late DEL for an older sandbox (CNI-200). So does
/// that of a pod of the same name that was made since, and is not networked yet (CNI-262).
fn is_ours(session: &Session, entry: &Entry<WorkloadEndpoint>) -> bool {
    let ours = endpoint::is_of_container(&entry.value, &session.call.container_id, Some(session.pod_uid()));
    if !ours {
        let holder = &entry.value.spec.container_id;
        tracing::warn!(endpoint = %entry.key, %holder, "the endpoint belongs to another container; leaving it");
    }
    ours
}

/// Returns true if an endpoint of the container under another interface's name uses what is named after the container
/// alone, its handle and for a plain container the host's end. Upstream frees the addresses of that endpoint.
///
/// `is_named`: the interface that DEL is asked for has an endpoint. `is_unread`: an endpoint of the container cannot be
/// read.
fn is_of_another_interface(
    session: &Session,
    is_named: bool,
    others: &[Entry<WorkloadEndpoint>],
    is_unread: bool,
) -> Result<bool, CniError> {
    let is_same = |entry: &Entry<_>| endpoint::is_of_container(&entry.value, &session.call.container_id, None);
    let shared = match session.facts.orchestrator {
        Orchestrator::Cni(_) if !others.is_empty() => true,
        Orchestrator::Cni(_) => is_unread && attach::is_of_another_interface(session)?,
        Orchestrator::Kubernetes(_) if !session.is_on_kubernetes() && others.iter().any(is_same) => true,
        Orchestrator::Kubernetes(_) if others.is_empty() && (is_named || made_by_add(session) == Some(true)) => false,
        // On Kubernetes every endpoint is called eth0, whatever the interface is, and a pod that is gone has none.
        Orchestrator::Kubernetes(_) => attach::is_of_another_interface(session)?,
    };
    if shared {
        let endpoint = others.first().map(|entry| entry.key.to_string());
        tracing::warn!(endpoint, "the container's interface is another one; leaving it and its addresses");
    }
    Ok(shared)
}

/// Waits for `work` until the call has taken its time, and puts off what is left of it.
async fn in_time<T>(until: Instant, work: impl Future<Output = Result<T, ReleaseError>>) -> Result<T, ReleaseError> {
    timeout_at(until, work).await.unwrap_or_else(|_| Err(ReleaseError::Postponed(late())))
}

fn late() -> CniError {
    CniError::new(Code::TRY_AGAIN, "the datastore was not done within the time of this call")
}

/// The virtual machine in the pod. That it cannot be told keeps nothing else from being released.
async fn machine(session: &Session, facts: Result<Facts, FactsError>) -> Result<Option<MachinePod>, ReleaseError> {
    let facts = facts.map_err(|error| match error.is_postponable() {
        true => ReleaseError::Postponed(error.into()),
        false => ReleaseError::Refused(error.into()),
    })?;
    kubevirt::leaving(session, facts.machine_pod.as_ref()).await.map_err(|error| match error.is_postponable() {
        true => ReleaseError::Postponed(error.into()),
        false => ReleaseError::Refused(error.into()),
    })
}

/// The endpoint first: an address is free only when its endpoint does not list it. The endpoint is written while the
/// blocks are read.
async fn release(
    session: &Session,
    prelude: Option<ReleasePrelude>,
    known: Option<Vec<Listing>>,
) -> Result<(), ReleaseError> {
    let endpoints = EndpointsOf::new(&session.store, session.is_on_kubernetes(), session.facts.clone())
        .or_unnamed(session.pod_uid())
        .known(known);
    let given_up = async { endpoints.give_up().await.map_err(ReleaseError::of) };
    let (given_up, released) = Box::pin(join(given_up, ipam::release(session, prelude, &endpoints))).await;
    released.and(given_up)
}

/// Takes down what is on this node, and has `record` note the debt.
async fn without_datastore(session: &mut Session, cause: &CniError, record: Record) -> Result<(), CniError> {
    tracing::warn!(error = %cause, "the datastore does not take the endpoint and the addresses back; taking the network down");
    let is_pod = matches!(session.facts.orchestrator, Orchestrator::Kubernetes(_));
    let made = made_by_add(session);
    if is_pod && made != Some(true) && attach::is_of_another_interface(session)? {
        if made.is_none() {
            return Err(undecided(session, cause));
        }
        tracing::warn!("the pod's interface is another one; leaving it and its addresses");
        return ipam::release_foreign(session);
    }
    let removal = attach::remove(session, Recorded::Unknown).await?;
    let foreign = ipam::release_foreign(session);
    removal.finish()?;
    foreign?;
    keep(session, cause, record)
}

/// Returns true if `prevResult` has this interface, as the ADD made it; `None` without a `prevResult` that can be read,
/// as runtimes call plugins before CNI 0.4.0. KubeVirt renames the pod's end of the interface.
fn made_by_add(session: &Session) -> Option<bool> {
    let call = &session.call;
    let result = call.conf.read_prev_result(call.version).ok()??;
    let names = |name: &str| result.interfaces.iter().any(|interface| interface.name == name);
    Some(names(&call.ifname) && names(&session.host_ifname()))
}

/// Returns the error where the pod's end of the interface has another name: the interface was renamed since the ADD, or
/// the runtime deletes one that the ADD never made. Only the endpoint or a `prevResult` tells these apart.
fn undecided(session: &Session, cause: &CniError) -> CniError {
    let (ifname, host) = (&session.call.ifname, session.host_ifname());
    let words = format!(
        "the pod's end of {host} is not called {ifname}: without prevResult only the datastore tells whether ADD made {ifname}; call \
         DEL again when the datastore answers"
    );
    CniError::new(Code::TRY_AGAIN, cause.msg.clone()).with_details(words)
}

/// Writes down what the datastore is owed. If even that fails, the runtime must come again.
fn keep(session: &Session, cause: &CniError, record: Record) -> Result<(), CniError> {
    let failed = |error: JournalError| {
        CniError::new(Code::TRY_AGAIN, cause.msg.clone())
            .with_details(format!("the interface is gone, but what is left to release cannot be noted: {error}"))
    };
    record(&session.journal, &owed::debt(session, cause)).map_err(failed)?;
    tracing::warn!(
        error = %cause,
        "the network is down; the endpoint and the addresses are noted in the journal, and a later call or the agent takes them back"
    );
    Ok(())
}

#[cfg(test)]
mod tests;

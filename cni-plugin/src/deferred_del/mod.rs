//! Deferred DELs: a DEL that cannot reach the datastore records its remaining work in the journal, and a later call or
//! the agent replays it. [`urgency`] orders the entries that an ADD replays.

mod urgency;

use std::path::{Path, PathBuf};
use std::time::Duration;

use datastore::{Datastore, DatastoreConfig};
use ipam_plugin::busy_server;
use ipam_plugin::cni::cni_error;
use ipam_plugin::journal::{Creditor, Debt, JournalError, Locked};
use ipam_plugin::kubernetes_api::{self, Api};
use ipam_plugin::logging::Subject;
use libcalico::api::WorkloadEndpoint;
use libcalico::conversion::EndpointFacts;
use libcalico::store::{Store, StoreError};
use netconf::{CniError, Code, NetConf};
use tokio::time::Instant;
use tracing::{Instrument as _, Span};

use self::urgency::{Urgency, Wanted};
use crate::cni_error::{journal_error, store_error};
use crate::context::Context;
use crate::endpoint::EndpointsOf;
use crate::{ipam, reads, vmi};

/// The node in the recorded endpoint name if the name of the node was unknown to the DEL.
const UNKNOWN_NODE: &str = "unknown";

/// The limit of a call other than ADD and of a pass of the agent. Other calls wait for the journal's lock meanwhile.
pub const MOST: Limit = Limit { debts: 16, time: Duration::from_secs(20) };
/// The limit of an ADD, which delays the start of its pod.
const OF_AN_ADD: Limit = Limit { debts: 2, time: Duration::from_secs(1) };

/// The number of deferred DELs, and the time, after which no further replay starts. A replay in progress is completed.
#[derive(Debug, Clone, Copy)]
pub struct Limit {
    debts: usize,
    time: Duration,
}

/// The outcome of replays: the numbers of deferred DELs of this datastore that were replayed and that remain.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Replayed.
    pub paid: usize,
    /// Remaining.
    pub left: usize,
}

/// The datastore whose deferred DELs are replayed, and the other inputs of a replay.
pub struct Payer<'a> {
    /// The configuration of the plugins.
    pub conf: &'a NetConf,
    /// The variables that complete the configuration.
    pub environment: fn(&str) -> Option<String>,
    /// The settings of the connection to the datastore.
    pub datastore_config: &'a DatastoreConfig,
    /// The datastore.
    pub store: &'a Datastore,
    /// The Kubernetes API.
    pub api: &'a Api,
    /// The node of deferred DELs that do not name one; empty if the node's name is unknown.
    pub node: &'a str,
    /// The ID of the container whose call replays; empty for the agent.
    pub within: &'a str,
    /// Name and identity of the datastore, as in the entries of the journal.
    pub creditor: Creditor,
}

/// Returns the entry for the remaining work of this call's DEL. `reason` is the error because of which it is deferred.
pub fn debt(cx: &Context, reason: &CniError) -> Debt {
    let call = &cx.call;
    let mut workload = cx.workload.clone();
    if workload.node.is_empty() {
        workload.node = UNKNOWN_NODE.into();
    }
    let handles = ipam::request(call, &cx.workload.node, None).map(|request| request.handles()).unwrap_or_default();
    let endpoint = workload.key().map(|key| (key.namespace.unwrap_or_default(), key.name)).unwrap_or_default();
    // A DEL must not fail on its prevResult.
    let result = call.conf.read_prev_result(call.version).ok().flatten();
    Debt {
        network: call.conf.name.clone(),
        container_id: call.container_id.clone(),
        ifname: call.ifname.clone(),
        node: cx.workload.node.clone(),
        datastore: cx.datastore_name(),
        identity: String::new(),
        endpoint,
        pod_uid: cx.pod_uid().to_owned(),
        handles: handles.iter().map(|handle| handle.as_str().to_owned()).collect(),
        addresses: result.map(|result| result.ips.iter().map(|ip| ip.address.addr()).collect()).unwrap_or_default(),
        noted: time::OffsetDateTime::now_utc().unix_timestamp().try_into().unwrap_or_default(),
        reason: netconf::printable::line(&reason.to_string()).into_owned(),
    }
}

impl<'a> Payer<'a> {
    /// Prepares the replays of a call of the plugin whose datastore has responded. Reads the identity of the datastore:
    /// the configuration may name another datastore now than at the time of the DEL.
    async fn of_call(cx: &'a Context) -> Payer<'a> {
        let Context { call, datastore_config, store, api, .. } = cx;
        let creditor = creditor(store, cx.datastore_name()).await;
        let (node, within) = (&cx.workload.node, &call.container_id);
        let environment = |name: &str| std::env::var(name).ok();
        Payer { conf: &call.conf, environment, datastore_config, store, api, node, within, creditor }
    }

    /// Replays deferred DELs until `limit`. After a failure, which is logged, the entry stays for a later replay.
    pub async fn pay_some(&self, locked: &Locked<'_>, limit: Limit) -> Outcome {
        self.pay_by_urgency(locked, limit, |_| Urgency::Other).await
    }

    /// Replays the deferred DELs with [`Urgency::Must`] without a limit, and then the others until `limit`.
    async fn pay_by_urgency(&self, locked: &Locked<'_>, limit: Limit, urgency: impl Fn(&Debt) -> Urgency) -> Outcome {
        let begun = Instant::now();
        let mut debts = self.debts(locked);
        debts.sort_by_key(|(_, debt)| urgency(debt));
        let (mut tried, mut paid, all) = (0, 0, debts.len());
        for (entry, owed) in debts {
            let must = urgency(&owed) == Urgency::Must;
            if !must && (tried >= limit.debts || begun.elapsed() >= limit.time) {
                break;
            }
            tried += 1;
            let span = self.span_of(&owed);
            let Err(error) = self.pay(locked, &entry, &owed).instrument(span.clone()).await else {
                paid += 1;
                continue;
            };
            let _of_the_debt = span.entered();
            tracing::warn!(
                entry = %entry.display(), %error,
                "the endpoint and the addresses that an earlier DEL left cannot be taken back; the journal entry stays"
            );
            // An entry whose replay always fails must not block the others.
            if let Err(error) = locked.postpone(&entry) {
                tracing::warn!(%error, "the journal entry stays in front of the others");
            }
            // The datastore is unreachable for the others, too.
            if error.code == Code::TRY_AGAIN && !must {
                break;
            }
        }
        Outcome { paid, left: all - paid }
    }

    /// Returns the deferred DELs of this datastore. An entry without a node is left to a process that knows the name of
    /// the node.
    fn debts(&self, locked: &Locked<'_>) -> Vec<(PathBuf, Debt)> {
        if let Err(error) = locked.learn(&self.creditor) {
            tracing::warn!(datastore = %self.creditor.name, %error, "the identity of the datastore is not noted");
        }
        let mut debts = locked.debts(&self.creditor);
        debts.retain(|(_, debt)| !debt.node.is_empty() || !self.node.is_empty());
        debts
    }

    /// Replays one deferred DEL: removes the addresses from the endpoint and then releases them, as in DEL.
    async fn pay(&self, locked: &Locked<'_>, entry: &Path, owed: &Debt) -> Result<(), CniError> {
        let owed = &owed.clone().or_on_node(self.node);
        let workload = owed.attachment();
        let (store, in_pods) = (self.store, matches!(self.api, Api::Datastore));
        let endpoints = EndpointsOf::new(store, in_pods, workload.clone()).or_unnamed(&owed.pod_uid);
        endpoints.give_up().await.map_err(|error| cni_error(&error))?;
        // On Kubernetes a pod has one endpoint, independent of the name of its interface.
        let is_shared = !in_pods && has_other_interface(store, &workload).await.map_err(unlisted)?;
        if is_shared {
            tracing::info!("the container still has another interface, which keeps the addresses");
        } else {
            ipam::release::release_deferred(store, owed, &endpoints).await?;
            Box::pin(self.release_vmi(owed, &endpoints)).await?;
        }
        locked.settle(entry).map_err(journal_error)?;
        tracing::info!(
            network = %owed.network, ifname = %owed.ifname,
            "took back the endpoint and the addresses that an earlier DEL had left"
        );
        Ok(())
    }

    /// Removes the pod of a deferred DEL from the owners of its VMI's addresses.
    async fn release_vmi(&self, owed: &Debt, endpoints: &EndpointsOf<'_, Datastore>) -> Result<(), CniError> {
        if !vmi::may_have_had_vmi(owed) || !kubernetes_api::is_there(self.conf, self.datastore_config) {
            return Ok(());
        }
        let opened;
        let api = match self.api {
            // The call itself sends no request to the Kubernetes API.
            Api::Unasked => {
                opened = Api::with_environment(self.conf, self.datastore_config, self.environment)?;
                &opened
            }
            api => api,
        };
        match api.reached(self.store) {
            Some(api) => vmi::release_deferred(self.store, api, owed, endpoints).await,
            None => Ok(()),
        }
    }

    /// Returns the span of the log lines of a replay, which name the attachment of the deferred DEL.
    fn span_of(&self, owed: &Debt) -> Span {
        Subject::of_attachment(&owed.attachment()).span(self.within)
    }
}

/// Returns name and identity of the datastore, as in the entries of the journal. If the identity cannot be read, the
/// datastore is identified by its name alone.
pub async fn creditor(store: &Datastore, name: String) -> Creditor {
    let identity = store.identity().await.unwrap_or_else(|error| {
        tracing::warn!(datastore = %name, %error, "the identity of the datastore cannot be read; debts that name one stay");
        None
    });
    Creditor { name, identity: identity.unwrap_or_default() }
}

/// Returns true if the journal contains a deferred DEL of the call's attachment.
///
/// # Errors
/// The journal cannot be read.
pub fn is_owed(cx: &Context) -> Result<bool, JournalError> {
    let call = &cx.call;
    cx.journal.owes(&call.conf.name, &call.container_id, &call.ifname)
}

/// Replays deferred DELs before an ADD. Those of the same attachment have to be replayed first: a later replay would
/// release the addresses that the ADD assigns. Those of the pod, and of the addresses that it requests, are all tried.
/// The others are replayed within the limit of an ADD, unless another process replays at the same time. Writes nothing
/// while the datastore is not ready.
///
/// # Errors
/// A deferred DEL of the same attachment cannot be replayed, or it is unknown whether it belongs to this datastore. The
/// journal cannot be read: it may contain such an entry, and a replay after the repair of the journal would release the
/// addresses that the ADD assigns.
pub async fn settle_before_add(cx: &Context) -> Result<(), CniError> {
    if cx.journal.is_empty() {
        return Ok(());
    }
    let is_own_owed = is_owed(cx).map_err(journal_error)?;
    if !is_own_owed && !cx.journal.may_owe(&cx.datastore_name()) {
        return Ok(());
    }
    let described = reads::described_pod(cx).await?;
    let asked = ipam::request(&cx.call, &cx.workload.node, None).and_then(|request| request.ip);
    let wanted = Wanted::new(&cx.call, asked, described.as_ref());
    let entries = cx.journal.entries().unwrap_or_default();
    let is_urgent = entries.iter().flat_map(|entry| &entry.debt).any(|debt| wanted.urgency(debt) == Urgency::Must);
    // Before the lock: the request may wait for a busy server, and other calls wait for the lock.
    let payer = Payer::of_call(cx).await;
    let locked = match is_own_owed || is_urgent {
        true => cx.journal.lock().map(Some),
        false => cx.journal.try_lock(),
    };
    let locked = match locked {
        Ok(Some(locked)) => locked,
        Ok(None) => return Ok(()),
        Err(error) if is_own_owed => return Err(journal_error(error)),
        Err(error) => {
            tracing::warn!(%error, "the journal of DELs cannot be locked; what they owe is left to a later call");
            return Ok(());
        }
    };
    locked.remove_abandoned();
    if is_own_owed {
        pay_own(cx, &payer, &locked).await?;
    }
    unless_busy(cx, cx.busy_until, payer.pay_by_urgency(&locked, OF_AN_ADD, |debt| wanted.urgency(debt))).await;
    Ok(())
}

/// Replays the deferred DELs of the call's attachment. An entry that certainly belongs to another datastore stays.
async fn pay_own(cx: &Context, payer: &Payer<'_>, locked: &Locked<'_>) -> Result<(), CniError> {
    let owed_here = payer.debts(locked);
    for (entry, owed) in owed_here.iter().filter(|(_, owed)| is_own(cx, owed)) {
        payer.pay(locked, entry, owed).instrument(payer.span_of(owed)).await?;
    }
    let call = &cx.call;
    let left = cx.journal.debts_of(&call.conf.name, &call.container_id, &call.ifname).map_err(journal_error)?;
    let unclear = left.into_iter().find(|(_, owed)| !owed.is_surely_owed_elsewhere(&payer.creditor));
    let Some((_, owed)) = unclear else { return Ok(()) };
    let msg = format!(
        "an earlier DEL of this container owes the datastore {}, and nothing tells whether that is {}, which this ADD uses",
        owed.datastore, payer.creditor.name
    );
    Err(CniError::new(Code::TRY_AGAIN, msg).with_details(format!(
        "`calico-ipam journal` lists the debt; `calico-ipam journal adopt {}` gives it to the datastore that the command reaches",
        owed.container_id
    )))
}

fn is_own(cx: &Context, owed: &Debt) -> bool {
    let call = &cx.call;
    owed.is_of_attachment(&call.conf.name, &call.container_id, &call.ifname)
}

/// Replays a bounded number of deferred DELs. After a failure, which is logged, the entry stays for a later replay.
pub async fn settle_some(cx: &Context) {
    settle(cx, cx.busy_until, false).await;
}

/// Removes the entries of the call's attachment from the journal, because its DEL has released everything, and then
/// replays deferred DELs of others. An entry that cannot be removed does no harm: its replay finds nothing to release,
/// and an ADD of the same attachment replays it first. Later requests wait for a busy server until `busy_until`.
pub async fn settle_after_del(cx: &Context, busy_until: Instant) {
    settle(cx, busy_until, true).await;
}

async fn settle(cx: &Context, busy_until: Instant, forgets_own: bool) {
    // The usual case, with one system call.
    if cx.journal.is_empty() {
        return;
    }
    let locked = match cx.journal.try_lock() {
        Ok(Some(locked)) => locked,
        Ok(None) => return,
        Err(error) => {
            return tracing::warn!(%error, "the journal of DELs cannot be locked; what they owe is left to a later call");
        }
    };
    locked.remove_abandoned();
    // The error of a journal that cannot be read is logged below.
    let forgets_own = forgets_own && is_owed(cx).unwrap_or(true);
    if !forgets_own && !cx.journal.may_owe(&cx.datastore_name()) {
        return;
    }
    let payer = Payer::of_call(cx).await;
    if forgets_own {
        for (entry, _) in payer.debts(&locked).into_iter().filter(|(_, owed)| is_own(cx, owed)) {
            if let Err(error) = locked.settle(&entry) {
                tracing::warn!(%error, "the journal entry of this container stays; it is paid once more");
            }
        }
    }
    unless_busy(cx, busy_until, payer.pay_some(&locked, MOST)).await;
}

/// Records the identity of this call's datastore on the node, for a later DEL that cannot reach the datastore.
pub async fn learn(cx: &Context) {
    let creditor = creditor(&cx.store, cx.datastore_name()).await;
    let learned = match cx.journal.try_lock() {
        Ok(Some(locked)) => locked.learn(&creditor),
        Ok(None) => Ok(()),
        Err(error) => Err(error),
    };
    if let Err(error) = learned {
        tracing::warn!(datastore = %creditor.name, %error, "the identity of the datastore is not noted");
    }
}

/// Runs `work` without waiting for a busy API server, because other processes wait for the journal's lock meanwhile.
/// Later requests wait until `busy_until` again.
async fn unless_busy<T>(cx: &Context, busy_until: Instant, work: impl Future<Output = T>) -> T {
    busy_server::wait_until(Instant::now(), &cx.store, &cx.api);
    let done = work.await;
    busy_server::wait_until(busy_until, &cx.store, &cx.api);
    done
}

/// Returns true if the container has an endpoint with another interface name. The names of the handle and of the host's
/// end do not contain the interface name, so both belong to that endpoint then. A DEL that reaches the datastore
/// applies the same rule.
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

#[cfg(test)]
mod tests;

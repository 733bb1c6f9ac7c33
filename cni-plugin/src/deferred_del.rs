//! Deferred DELs: a DEL that cannot finish its work in the datastore records the remaining work in
//! the journal. A later call or the agent replays it.

mod replayer;
mod urgency;

use std::path::PathBuf;
use std::time::Duration;

use allocation::journal::{DatastoreIdentity, JournalError, LockedJournal, PendingDel};
use datastore::ClusterStore;
use netconf::{CniError, Code};
use node_process::process;
use os::clock::Clock as _;
use tracing::Instrument as _;

use self::replayer::{ADD_LIMIT, Replayed};
pub use self::replayer::{ReplayOutcome, Replayer};
use self::urgency::{AddTarget, Urgency};
use crate::cni_error::journal_error;
use crate::context::Context;
use crate::reads;
use crate::world::World;

/// The node in the recorded endpoint name if the name of the node was unknown to the DEL.
const UNKNOWN_NODE: &str = "unknown";

/// Returns the entry for the remaining work of this call's DEL.
pub fn pending_del(cx: &Context<impl World>, reason: &CniError) -> PendingDel {
    let call = &cx.call;
    let mut workload = cx.workload.clone();
    if workload.node.is_empty() {
        workload.node = UNKNOWN_NODE.into();
    }
    let handles = cx
        .ipam_request()
        .map(|request| request.handles())
        .unwrap_or_default();
    let endpoint = workload
        .key()
        .map(|key| (key.namespace.unwrap_or_default(), key.name))
        .unwrap_or_default();
    // A DEL must not fail on its prevResult.
    let result = call.conf.read_prev_result(call.version).ok().flatten();
    let now = cx.clock.now();
    PendingDel {
        network: call.conf.name.clone(),
        container_id: call.container_id.clone(),
        ifname: call.ifname.clone(),
        node: cx.workload.node.clone(),
        datastore: cx.datastore_name(),
        identity: String::new(),
        endpoint,
        pod_uid: cx.pod_uid().to_owned(),
        handles: handles
            .iter()
            .map(|handle| handle.as_str().to_owned())
            .collect(),
        addresses: result
            .map(|result| result.ips.iter().map(|ip| ip.address.addr()).collect())
            .unwrap_or_default(),
        noted: now.unix_timestamp().try_into().unwrap_or_default(),
        allocated_before: now.unix_timestamp_nanos().try_into().unwrap_or_default(),
        reason: netconf::printable::line(&reason.to_string()).into_owned(),
    }
}

/// Prepares the replays of a call of the plugin whose datastore has responded. Reads the identity
/// of the datastore: the configuration may name another datastore now than at the time of the DEL.
async fn replayer_for_call<W: World>(cx: &Context<W>) -> Replayer<'_, W> {
    let Context {
        call,
        datastore_config,
        store,
        api,
        clock,
        network,
        files,
        ..
    } = cx;
    let target = read_identity(store, cx.datastore_name()).await;
    let (node, replaying_container) = (&cx.workload.node, &call.container_id);
    Replayer {
        conf: &call.conf,
        variables: process::variables(),
        datastore_config,
        store,
        api,
        clock,
        network,
        files,
        node,
        replaying_container,
        target,
    }
}

/// Returns name and identity of the datastore, as in the entries of the journal. If the identity
/// cannot be read, the datastore is identified by its name alone.
async fn read_identity(store: &impl ClusterStore, name: String) -> DatastoreIdentity {
    let identity = store.identity().await.unwrap_or_else(|error| {
        tracing::warn!(
            datastore = %name, %error,
            "cannot read the identity of the datastore; some deferred DELs stay"
        );
        None
    });
    DatastoreIdentity {
        name,
        identity: identity.unwrap_or_default(),
    }
}

/// Returns true if the journal contains a deferred DEL of the call's attachment.
pub fn is_pending(cx: &Context<impl World>) -> Result<bool, JournalError> {
    let call = &cx.call;
    cx.journal
        .contains(&call.conf.name, &call.container_id, &call.ifname)
}

fn entries_of_container(
    cx: &Context<impl World>,
) -> Result<Vec<(PathBuf, PendingDel)>, JournalError> {
    let call = &cx.call;
    cx.journal
        .entries_of_container(&call.conf.name, &call.container_id, &call.ifname)
}

/// Replays deferred DELs before an ADD. Those of the same container have to be replayed first, with
/// any interface name: the addresses of all interfaces have the same handle. Those of the pod, and
/// of the addresses that it requests, are all tried, and the others within the limit of an ADD,
/// those of the addresses in its list first. Fails, for example, if one of the same container
/// cannot be replayed, or if the journal, which may contain one, cannot be read.
pub async fn replay_before_add(cx: &Context<impl World>) -> Result<(), CniError> {
    if cx.journal.is_empty() {
        return Ok(());
    }
    let is_own_pending = !entries_of_container(cx).map_err(journal_error)?.is_empty();
    if !is_own_pending && !cx.journal.may_contain(&cx.datastore_name()) {
        return Ok(());
    }
    let pod = reads::pod_with_namespace(cx).await?;
    let requested = cx.ipam_request().and_then(|request| request.ip);
    let target = AddTarget::new(&cx.call, requested, pod.as_ref());
    let entries = cx.journal.entries().unwrap_or_default();
    let mut pending_dels = entries.iter().flat_map(|entry| &entry.pending_del);
    let is_urgent =
        pending_dels.any(|pending_del| target.urgency(pending_del) == Urgency::Required);
    // The identity is read before the lock is taken: the request may wait for a busy server, and
    // other calls wait for the lock.
    let replayer = replayer_for_call(cx).await;
    let must_wait = is_own_pending || is_urgent;
    let locked = if must_wait {
        cx.journal.lock().await.map(Some)
    } else {
        cx.journal.try_lock()
    };
    let locked = match locked {
        Ok(Some(locked)) => locked,
        Ok(None) => return Ok(()),
        Err(error) if is_own_pending => return Err(journal_error(error)),
        Err(error) => {
            tracing::warn!(
                %error,
                "cannot lock the journal; leaving its deferred DELs to a later call",
            );
            return Ok(());
        }
    };
    locked.remove_abandoned();
    if is_own_pending {
        replay_own(cx, &replayer, &locked).await?;
    }
    let replay = replayer.replay_by_urgency(&locked, ADD_LIMIT, |pending_del| {
        target.urgency(pending_del)
    });
    without_waiting_for_busy_server(cx, cx.busy_until, replay).await;
    Ok(())
}

/// Replays the deferred DELs of the call's container. An entry that certainly belongs to another
/// datastore stays, and so does one whose container has got an address since. Fails if the
/// datastore of an entry is uncertain, and after a failed replay.
async fn replay_own<W: World>(
    cx: &Context<W>,
    replayer: &Replayer<'_, W>,
    locked: &LockedJournal<'_>,
) -> Result<(), CniError> {
    let call = &cx.call;
    let is_own =
        |pending_del: &PendingDel| pending_del.is_of_container(&call.conf.name, &call.container_id);
    let pending_here = replayer.pending_entries(locked);
    let mut kept = Vec::new();
    for (entry, pending_del) in pending_here
        .iter()
        .filter(|(_, pending_del)| is_own(pending_del))
    {
        let replayed = replayer
            .replay(locked, entry, pending_del)
            .instrument(replayer.span_of(pending_del))
            .await;
        let replayed = replayed.map_err(|failure| failure.error)?;
        kept.extend((replayed == Replayed::Kept).then_some(entry));
    }
    let mut remaining = entries_of_container(cx).map_err(journal_error)?;
    remaining.retain(|(entry, _)| !kept.contains(&entry));
    let ambiguous = remaining
        .into_iter()
        .find(|(_, pending_del)| !pending_del.belongs_elsewhere(&replayer.target));
    let Some((_, pending_del)) = ambiguous else {
        return Ok(());
    };
    let msg = format!(
        "an earlier DEL of this container is deferred on datastore {}, and it is unknown whether \
         that is {}, the datastore of this ADD",
        pending_del.datastore, replayer.target.name
    );
    Err(CniError::new(Code::TRY_AGAIN, msg).with_details(format!(
        "list the deferred DEL with `calico-ipam journal`; assign the deferred DEL to the \
         datastore that the command reaches with `calico-ipam journal adopt {}`",
        pending_del.container_id
    )))
}

fn is_own(cx: &Context<impl World>, pending_del: &PendingDel) -> bool {
    let call = &cx.call;
    pending_del.is_of_attachment(&call.conf.name, &call.container_id, &call.ifname)
}

/// Replays a bounded number of deferred DELs, unless another process replays now.
pub async fn replay_some(cx: &Context<impl World>) {
    lock_and_replay(cx, cx.busy_until, false).await;
}

/// Removes this datastore's entries of the call's attachment from the journal, because its DEL is
/// complete, and then replays deferred DELs of others. Does nothing if another process has the
/// journal's lock: the replay of such an entry then finds nothing to release.
pub async fn replay_after_del(cx: &Context<impl World>, busy_until: Duration) {
    lock_and_replay(cx, busy_until, true).await;
}

async fn lock_and_replay(cx: &Context<impl World>, busy_until: Duration, removes_own: bool) {
    // The usual case.
    if cx.journal.is_empty() {
        return;
    }
    let locked = match cx.journal.try_lock() {
        Ok(Some(locked)) => locked,
        Ok(None) => return,
        Err(error) => {
            return tracing::warn!(
                %error,
                "cannot lock the journal; leaving its deferred DELs to a later call"
            );
        }
    };
    locked.remove_abandoned();
    // The error of a journal that cannot be read is logged below.
    let removes_own = removes_own && is_pending(cx).unwrap_or(true);
    if !removes_own && !cx.journal.may_contain(&cx.datastore_name()) {
        return;
    }
    let replayer = replayer_for_call(cx).await;
    if removes_own {
        let pending_here = replayer.pending_entries(&locked);
        for (entry, _) in pending_here
            .iter()
            .filter(|(_, pending_del)| is_own(cx, pending_del))
        {
            if let Err(error) = locked.remove(entry) {
                tracing::warn!(
                    entry = %entry.display(), %error,
                    "cannot remove the journal entry of a complete DEL"
                );
            }
        }
    }
    without_waiting_for_busy_server(cx, busy_until, replayer.replay_some(&locked)).await;
}

/// Records the identity of this call's datastore on the node, for a later DEL that cannot reach the
/// datastore. Does nothing if another process has the journal's lock.
pub async fn record_identity(cx: &Context<impl World>) {
    let target = read_identity(&cx.store, cx.datastore_name()).await;
    let locked = cx.journal.try_lock();
    if let Err(error) =
        locked.and_then(|locked| locked.map_or(Ok(()), |locked| locked.record_identity(&target)))
    {
        tracing::warn!(
            datastore = %target.name, %error,
            "cannot record the identity of the datastore for all journal entries"
        );
    }
}

/// Runs `work` without waiting for a busy API server, because other processes wait for the
/// journal's lock until `work` ends.
async fn without_waiting_for_busy_server<T>(
    cx: &Context<impl World>,
    busy_until: Duration,
    work: impl Future<Output = T>,
) -> T {
    cx.wait_for_busy_server_until(Duration::ZERO);
    let outcome = work.await;
    cx.wait_for_busy_server_until(busy_until);
    outcome
}

#[cfg(test)]
mod tests;

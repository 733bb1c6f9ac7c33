//! Pays what earlier DELs owe the datastore (design decision 7).

use libcalico::api::{ObjectKey, WorkloadEndpoint};
use libcalico::ipam::HandleId;
use libcalico::store::{Store, StoreError};
use netconf::{CniError, Code};

use crate::ipam;
use crate::journal::{Debt, ENTRIES_PER_INVOCATION, Locked};
use crate::session::{Question, Session, store_error};

/// What this call's DEL owes.
pub fn debt(session: &Session) -> Debt {
    let call = &session.call;
    let endpoint = session.facts.key().map(|key| (key.namespace.unwrap_or_default(), key.name)).unwrap_or_default();
    Debt {
        network: call.conf.name.clone(),
        container_id: call.container_id.clone(),
        ifname: call.ifname.clone(),
        node: session.facts.node.clone(),
        datastore: session.datastore_name(),
        endpoint,
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
                pay(session, &locked, &owed).await?;
            }
        }
    }
    settle_some(session).await;
    Ok(())
}

/// Pays what is owed, a bounded number of entries; failures are logged and stay for the next time.
pub async fn settle_some(session: &Session) {
    if session.journal.is_empty() {
        return;
    }
    let locked = match session.journal.try_lock() {
        Ok(Some(locked)) => locked,
        Ok(None) => return,
        Err(error) => return tracing::warn!(%error, "journal"),
    };
    let mut paid = 0;
    for owed in locked.debts(&session.datastore_name()) {
        match pay(session, &locked, &owed).await {
            Ok(()) => paid += 1,
            Err(error) => {
                tracing::warn!(container = %owed.container_id, %error, "a journal entry stays");
                // One that can never be paid must not stand in the way of the others; an outage stops them all.
                if error.code == Code::TRY_AGAIN {
                    return;
                }
            }
        }
        if paid == ENTRIES_PER_INVOCATION {
            return;
        }
    }
}

async fn pay(session: &Session, locked: &Locked<'_>, owed: &Debt) -> Result<(), CniError> {
    let handles: Vec<_> = owed.handles.iter().map(HandleId::new).collect();
    ipam::release_handles(session, &handles).await?;
    delete_endpoint(session, owed).await.map_err(|error| store_error("delete the WorkloadEndpoint", &error))?;
    locked.settle(owed).map_err(journal_error)?;
    tracing::info!(container = %owed.container_id, network = %owed.network, "released what an earlier DEL could not");
    Ok(())
}

async fn delete_endpoint(session: &Session, owed: &Debt) -> Result<(), StoreError> {
    let (namespace, name) = &owed.endpoint;
    if name.is_empty() {
        return Ok(());
    }
    let key = ObjectKey::namespaced(namespace, name);
    let entry = match session.store.get::<WorkloadEndpoint>(&key).await {
        Ok(entry) => entry,
        Err(StoreError::NotFound { .. }) => return Ok(()),
        Err(error) => return Err(error),
    };
    // The pod's next sandbox may own the name by now.
    if !entry.value.spec.container_id.is_empty() && entry.value.spec.container_id != owed.container_id {
        return Ok(());
    }
    match session.store.delete::<WorkloadEndpoint>(&key, Some(&entry.revision)).await {
        Ok(()) | Err(StoreError::NotFound { .. }) => Ok(()),
        Err(error) => Err(error),
    }
}

fn journal_error(error: crate::journal::JournalError) -> CniError {
    CniError::new(Code::IO, error.to_string())
}

//! The way back to v1. [`abort`]: after the controlling object was deleted before v3 was opened (MIG-71). [`retreat`]:
//! also after a failure under the lock.

use futures::future::join_all;
use libcalico::kubernetes::{ApiGroup, Location, Preconditions, Resource};
use libcalico::migration::{cluster_information, is_copy, moved_kinds};
use serde_json::Value;

use super::attempts::Withdrawals;
use super::door::Withdrawn;
use super::marks::{Door, V1Lock};
use super::object::Control;
use super::requests::{Problem, Requests};
use super::{api_service, door, lock};

/// Number of copies that are deleted at the same time.
const PARALLEL: usize = 10;

/// Restores the state before the migration, and then lets the API server remove the controlling object. Safe to be
/// repeated after an interruption at any request.
///
/// # Errors
/// The finalizer stays, and the caller tries again.
pub(super) async fn abort(
    requests: &Requests,
    control: &mut Control,
    withdrawals: &mut Withdrawals,
) -> Result<(), Problem> {
    undo(requests, control.uid(), withdrawals).await?;
    api_service::give_back(requests, control).await?;
    tracing::info!("migration: aborted; v1 is as it was before");
    control.remove_finalizer(requests).await
}

/// Unlocks v1 for the migration with this uid, and removes all traces of the migration from v3.
///
/// # Errors
/// [`Problem::Refused`] also if v1 is unlocked, and the API server does not let the migration end v3's part.
pub(super) async fn undo(requests: &Requests, migration: &str, withdrawals: &mut Withdrawals) -> Result<(), Problem> {
    match retreat(requests, migration, Copies::Delete, withdrawals).await? {
        // A failed attempt may have left copies.
        Withdrawn::Missing => delete_copies(requests).await,
        // The copies of a v3 that programs may use belong to a former migration.
        Withdrawn::Shut { .. } | Withdrawn::Foreign => Ok(()),
        Withdrawn::Refused { refusal, .. } => Err(refusal),
    }
}

/// The copies of a migration whose ClusterInformation of v3 did not exist before, so that no program can use them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Copies {
    /// The next attempt compares them, which saves their creation.
    Keep,
    Delete,
}

/// Unlocks v1 for the migration with this uid, and gives back the ClusterInformation of v3. Safe to be repeated after
/// an interruption at any request.
///
/// The order is essential. v1 stays locked as long as v3 can be opened, and pods can start again before copies are
/// deleted. v3 stays shut until then: a leader that takes over finds v1 unlocked and v3 shut, and deletes the copies
/// before anything else, so that no late deletion of the former leader meets a copy in use. And programs that could use
/// v3 before would assign addresses of copied blocks.
///
/// A refused withdrawal keeps v1 locked for two minutes only: a cluster in which no pod starts is worse than a
/// ClusterInformation that stays shut, with which no plugin uses v3.
///
/// # Errors
/// [`Problem::Lost`] if v3 is, was or may have been open.
pub(super) async fn retreat(
    requests: &Requests,
    migration: &str,
    copies: Copies,
    withdrawals: &mut Withdrawals,
) -> Result<Withdrawn, Problem> {
    // While another server serves v3, the objects of the definitions are unreachable: before the migration has removed
    // the APIService, and again after an abort has restored it.
    if api_service::aggregated(requests).await?.is_some() {
        lock::unlock(requests, migration, false).await?;
        return Ok(Withdrawn::Foreign);
    }
    let withdrawn = door::withdraw(requests, withdrawals).await?;
    let (existed, refusal) = match &withdrawn {
        Withdrawn::Missing | Withdrawn::Foreign => {
            lock::unlock(requests, migration, false).await?;
            return Ok(withdrawn);
        }
        Withdrawn::Shut { existed } => (*existed, None),
        Withdrawn::Refused { existed, refusal } => (*existed, Some(refusal)),
    };
    // Repeated each few seconds, a refused retreat writes to v1 only once.
    if refusal.is_none() || is_locked(requests).await? {
        lock::unlock(requests, migration, true).await?;
    }
    if existed || copies == Copies::Delete {
        delete_copies(requests).await?;
    }
    match door::give_back(requests).await {
        Err(Problem::Refused { .. }) if refusal.is_some() => Ok(withdrawn),
        // The API server may let the migration delete an object that it may not change.
        given => given.map(|()| Withdrawn::Shut { existed }),
    }
}

/// Returns true if a migration has locked v1.
async fn is_locked(requests: &Requests) -> Result<bool, Problem> {
    let v1 = requests.get(&cluster_information(ApiGroup::CrdV1)).await?;
    Ok(V1Lock::of(v1.as_ref()).is_ours())
}

/// Returns true if a migration has locked v1 and not opened v3.
pub(super) async fn is_abandoned(requests: &Requests) -> Result<bool, Problem> {
    let v1 = requests.get(&cluster_information(ApiGroup::CrdV1)).await?;
    let lock = V1Lock::of(v1.as_ref());
    if !lock.is_ours() || api_service::aggregated(requests).await?.is_some() {
        return Ok(false);
    }
    let v3 = requests.get(&cluster_information(ApiGroup::V3)).await?;
    Ok(match Door::of(v3.as_ref()) {
        Door::Shut => true,
        Door::Absent => lock == V1Lock::Ours,
        Door::Unmarked | Door::Open | Door::Locked | Door::Foreign => false,
    })
}

/// Deletes the copies, in the reverse order of their creation. Continues after a failure, and returns the first one.
async fn delete_copies(requests: &Requests) -> Result<(), Problem> {
    let mut first: Result<(), Problem> = Ok(());
    for kind in moved_kinds().into_iter().rev() {
        first = first.and(delete_copies_of(requests, kind.v3).await);
    }
    first
}

async fn delete_copies_of(requests: &Requests, resource: Resource) -> Result<(), Problem> {
    let mut first: Result<(), Problem> = Ok(());
    let listed = requests
        .pages(&resource, true, async |page: Vec<Value>| {
            let copies: Vec<&Value> = page.iter().filter(|object| is_copy(object)).collect();
            for some in copies.chunks(PARALLEL) {
                let deletions = some.iter().map(|copy| delete_copy(requests, resource, &copy["metadata"]));
                for deleted in join_all(deletions).await {
                    first = first.clone().and(deleted);
                }
            }
            Ok(())
        })
        .await;
    match listed {
        // The API server does not serve the kind, so that the kind has no copies.
        Err(Problem::Refused { code: 404, .. }) => first,
        Err(problem) => first.and(Err(problem)),
        Ok(_) => first,
    }
}

/// Deletes the copy with this metadata. Its finalizers are those of the object in v1, so that no program would remove
/// them from the copy.
///
/// # Errors
/// [`Problem::Lost`] if the copy has changed: its source may exist again, and the next leader may have opened v3.
pub(super) async fn delete_copy(requests: &Requests, resource: Resource, metadata: &Value) -> Result<(), Problem> {
    let text = |field: &str| metadata[field].as_str().map(str::to_owned);
    let at = Location { resource, namespace: text("namespace"), name: text("name").unwrap_or_default() };
    let mut unchanged = Preconditions { uid: text("uid"), resource_version: text("resourceVersion") };
    if metadata["finalizers"].as_array().is_some_and(|finalizers| !finalizers.is_empty()) {
        let Some(mut copy) = requests.get(&at).await?.filter(is_copy) else { return Ok(()) };
        copy["metadata"]["finalizers"] = Value::Array(Vec::new());
        let stored = requests.replace(&at, &copy).await?;
        unchanged.resource_version = stored["metadata"]["resourceVersion"].as_str().map(str::to_owned);
    }
    requests.delete(&at, &unchanged).await
}

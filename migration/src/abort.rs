//! The way back to v1, after the controlling object was deleted before v3 was opened (MIG-71), and
//! after a failure under the lock. [`end_lock`]: also without the controlling object.

use futures::future::join_all;
use libcalico::kubernetes::{ApiGroup, Resource};
use libcalico::migration::{cluster_information, is_copy, moved_kinds};
use serde_json::Value;

use super::attempts::Withdrawals;
use super::copy::delete_listed;
use super::marks::{V1Lock, V3Access};
use super::object::Control;
use super::requests::{Problem, Requests};
use super::v3_access::Withdrawn;
use super::{api_service, end, lock, v3_access};

/// Number of copies that are deleted at the same time.
const PARALLEL: usize = 10;

/// The copies of a migration whose ClusterInformation of v3 did not exist before, so that no
/// program can use them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Copies {
    /// The next attempt compares them, which saves their creation.
    Keep,
    Delete,
}

/// Restores the state before the migration, as [`end_lock`] does, and shows in the controlling
/// object that v1 is not locked. Then gives the aggregated API server its APIService back. Safe to
/// be repeated after an interruption at any request.
///
/// Returns the reason if v1 is unlocked, but v3 or the APIService is not as before: a refusal may
/// last for days, and each attempt lists all kinds of v3. The APIService is restored also then,
/// except that an abort has to reach the copies that it cannot delete yet.
///
/// # Errors
/// The same as those of [`end_lock`], except for refusals after v1 is unlocked. The caller tries
/// again.
pub(super) async fn restore(
    requests: &Requests,
    control: &mut Control,
    copies: Copies,
    withdrawals: &mut Withdrawals,
) -> Result<Option<String>, Problem> {
    let withdrawn = unlock_v1(requests, control.uid(), withdrawals).await?;
    end::report_unlocked(requests, control).await?;
    let refused = match give_back_v3(requests, withdrawn, copies).await {
        Ok(Withdrawn::Refused { text, .. }) => Some(text),
        given => {
            let refused = refusal(given)?;
            if refused.is_some() && control.is_being_deleted() {
                return Ok(refused);
            }
            refused
        }
    };
    Ok(refused.or(refusal(api_service::give_back(requests, control).await)?))
}

/// Returns the reason if the API server refuses a request or cannot answer it.
fn refusal<T>(given: Result<T, Problem>) -> Result<Option<String>, Problem> {
    match given {
        Err(problem @ (Problem::Refused { .. } | Problem::Transient(_))) => {
            Ok(Some(problem.to_string()))
        }
        given => given.map(|_| None),
    }
}

/// Unlocks v1 for the migration with this uid, and gives back the ClusterInformation of v3. Safe to
/// be repeated after an interruption at any request.
///
/// The order is essential. v1 stays locked as long as v3 can be opened, and pods can start again
/// before copies are deleted. v3 stays closed until then: a leader that takes over finds v1
/// unlocked and v3 closed, and deletes the copies before anything else, so that no late deletion of
/// the former leader meets a copy in use. And programs that could use v3 before would assign
/// addresses of copied blocks.
///
/// A failed withdrawal keeps v1 locked for two minutes only: a cluster in which no pod starts is
/// worse than a ClusterInformation that stays locked, with which no plugin uses v3.
///
/// # Errors
/// [`Problem::Lost`] if v3 is, was or may have been open.
pub(super) async fn end_lock(
    requests: &Requests,
    migration: &str,
    copies: Copies,
    withdrawals: &mut Withdrawals,
) -> Result<Withdrawn, Problem> {
    let withdrawn = unlock_v1(requests, migration, withdrawals).await?;
    give_back_v3(requests, withdrawn, copies).await
}

/// Ensures that v3 stays closed, and unlocks v1.
async fn unlock_v1(
    requests: &Requests,
    migration: &str,
    withdrawals: &mut Withdrawals,
) -> Result<Withdrawn, Problem> {
    // While another server serves v3, the objects of the definitions are unreachable: before the
    // migration has removed the APIService, and again after an abort has restored it.
    let withdrawn = match api_service::aggregated(requests).await? {
        Some(_) => Withdrawn::Foreign,
        None => v3_access::withdraw(requests, withdrawals).await?,
    };
    let (is_closed, is_refused) = match withdrawn {
        Withdrawn::Missing | Withdrawn::Foreign => (false, false),
        Withdrawn::Closed { .. } => (true, false),
        Withdrawn::Refused { .. } => (true, true),
    };
    // Repeated each minute, a refused withdrawal writes to v1 only once.
    if !is_refused || is_locked(requests).await? {
        lock::unlock(requests, migration, is_closed).await?;
    }
    Ok(withdrawn)
}

/// Deletes the copies, if they are not to be kept or if programs could use v3 before, and gives
/// back the ClusterInformation of v3.
async fn give_back_v3(
    requests: &Requests,
    withdrawn: Withdrawn,
    copies: Copies,
) -> Result<Withdrawn, Problem> {
    let (existed, is_refused) = match withdrawn {
        // The copies of a v3 that programs may use belong to a former migration.
        Withdrawn::Foreign => return Ok(withdrawn),
        // A failed attempt may have left copies.
        Withdrawn::Missing => (false, false),
        Withdrawn::Closed { existed } => (existed, false),
        Withdrawn::Refused { existed, .. } => (existed, true),
    };
    if existed || copies == Copies::Delete {
        delete_copies(requests).await?;
    }
    if withdrawn == Withdrawn::Missing {
        return Ok(withdrawn);
    }
    match v3_access::give_back(requests).await {
        Err(Problem::Refused { .. } | Problem::Transient(_)) if is_refused => Ok(withdrawn),
        // The API server may let the migration delete an object that it may not change.
        given => given.map(|()| Withdrawn::Closed { existed }),
    }
}

/// Returns true if a migration has locked v1.
async fn is_locked(requests: &Requests) -> Result<bool, Problem> {
    let v1 = requests.get(&cluster_information(ApiGroup::CrdV1)).await?;
    Ok(V1Lock::of(v1.as_ref()).is_by_migration())
}

/// Returns true if the objects show an unfinished migration: one that has locked v1 and not opened
/// v3, or that was interrupted after it had unlocked v1 and before it gave back v3. The caller has
/// found no controlling object, so no pass of the migration continues or ends it.
///
/// `is_served` is true if the API server serves the kind of the controlling object. Otherwise only
/// a lock of v1 counts, and v3 is not read without one: most clusters have neither.
pub(super) async fn is_abandoned(requests: &Requests, is_served: bool) -> Result<bool, Problem> {
    let v1 = requests.get(&cluster_information(ApiGroup::CrdV1)).await?;
    let lock = V1Lock::of(v1.as_ref());
    let is_possible = lock.is_by_migration() || is_served && lock == V1Lock::Unlocked;
    if !is_possible {
        return Ok(false);
    }
    let is_hidden = api_service::aggregated(requests).await?.is_some();
    let v3 = if is_hidden {
        None
    } else {
        requests.get(&cluster_information(ApiGroup::V3)).await?
    };
    Ok(match V3Access::of(v3.as_ref()) {
        V3Access::Closed => true,
        // The migration has not closed v3 yet, or another program has restored the APIService.
        V3Access::Missing | V3Access::Unmarked | V3Access::UnmarkedAndLocked => {
            lock == V1Lock::ByMigration
        }
        V3Access::Open | V3Access::MarkedAndLocked => false,
    })
}

/// Deletes the copies, in the reverse order of their creation. Continues after a failure, and
/// returns the first one.
async fn delete_copies(requests: &Requests) -> Result<(), Problem> {
    let mut first: Result<(), Problem> = Ok(());
    for kind in moved_kinds().into_iter().rev() {
        first = first.and(delete_copies_of(requests, kind.v3).await);
    }
    first
}

/// Deletes the copies of one kind. Continues after a failure, and returns the first one.
async fn delete_copies_of(requests: &Requests, resource: Resource) -> Result<(), Problem> {
    let mut first: Result<(), Problem> = Ok(());
    let listed = requests
        .pages(&resource, true, async |page: Vec<Value>| {
            let copies: Vec<&Value> = page.iter().filter(|object| is_copy(object)).collect();
            for some in copies.chunks(PARALLEL) {
                let deletions = some
                    .iter()
                    .map(|copy| delete_listed(requests, resource, &copy["metadata"]));
                for deleted in join_all(deletions).await {
                    first = first.clone().and(deleted.map(drop));
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

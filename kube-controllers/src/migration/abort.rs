//! [`abort`]: the way back to v1, after the controlling object was deleted before v3 was opened (MIG-71).

use futures::future::join_all;
use libcalico::kubernetes::{Location, Preconditions, Resource};
use libcalico::migration::{is_copy, moved_kinds};
use serde_json::Value;

use super::marks::Marks;
use super::object::Control;
use super::requests::{Problem, Requests};
use super::{api_service, door, lock};

/// Number of copies that are deleted at the same time.
const PARALLEL: usize = 10;

/// Restores the state before the migration, and then lets the API server remove the controlling object. Safe to be
/// repeated after an interruption at any request.
///
/// The order is essential: v1 stays locked as long as v3 can be opened, and pods can start again before the copies are
/// deleted.
///
/// # Errors
/// The finalizer stays, and the caller tries again.
pub(super) async fn abort(requests: &Requests, control: &mut Control, marks: &Marks) -> Result<(), Problem> {
    // While another server serves v3, the objects of the definitions are unreachable: before the migration has removed
    // the APIService, and again after an abort has restored it.
    if !marks.is_aggregated {
        door::withdraw(requests).await?;
    }
    lock::unlock(requests, control.uid()).await?;
    if !marks.is_aggregated {
        delete_copies(requests).await?;
    }
    api_service::give_back(requests, control).await?;
    tracing::info!("migration: aborted; v1 is as it was before");
    control.remove_finalizer(requests).await
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

/// Deletes a copy. Its finalizers are those of the object in v1, so that no program would remove them from the copy.
pub(super) async fn delete_copy(requests: &Requests, resource: Resource, metadata: &Value) -> Result<(), Problem> {
    let text = |field: &str| metadata[field].as_str().map(str::to_owned);
    let at = Location { resource, namespace: text("namespace"), name: text("name").unwrap_or_default() };
    if metadata["finalizers"].as_array().is_some_and(|finalizers| !finalizers.is_empty()) {
        let Some(mut copy) = requests.get(&at).await?.filter(is_copy) else { return Ok(()) };
        copy["metadata"]["finalizers"] = Value::Array(Vec::new());
        requests.replace(&at, &copy).await?;
    }
    match requests.delete(&at, &Preconditions { uid: text("uid"), resource_version: None }).await {
        // Another object has the name now.
        Err(Problem::Lost) => Ok(()),
        deleted => deleted,
    }
}

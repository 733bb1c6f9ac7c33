//! The deletion of copies: [`delete_listed`] by an abort, and [`delete_without_source`] by a
//! migration.

use libcalico::kubernetes::{Location, Preconditions, Resource};
use libcalico::migration::is_copy;
use serde_json::Value;

use super::super::requests::{Problem, Requests};
use super::one::{CHANGING, TRIES};
use super::outcome::shown_at;

/// Deletes the copy with this metadata, as it was listed, or as it is now: a program that changes
/// the copy would otherwise have the whole pass repeated. Returns false if the object is no copy
/// any more.
///
/// # Errors
/// [`Problem::Refused`] if other programs change the copy all the time.
pub(in super::super) async fn delete_listed(
    requests: &Requests,
    resource: Resource,
    listed: &Value,
) -> Result<bool, Problem> {
    let at = location(resource, listed);
    let mut deleted = delete_copy(requests, resource, listed).await;
    for _ in 1..TRIES {
        if deleted != Err(Problem::Lost) {
            return deleted.map(|()| true);
        }
        let Some(present) = requests.get(&at).await? else {
            return Ok(true);
        };
        if !is_copy(&present) {
            return Ok(false);
        }
        deleted = delete_copy(requests, resource, &present["metadata"]).await;
    }
    match deleted {
        Err(Problem::Lost) => Err(Problem::Refused {
            code: 409,
            text: format!("{}: {CHANGING}", shown_at(&at)),
        }),
        deleted => deleted.map(|()| true),
    }
}

/// Deletes the copy with this metadata, whose source is gone.
///
/// # Errors
/// [`Problem::Refused`] if the object is no copy any more, or if other programs change it all the
/// time.
pub(super) async fn delete_orphan(
    requests: &Requests,
    resource: Resource,
    listed: &Value,
) -> Result<(), Problem> {
    let is_deleted = delete_listed(requests, resource, listed).await?;
    if is_deleted {
        Ok(())
    } else {
        Err(no_copy(&location(resource, listed)))
    }
}

/// Deletes the copy at this place, if it exists. Its source is gone.
///
/// # Errors
/// [`Problem::Refused`] if the object is no copy, or if other programs change it all the time.
pub(super) async fn delete_without_source(
    requests: &Requests,
    at: &Location,
) -> Result<(), Problem> {
    let Some(present) = requests.get(at).await? else {
        return Ok(());
    };
    if !is_copy(&present) {
        return Err(no_copy(at));
    }
    delete_orphan(requests, at.resource, &present["metadata"]).await?;
    tracing::info!(
        object = shown_at(at),
        "migration: the object was deleted in v1, and so is its copy"
    );
    Ok(())
}

fn no_copy(at: &Location) -> Problem {
    let text = format!(
        "{}: the object was deleted in v1; delete it from v3",
        shown_at(at)
    );
    Problem::Refused { code: 409, text }
}

fn location(resource: Resource, metadata: &Value) -> Location {
    let text = |field: &str| metadata[field].as_str().map(str::to_owned);
    Location {
        resource,
        namespace: text("namespace"),
        name: text("name").unwrap_or_default(),
    }
}

/// Deletes the copy with this metadata. Its finalizers are those of the object in v1, so that no
/// program would remove them from the copy.
///
/// # Errors
/// [`Problem::Lost`] if the copy has changed: its source may exist again, and the next leader may
/// have opened v3.
pub(in super::super) async fn delete_copy(
    requests: &Requests,
    resource: Resource,
    metadata: &Value,
) -> Result<(), Problem> {
    let text = |field: &str| metadata[field].as_str().map(str::to_owned);
    let at = location(resource, metadata);
    let mut unchanged = Preconditions {
        uid: text("uid"),
        resource_version: text("resourceVersion"),
    };
    if metadata["finalizers"]
        .as_array()
        .is_some_and(|finalizers| !finalizers.is_empty())
    {
        let Some(mut copy) = requests.get(&at).await?.filter(is_copy) else {
            return Ok(());
        };
        copy["metadata"]["finalizers"] = Value::Array(Vec::new());
        let stored = requests.replace(&at, &copy).await?;
        unchanged.resource_version = stored["metadata"]["resourceVersion"]
            .as_str()
            .map(str::to_owned);
    }
    requests.delete(&at, &unchanged).await
}

//! [`CopiedKind`]: the state in which the objects of a kind were copied, and the changes in v1 since.
//!
//! An ADD or DEL from before the lock may still write to v1 after it: it has a deadline for each request, not for the
//! whole call. So may programs that do not observe the lock (MB-5).

use std::collections::{HashMap, HashSet};

use futures::future::join_all;
use libcalico::kubernetes::Location;
use libcalico::migration::{MovedKind, OwnerMap, is_copy, to_v3};
use serde_json::Value;

use super::super::abort::delete_copy;
use super::super::listing;
use super::super::requests::{Problem, Requests};
use super::one::{Action, treat};
use super::outcome::{Category, shown};
use super::owners::attach;
use super::walk::{KindWalk, OwnedObject, PARALLEL};

/// The objects of a kind that were copied, by their names in v1.
pub(super) struct CopiedKind {
    kind: MovedKind,
    copies: HashMap<String, CopyState>,
}

/// The state of an object that was copied.
#[derive(Debug, Clone, PartialEq, Eq)]
struct CopyState {
    /// The resourceVersion in v1.
    revision: String,
    name_in_v3: String,
}

/// The result of a look at a kind.
pub(super) struct LookResult {
    /// Number of objects that had changed.
    pub(super) changes: usize,
    /// The resourceVersion of the list in v1.
    pub(super) revision: String,
}

/// The means by which changed objects are copied.
#[derive(Clone, Copy)]
pub(super) struct CopyTools<'a> {
    pub(super) requests: &'a Requests,
    pub(super) owners: &'a OwnerMap,
    pub(super) action: Action<'a>,
}

impl CopiedKind {
    /// Returns the copies of a walk; `None` for a kind that no plugin writes.
    pub(super) fn of(walk: KindWalk<'_>) -> Option<Self> {
        if !["BlockAffinity", "IPAMBlock", "IPAMHandle"].contains(&walk.kind.v3.kind) {
            return None;
        }
        let copies = walk
            .sources
            .into_iter()
            .map(|((_, name_in_v3), source)| (source.name, CopyState { revision: source.revision, name_in_v3 }));
        Some(CopiedKind { kind: *walk.kind, copies: copies.collect() })
    }

    /// Lists the objects in v1 again, copies the changed ones, and deletes the copies of deleted ones.
    ///
    /// # Errors
    /// [`Problem::Refused`] if a changed object cannot be copied.
    pub(super) async fn look(&mut self, tools: CopyTools<'_>) -> Result<LookResult, Problem> {
        let project = |object: &Value| {
            let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default();
            let is_unchanged =
                self.copies.get(text("name")).is_some_and(|copy| copy.revision == text("resourceVersion"));
            Some((text("name").to_owned(), is_unchanged))
        };
        let (listed, revision) = listing::metadata(tools.requests, &self.kind.v1, project).await?;
        let changed: Vec<&str> =
            listed.iter().filter(|(_, is_unchanged)| !is_unchanged).map(|(name, _)| name.as_str()).collect();
        let present: HashSet<&str> = listed.iter().map(|(name, _)| name.as_str()).collect();
        let gone: Vec<String> = self.copies.keys().filter(|name| !present.contains(name.as_str())).cloned().collect();
        for some in changed.chunks(PARALLEL) {
            let copied = join_all(some.iter().map(|name| copy_again(&self.kind, name, tools))).await;
            for (name, copied) in some.iter().zip(copied) {
                match copied? {
                    Some(state) => _ = self.copies.insert((*name).to_owned(), state),
                    // The next look finds it among the deleted objects.
                    None => _ = self.copies.entry((*name).to_owned()).and_modify(|copy| copy.revision.clear()),
                }
            }
        }
        for name in &gone {
            if let Some(copy) = self.copies.get(name) {
                delete_without_source(&self.kind, &copy.name_in_v3, tools).await?;
                self.copies.remove(name);
            }
        }
        Ok(LookResult { changes: changed.len() + gone.len(), revision })
    }
}

/// Copies a changed object. Returns `None` if the object has been deleted.
async fn copy_again(kind: &MovedKind, name: &str, tools: CopyTools<'_>) -> Result<Option<CopyState>, Problem> {
    let refused = |reason: &str| {
        let text = format!("{}: {reason}", shown(kind.v3.kind, None, name));
        Problem::Refused { code: 409, text }
    };
    let Some(object) = tools.requests.get(&Location::global(kind.v1, name)).await? else { return Ok(None) };
    let moved = to_v3(kind, object).map_err(|reason| refused(&reason.to_string()))?;
    let treated = treat(tools.requests, &moved, tools.action).await?;
    if matches!(treated.category, Category::Conflict | Category::Refused) {
        return Err(refused(&treated.reason));
    }
    if let Some(owned) = OwnedObject::of(&moved) {
        attach(tools.requests, tools.owners, &owned, tools.action).await?;
    }
    tracing::info!(object = shown(kind.v3.kind, None, name), "migration: the object changed in v1 and is copied again");
    Ok(Some(CopyState { revision: moved.source.revision, name_in_v3: moved.location.name }))
}

/// Deletes the copy of a deleted object.
async fn delete_without_source(kind: &MovedKind, name: &str, tools: CopyTools<'_>) -> Result<(), Problem> {
    let at = Location::global(kind.v3, name);
    let Some(existing) = tools.requests.get(&at).await? else { return Ok(()) };
    if !is_copy(&existing) {
        let text = format!("{}: the object was deleted in v1; delete it from v3", shown(kind.v3.kind, None, name));
        return Err(Problem::Refused { code: 409, text });
    }
    tracing::info!(
        object = shown(kind.v3.kind, None, name),
        "migration: the object was deleted in v1, and so is its copy"
    );
    delete_copy(tools.requests, kind.v3, &existing["metadata"]).await
}

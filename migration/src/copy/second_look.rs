//! [`CopiedKind`]: the state in which the objects of a kind were copied, and the changes in v1
//! since.
//!
//! An ADD or DEL from before the lock may still write to v1 after it: it has a deadline for each
//! request, not for the whole call. So may programs that do not observe the lock (MB-5), and
//! people: a policy that they create while objects are copied must not be lost.

use std::collections::{HashMap, HashSet};

use futures::future::join_all;
use libcalico::kubernetes::{Location, Resource};
use libcalico::migration::{MovedKind, to_v3};
use serde_json::Value;

use super::super::listing;
use super::super::requests::Problem;
use super::deletion::delete_without_source;
use super::one::treat;
use super::outcome::{Category, shown_at};
use super::owners::{CopyTools, attach};
use super::walk::{KindWalk, ObjectName, OwnedObject, PARALLEL, same_name};

/// The objects of a kind that were copied, by their namespaces and their names in v1.
pub(super) struct CopiedKind {
    kind: MovedKind,
    copies: HashMap<ObjectName, CopyState>,
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

impl CopiedKind {
    /// Returns the copies of a walk; `None` for the kind whose objects calico-node writes all the
    /// time.
    pub(super) fn of(walk: KindWalk<'_>) -> Option<Self> {
        if walk.kind.v3.kind == "CalicoNodeStatus" {
            return None;
        }
        let copies = walk
            .sources
            .into_iter()
            .map(|((namespace, name_in_v3), source)| {
                (
                    (namespace, source.name),
                    CopyState {
                        revision: source.revision,
                        name_in_v3,
                    },
                )
            });
        Some(CopiedKind {
            kind: *walk.kind,
            copies: copies.collect(),
        })
    }

    /// Lists the objects in v1 again, copies the changed ones, and deletes the copies of deleted
    /// ones.
    ///
    /// # Errors
    /// [`Problem::Refused`] if a changed object cannot be copied.
    pub(super) async fn look(&mut self, tools: CopyTools<'_>) -> Result<LookResult, Problem> {
        let project = |object: &Value| {
            let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default();
            let name = (text("namespace").to_owned(), text("name").to_owned());
            let is_unchanged = self
                .copies
                .get(&name)
                .is_some_and(|copy| copy.revision == text("resourceVersion"));
            Some((name, is_unchanged))
        };
        let (listed, revision) = listing::metadata(tools.requests, &self.kind.v1, project).await?;
        let changed: Vec<&ObjectName> = listed
            .iter()
            .filter(|(_, is_unchanged)| !is_unchanged)
            .map(|(name, _)| name)
            .collect();
        let present: HashSet<&ObjectName> = listed.iter().map(|(name, _)| name).collect();
        let gone: Vec<ObjectName> = self
            .copies
            .keys()
            .filter(|name| !present.contains(name))
            .cloned()
            .collect();
        // The deletions come first: a new object may have the name in v3 of a deleted one.
        for name in &gone {
            if let Some(copy) = self.copies.get(name) {
                let copied = (name.0.clone(), copy.name_in_v3.clone());
                delete_without_source(tools.requests, &location(self.kind.v3, &copied)).await?;
                self.copies.remove(name);
            }
        }
        for some in changed.chunks(PARALLEL) {
            let copied = join_all(some.iter().map(|name| self.copy_again(name, tools))).await;
            for (name, copied) in some.iter().zip(copied) {
                match copied? {
                    Some(state) => _ = self.copies.insert((*name).clone(), state),
                    // The next look finds it among the deleted objects.
                    None => {
                        _ = self
                            .copies
                            .entry((*name).clone())
                            .and_modify(|copy| copy.revision.clear())
                    }
                }
            }
        }
        Ok(LookResult {
            changes: changed.len() + gone.len(),
            revision,
        })
    }

    /// Copies a changed object. Returns `None` if the object has been deleted.
    async fn copy_again(
        &self,
        name: &ObjectName,
        tools: CopyTools<'_>,
    ) -> Result<Option<CopyState>, Problem> {
        let at = location(self.kind.v1, name);
        let refused = |reason: &str| Problem::Refused {
            code: 409,
            text: format!("{}: {reason}", shown_at(&at)),
        };
        let Some(object) = tools.requests.get_by_list(&at).await? else {
            return Ok(None);
        };
        let moved = to_v3(&self.kind, object).map_err(|reason| refused(&reason.to_string()))?;
        let name_in_v3 = &moved.location.name;
        let is_first = |other: &ObjectName, copy: &CopyState| {
            other != name && other.0 == name.0 && copy.name_in_v3 == *name_in_v3
        };
        if let Some((first, _)) = self
            .copies
            .iter()
            .find(|(other, copy)| is_first(other, copy))
        {
            return Err(refused(&same_name(&first.1)));
        }
        let treated = treat(tools.requests, &moved, tools.action).await?;
        if matches!(treated.category, Category::Conflict | Category::Refused) {
            return Err(refused(&treated.reason));
        }
        if let Some(owned) = OwnedObject::of(&moved) {
            attach(tools, &owned).await?;
        }
        tracing::info!(
            object = shown_at(&at),
            "migration: the object changed in v1 and is copied again"
        );
        Ok(Some(CopyState {
            revision: moved.source.revision,
            name_in_v3: moved.location.name,
        }))
    }
}

fn location(resource: Resource, (namespace, name): &ObjectName) -> Location {
    let namespace = (!namespace.is_empty()).then(|| namespace.clone());
    Location {
        resource,
        namespace,
        name: name.clone(),
    }
}

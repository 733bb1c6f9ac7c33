//! [`KindWalk`]: reads the objects of a kind page by page, and treats ten of them at a time.

use std::collections::HashMap;

use futures::future::join_all;
use libcalico::kubernetes::{Location, Moved, json_bytes};
use libcalico::migration::{MovedKind, OwnerMap, to_v3};
use serde_json::Value;

use super::super::listing;
use super::super::requests::{Problem, Requests};
use super::one::{Action, Treated, treat};
use super::outcome::{Category, Outcome, shown, shown_at};

/// Number of objects that are treated at the same time.
pub(super) const PARALLEL: usize = 10;
/// Greatest length of a reason in the log, in characters.
const LONGEST_LOGGED: usize = 300;

/// Greatest size of the references to owners of an object, as JSON in bytes. The references of all
/// objects stay in memory until the copies of the owners exist.
const LARGEST_OWNERS: usize = 16 * 1024;

/// The name of an object with its namespace, which is empty for cluster-scoped objects.
pub(super) type ObjectName = (String, String);

/// The result for all objects of a kind.
pub(super) struct KindWalk<'a> {
    pub(super) requests: &'a Requests,
    pub(super) kind: &'a MovedKind,
    pub(super) action: Action<'a>,
    pub(super) outcome: Outcome,
    /// The objects of v1, by their names in v3.
    pub(super) sources: HashMap<ObjectName, SourceState>,
    /// Whether to trust `sources`: false if the name of an object in v3 is unknown.
    pub(super) is_complete: bool,
    /// The objects with references to owners that may be missing.
    pub(super) owned: Vec<OwnedObject>,
}

/// An object of v1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SourceState {
    pub(super) name: String,
    /// The resourceVersion of the state that was treated.
    pub(super) revision: String,
}

/// An object with references to owners that may be missing.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct OwnedObject {
    pub(super) location: Location,
    /// The other references, which the copy has already.
    pub(super) others: Vec<Value>,
    /// The references as in [`Moved::owners`].
    pub(super) owners: Vec<Value>,
}

impl OwnedObject {
    /// Returns `None` for an object without such references.
    pub(super) fn of(moved: &Moved) -> Option<Self> {
        let others = moved.body["metadata"]["ownerReferences"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        let (location, owners) = (moved.location.clone(), moved.owners.clone());
        (!owners.is_empty()).then_some(OwnedObject {
            location,
            others,
            owners,
        })
    }

    fn is_too_large(&self) -> bool {
        let size: usize = self
            .others
            .iter()
            .chain(&self.owners)
            .map(|owner| json_bytes(owner).len())
            .sum();
        size > LARGEST_OWNERS
    }
}

impl<'a> KindWalk<'a> {
    /// Treats all objects of a kind, and adds their copies to `owners`. A kind that v1 does not
    /// have has no objects.
    pub(super) async fn run(
        requests: &'a Requests,
        kind: &'a MovedKind,
        action: Action<'a>,
        owners: &mut OwnerMap,
    ) -> Result<Self, Problem> {
        for _ in 0..listing::ATTEMPTS {
            let mut walk = KindWalk::new(requests, kind, action);
            let listed = requests
                .pages(&kind.v1, false, async |page: Vec<Value>| {
                    walk.treat_page(page, owners).await
                })
                .await;
            let Err(problem) = listed else {
                return Ok(walk);
            };
            if listing::is_unserved(requests, &kind.v1, &problem).await? {
                return Ok(KindWalk::new(requests, kind, action));
            }
            if !listing::has_expired(&problem) {
                return Err(problem);
            }
        }
        Err(listing::expired(&kind.v1))
    }

    fn new(requests: &'a Requests, kind: &'a MovedKind, action: Action<'a>) -> Self {
        KindWalk {
            requests,
            kind,
            action,
            outcome: Outcome::of(kind.v3.kind),
            sources: HashMap::new(),
            is_complete: true,
            owned: Vec::new(),
        }
    }

    async fn treat_page(&mut self, page: Vec<Value>, owners: &mut OwnerMap) -> Result<(), Problem> {
        let moved: Vec<Moved> = page
            .into_iter()
            .filter_map(|object| self.convert(object))
            .collect();
        let (requests, action) = (self.requests, self.action);
        for some in moved.chunks(PARALLEL) {
            let treated = join_all(some.iter().map(|moved| treat(requests, moved, action))).await;
            for (moved, treated) in some.iter().zip(treated) {
                self.record(moved, treated?, owners);
                action.treated();
            }
        }
        Ok(())
    }

    /// Converts an object. Returns `None` if v3 cannot have the object.
    fn convert(&mut self, v1: Value) -> Option<Moved> {
        let text = |field: &str| v1["metadata"][field].as_str().map(str::to_owned);
        let name = text("name").unwrap_or_default();
        let object = shown(self.kind.v3.kind, text("namespace").as_deref(), &name);
        let moved = match to_v3(self.kind, v1) {
            Ok(moved) => moved,
            Err(reason) => {
                self.is_complete = false;
                self.add(Category::Refused, object, &reason.to_string());
                return None;
            }
        };
        let owned = OwnedObject::of(&moved);
        let name_in_v3 = object_name(&moved.location);
        if owned.as_ref().is_some_and(OwnedObject::is_too_large) {
            self.is_complete = false;
            self.add(
                Category::Refused,
                object,
                "the references to owners are too large; remove some",
            );
            return None;
        }
        if let Some(first) = self.sources.get(&name_in_v3) {
            let reason = same_name(&first.name);
            self.add(Category::Refused, object, &reason);
            return None;
        }
        self.sources.insert(
            name_in_v3,
            SourceState {
                name,
                revision: moved.source.revision.clone(),
            },
        );
        self.owned.extend(owned);
        Some(moved)
    }

    fn record(&mut self, moved: &Moved, treated: Treated, owners: &mut OwnerMap) {
        let Treated {
            category,
            reason,
            uid,
        } = treated;
        if matches!(category, Category::Copied | Category::Skipped) {
            // Without a copy, any uid shows that the owner will have one.
            owners.insert(
                &moved.location,
                &moved.source.uid,
                uid.as_deref().unwrap_or(&moved.source.uid),
            );
        }
        self.add(category, shown_at(&moved.location), &reason);
    }

    /// Adds an object to the outcome. The log names objects that prevent a migration under way.
    pub(super) fn add(&mut self, category: Category, object: String, reason: &str) {
        let is_reported = matches!(category, Category::Conflict | Category::Refused);
        if is_reported && matches!(self.action, Action::Copy { .. }) {
            let reason: String = reason.chars().take(LONGEST_LOGGED).collect();
            tracing::warn!(object, reason, "migration: the object is not copied");
        }
        self.outcome
            .add(self.kind.v3.kind, category, object, reason);
    }
}

/// Returns the reason why an object cannot be copied beside the object with the name `first`.
pub(super) fn same_name(first: &str) -> String {
    format!("{first} has the same name in v3; delete one of the two")
}

pub(super) fn object_name(at: &Location) -> ObjectName {
    (at.namespace.clone().unwrap_or_default(), at.name.clone())
}

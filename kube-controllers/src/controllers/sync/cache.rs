//! [`SourceCache`]: the cached sources, and the targets that cannot be written.

use std::collections::HashMap;

use libcalico::api::ObjectKey;

use super::SyncedKind;
use crate::controllers::cached::ResyncKey;
use crate::watched::Watched;
use crate::watches::{Cache, Event};

/// The cached sources.
pub struct SourceCache<M: SyncedKind> {
    sources: Cache<ObjectKey, M::Cached>,
    /// Targets that failed the validation, with the reason.
    refused: HashMap<ObjectKey, String>,
}

impl<M: SyncedKind> Default for SourceCache<M> {
    fn default() -> Self {
        SourceCache { sources: Cache::default(), refused: HashMap::new() }
    }
}

impl<M: SyncedKind> SourceCache<M> {
    /// Applies an event. Returns the targets of the changed sources. The first complete list returns the first
    /// comparison of all objects, even if the reconcile period is zero. Before that, the cache is incomplete and
    /// nothing is to be done.
    pub(super) fn apply(&mut self, event: &Event<'_, M::Source>) -> Vec<ResyncKey> {
        let was_synced = self.sources.is_synced();
        let before = match event {
            Event::Upsert(source) => self.sources.get(&source.key()).cloned(),
            _ => None,
        };
        let changed = self.sources.apply(event, |source| Some(M::cache(source, before.as_ref())));
        let targets: Vec<ObjectKey> = changed.iter().map(M::target_of).collect();
        for target in &targets {
            self.refused.remove(target);
        }
        match (was_synced, self.sources.is_synced()) {
            (true, _) => targets.into_iter().map(ResyncKey::One).collect(),
            (false, true) => vec![ResyncKey::All],
            (false, false) => Vec::new(),
        }
    }

    /// Returns true if the cache contains all sources, so that any other source is known not to exist.
    pub(super) fn is_complete(&self) -> bool {
        self.sources.is_synced()
    }

    /// Returns the cached part of a source.
    pub(super) fn get(&self, source: &ObjectKey) -> Option<M::Cached> {
        self.sources.get(source).cloned()
    }

    /// Returns the keys of all desired targets, except those that failed the validation.
    pub(super) fn targets(&self) -> Vec<ObjectKey> {
        let all = self.sources.iter().map(|(source, _)| M::target_of(source));
        all.filter(|target| !self.refused.contains_key(target)).collect()
    }

    /// Records that a target failed the validation. Returns true if the reason is new.
    pub(super) fn refuse(&mut self, key: &ObjectKey, why: &str) -> bool {
        self.refused.insert(key.clone(), why.to_owned()).is_none_or(|before| before != why)
    }

    /// Returns the number of targets that failed the validation.
    pub(super) fn refused(&self) -> usize {
        self.refused.len()
    }
}

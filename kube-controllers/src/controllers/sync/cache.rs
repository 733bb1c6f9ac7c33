//! [`SourceCache`]: the cached sources, and the targets that cannot be written.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use libcalico::api::ObjectKey;

use super::kind::{SyncedKind, SyncedSpec};
use crate::watches::{Cache, Event};

/// The cached sources. Cheap to clone; all clones share them.
pub(super) struct SourceCache<M: SyncedKind> {
    shared: Arc<Mutex<State<M>>>,
}

struct State<M: SyncedKind> {
    sources: Cache<ObjectKey, M::Cached>,
    /// Targets that failed the validation, with the reason.
    refused: HashMap<ObjectKey, String>,
}

/// The changes by an event.
pub(super) struct SourceChanges {
    /// Sources that were added, changed or removed. Empty until the first list is complete.
    pub(super) sources: Vec<ObjectKey>,
    /// True if this event completed the first list.
    pub(super) first_list_complete: bool,
}

impl<M: SyncedKind> Clone for SourceCache<M> {
    fn clone(&self) -> Self {
        SourceCache { shared: self.shared.clone() }
    }
}

impl<M: SyncedKind> Default for SourceCache<M> {
    fn default() -> Self {
        let state = State { sources: Cache::default(), refused: HashMap::new() };
        SourceCache { shared: Arc::new(Mutex::new(state)) }
    }
}

impl<M: SyncedKind> SourceCache<M> {
    pub(super) fn apply(&self, event: &Event<'_, M::Source>) -> SourceChanges {
        let mut state = self.state();
        let was_synced = state.sources.is_synced();
        let State { sources, refused } = &mut *state;
        let before = match event {
            Event::Upsert(source) => sources.get(&crate::watched::Watched::key(*source)).cloned(),
            _ => None,
        };
        let mut changed = sources.apply(event, |source| Some(M::cache(source, before.as_ref())));
        for source in &changed {
            refused.remove(&M::target_of(source));
        }
        if !was_synced {
            changed.clear();
        }
        SourceChanges { sources: changed, first_list_complete: !was_synced && sources.is_synced() }
    }

    /// Returns true if the cache contains all sources, so that any other source is known not to exist.
    pub(super) fn is_complete(&self) -> bool {
        self.state().sources.is_synced()
    }

    /// Returns the desired target under `key`.
    pub(super) fn desired(&self, key: &ObjectKey) -> Option<SyncedSpec<M::Target>> {
        let source = M::source_of(key)?;
        let cached = self.state().sources.get(&source)?.clone();
        Some(M::convert(&source, &cached))
    }

    /// Returns the keys of all desired targets, except those that failed the validation.
    pub(super) fn targets(&self) -> Vec<ObjectKey> {
        let state = self.state();
        let all = state.sources.iter().map(|(source, _)| M::target_of(source));
        all.filter(|target| !state.refused.contains_key(target)).collect()
    }

    /// Records that a target failed the validation. Returns true if the reason is new.
    pub(super) fn refuse(&self, key: &ObjectKey, why: &str) -> bool {
        self.state().refused.insert(key.clone(), why.to_owned()).is_none_or(|before| before != why)
    }

    /// Returns the number of targets that failed the validation.
    pub(super) fn refused(&self) -> usize {
        self.state().refused.len()
    }

    fn state(&self) -> MutexGuard<'_, State<M>> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

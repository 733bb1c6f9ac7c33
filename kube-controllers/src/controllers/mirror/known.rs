//! [`Known`]: what the feed has named, and which of it cannot be mirrored.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use libcalico::api::ObjectKey;

use super::{Mirrored, Reflection};
use crate::feed::{Cache, Event};

/// The sources. Cheap to clone; all clones are the same.
pub(super) struct Known<M: Mirrored> {
    shared: Arc<Mutex<State<M>>>,
}

struct State<M: Mirrored> {
    sources: Cache<ObjectKey, M::Kept>,
    /// Mirrors that may not be written, and why.
    refused: HashMap<ObjectKey, String>,
}

/// What an event changed.
pub(super) struct Heard {
    /// Sources that came, changed or went, after the first list was complete.
    pub(super) changed: Vec<ObjectKey>,
    /// Everything that exists has been named for the first time.
    pub(super) first_list_complete: bool,
}

impl<M: Mirrored> Clone for Known<M> {
    fn clone(&self) -> Self {
        Known { shared: self.shared.clone() }
    }
}

impl<M: Mirrored> Default for Known<M> {
    fn default() -> Self {
        let state = State { sources: Cache::default(), refused: HashMap::new() };
        Known { shared: Arc::new(Mutex::new(state)) }
    }
}

impl<M: Mirrored> Known<M> {
    pub(super) fn follow(&self, event: &Event<'_, M::Source>) -> Heard {
        let mut state = self.state();
        let was_synced = state.sources.is_synced();
        let State { sources, refused } = &mut *state;
        let before = match event {
            Event::Put(source) => sources.get(&crate::watched::Watched::key(*source)).cloned(),
            _ => None,
        };
        let mut changed = sources.follow(event, |source| Some(M::keep(source, before.as_ref())));
        for source in &changed {
            refused.remove(&M::mirror_of(source));
        }
        if !was_synced {
            changed.clear();
        }
        Heard { changed, first_list_complete: !was_synced && sources.is_synced() }
    }

    /// Whether it is known what is there and, as much, what is not.
    pub(super) fn is_complete(&self) -> bool {
        self.state().sources.is_synced()
    }

    /// The mirror that is to be there under `key`.
    pub(super) fn reflection(&self, key: &ObjectKey) -> Option<Reflection<M::Mirror>> {
        let source = M::source_of(key)?;
        let kept = self.state().sources.get(&source)?.clone();
        Some(M::reflect(&source, &kept))
    }

    /// The keys of all mirrors that are to be there, but for those that may not be written.
    pub(super) fn mirrors(&self) -> Vec<ObjectKey> {
        let state = self.state();
        let all = state.sources.iter().map(|(source, _)| M::mirror_of(source));
        all.filter(|mirror| !state.refused.contains_key(mirror)).collect()
    }

    /// Notes that a mirror may not be written. Whether that is news.
    pub(super) fn refuse(&self, key: &ObjectKey, why: &str) -> bool {
        self.state().refused.insert(key.clone(), why.to_owned()).is_none_or(|before| before != why)
    }

    /// How many mirrors may not be written.
    pub(super) fn refused(&self) -> usize {
        self.state().refused.len()
    }

    fn state(&self) -> MutexGuard<'_, State<M>> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

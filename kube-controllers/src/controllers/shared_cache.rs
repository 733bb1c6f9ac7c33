//! [`SharedCache`]: the cache of a controller.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use std::hash::Hash;

use crate::runtime::Queue;
use crate::watched::Watched;
use crate::watches::{Event, Subscribers};

/// A cache that event handlers fill and workers read. Clones share it.
#[derive(Debug, Default)]
pub(super) struct SharedCache<C>(Arc<Mutex<C>>);

impl<C> Clone for SharedCache<C> {
    fn clone(&self) -> Self {
        SharedCache(self.0.clone())
    }
}

impl<C> SharedCache<C> {
    /// Locks the cache. A panic under the lock is harmless: the next full list repairs the cache.
    pub(super) fn lock(&self) -> MutexGuard<'_, C> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<C: Send + 'static> SharedCache<C> {
    /// Passes the events of a watch to `apply`, and adds the keys that it returns to the queue.
    pub(super) fn subscribe<T: Watched, K: Clone + Eq + Hash + Send + 'static>(
        &self,
        subscribers: &mut Subscribers<T>,
        queue: &Queue<K>,
        apply: fn(&mut C, &Event<'_, T>) -> Vec<K>,
    ) {
        let (cache, queue) = (self.clone(), queue.clone());
        subscribers.subscribe(move |event: &Event<'_, T>| {
            let changed = apply(&mut cache.lock(), event);
            changed.into_iter().for_each(|key| queue.add(key));
        });
    }
}

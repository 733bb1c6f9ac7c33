//! A queue of keys. A key is in the queue at most once, and at most one worker processes it at a time.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use hashlink::LinkedHashMap;
use prometheus::IntGauge;
use tokio::sync::Notify;
use tokio::time::Instant;

/// The keys that wait to be processed. Cheap to clone; all clones are the same queue.
pub struct Queue<K> {
    shared: Arc<Shared<K>>,
}

struct Shared<K> {
    state: Mutex<State<K>>,
    changed: Notify,
    /// Gauge of the number of waiting keys, once [`Queue::publish_depth`] has set it.
    depth: OnceLock<IntGauge>,
}

struct State<K> {
    /// The waiting keys in the order of their addition, with the time at which each was added.
    waiting: LinkedHashMap<K, Instant>,
    /// The keys that workers are processing. The value is true if the key was added again after a worker took it.
    in_progress: HashMap<K, bool>,
    timers: Timers<K>,
}

/// The keys that were added with a delay, with one deadline for each.
struct Timers<K> {
    /// The number distinguishes keys with the same deadline.
    by_deadline: BTreeMap<(Instant, u64), K>,
    by_key: HashMap<K, (Instant, u64)>,
    next_number: u64,
}

pub(super) struct TakenKey<K> {
    pub(super) key: K,
    pub(super) waited: Duration,
}

impl<K> Clone for Queue<K> {
    fn clone(&self) -> Self {
        Queue { shared: self.shared.clone() }
    }
}

impl<K: Clone + Eq + Hash + Send + 'static> Default for Queue<K> {
    fn default() -> Self {
        let timers = Timers { by_deadline: BTreeMap::new(), by_key: HashMap::new(), next_number: 0 };
        let state = State { waiting: LinkedHashMap::new(), in_progress: HashMap::new(), timers };
        Queue { shared: Arc::new(Shared { state: Mutex::new(state), changed: Notify::new(), depth: OnceLock::new() }) }
    }
}

impl<K: Clone + Eq + Hash + Send + 'static> Queue<K> {
    /// Adds a key, unless the key is waiting already. A key that a worker is processing is added when the worker is
    /// done. A delay set by [`Queue::add_after`] is discarded.
    pub fn add(&self, key: K) {
        self.change(|state| state.add(key));
    }

    /// Adds a key after `delay`, unless the key is added earlier. Only the earliest deadline of each key counts.
    pub fn add_after(&self, key: K, delay: Duration) {
        if delay.is_zero() {
            return self.add(key);
        }
        let is_first = self.change(|state| {
            let first = state.timers.first_deadline();
            if !state.waiting.contains_key(&key) {
                state.timers.set(key, Instant::now() + delay);
            }
            state.timers.first_deadline() != first
        });
        if is_first {
            // All waiting workers wait for a later deadline, so they have to wake and read the new one.
            self.shared.changed.notify_waiters();
        }
    }

    /// Records that the worker has finished with `key`. Adds the key again if it was added while the worker processed
    /// it.
    pub fn done(&self, key: &K) {
        self.change(|state| {
            if state.in_progress.remove(key).unwrap_or(false) {
                state.add(key.clone());
            }
        });
    }

    /// Waits for the next key and takes it. The caller has to call [`Queue::done`] with the key. If the future is
    /// dropped, no key is taken.
    pub(super) async fn take_next(&self) -> TakenKey<K> {
        loop {
            let changed = self.shared.changed.notified();
            match self.take() {
                Ok(taken) => return taken,
                Err(Some(due)) => _ = tokio::time::timeout_at(due, changed).await,
                Err(None) => changed.await,
            }
        }
    }

    /// Publishes the number of waiting keys in `gauge`, at once and after each change.
    pub(super) fn publish_depth(&self, gauge: IntGauge) {
        let _ = self.shared.depth.set(gauge);
        self.change(|_| ());
    }

    /// Takes a key. If no key is waiting, returns the earliest deadline of a delayed key as the error, or `None` if no
    /// key is delayed.
    fn take(&self) -> Result<TakenKey<K>, Option<Instant>> {
        let now = Instant::now();
        self.change(|state| {
            state.add_due(now);
            let Some((key, since)) = state.waiting.pop_front() else { return Err(state.timers.first_deadline()) };
            state.in_progress.insert(key.clone(), false);
            Ok(TakenKey { key, waited: now.saturating_duration_since(since) })
        })
    }

    /// Changes the state, then wakes one waiting worker if a key can be taken.
    fn change<T>(&self, change: impl FnOnce(&mut State<K>) -> T) -> T {
        let mut state = self.state();
        let result = change(&mut state);
        let waiting = state.waiting.len();
        if let Some(depth) = self.shared.depth.get() {
            depth.set(i64::try_from(waiting).unwrap_or(i64::MAX));
        }
        drop(state);
        if waiting > 0 {
            self.shared.changed.notify_one();
        }
        result
    }

    fn state(&self) -> MutexGuard<'_, State<K>> {
        // A poisoned lock is safe to use: the only code of other modules that runs under it is that of a key: `Clone`,
        // `Hash`, `Eq` and its drop.
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Clone + Eq + Hash> State<K> {
    fn add(&mut self, key: K) {
        self.timers.remove(&key);
        if let Some(is_added_again) = self.in_progress.get_mut(&key) {
            *is_added_again = true;
        } else if !self.waiting.contains_key(&key) {
            self.waiting.insert(key, Instant::now());
        }
    }

    fn add_due(&mut self, now: Instant) {
        while let Some(key) = self.timers.due(now) {
            self.add(key);
        }
    }
}

impl<K: Clone + Eq + Hash> Timers<K> {
    fn set(&mut self, key: K, deadline: Instant) {
        if self.by_key.get(&key).is_some_and(|(earlier, _)| *earlier <= deadline) {
            return;
        }
        self.remove(&key);
        let slot = (deadline, self.next_number);
        self.next_number += 1;
        self.by_deadline.insert(slot, key.clone());
        self.by_key.insert(key, slot);
    }

    fn remove(&mut self, key: &K) {
        if let Some(slot) = self.by_key.remove(key) {
            self.by_deadline.remove(&slot);
        }
    }

    fn first_deadline(&self) -> Option<Instant> {
        self.by_deadline.first_key_value().map(|((deadline, _), _)| *deadline)
    }

    fn due(&mut self, now: Instant) -> Option<K> {
        self.first_deadline().filter(|deadline| *deadline <= now)?;
        let (_, key) = self.by_deadline.pop_first()?;
        self.by_key.remove(&key);
        Some(key)
    }
}

#[cfg(test)]
mod tests;

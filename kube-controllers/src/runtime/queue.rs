//! A queue of keys: each at most once, never handed to two workers at once.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use hashlink::LinkedHashMap;
use prometheus::IntGauge;
use tokio::sync::Notify;
use tokio::time::Instant;

/// Keys that wait to be looked at. Cheap to clone; all clones are the same queue.
pub struct Queue<K> {
    shared: Arc<Shared<K>>,
}

struct Shared<K> {
    state: Mutex<State<K>>,
    changed: Notify,
    /// Shows how many keys wait, once somebody wants to know.
    depth: OnceLock<IntGauge>,
}

struct State<K> {
    /// In order, with the moment since when.
    waiting: LinkedHashMap<K, Instant>,
    /// What workers hold; true if it was added again meanwhile.
    held: HashMap<K, bool>,
    timers: Timers<K>,
}

/// Keys whose time has not come: one moment each.
struct Timers<K> {
    /// The number tells apart what is due at the same moment.
    by_moment: BTreeMap<(Instant, u64), K>,
    by_key: HashMap<K, (Instant, u64)>,
    next_number: u64,
}

/// A key that a worker was given.
pub(super) struct Taken<K> {
    pub(super) key: K,
    /// How long it waited.
    pub(super) waited: Duration,
}

impl<K> Clone for Queue<K> {
    fn clone(&self) -> Self {
        Queue { shared: self.shared.clone() }
    }
}

impl<K: Clone + Eq + Hash + Send + 'static> Default for Queue<K> {
    fn default() -> Self {
        let timers = Timers { by_moment: BTreeMap::new(), by_key: HashMap::new(), next_number: 0 };
        let state = State { waiting: LinkedHashMap::new(), held: HashMap::new(), timers };
        Queue { shared: Arc::new(Shared { state: Mutex::new(state), changed: Notify::new(), depth: OnceLock::new() }) }
    }
}

impl<K: Clone + Eq + Hash + Send + 'static> Queue<K> {
    /// Adds a key, unless it waits already. One that a worker holds comes again when the worker is done; one that was to
    /// come later comes now.
    pub fn add(&self, key: K) {
        self.change(|state| state.add(key));
    }

    /// Adds a key when `delay` is over, unless it comes earlier by then. One moment is kept for each key, the earliest.
    pub fn add_after(&self, key: K, delay: Duration) {
        if delay.is_zero() {
            return self.add(key);
        }
        let is_first = self.change(|state| {
            let first = state.timers.first();
            if !state.waiting.contains_key(&key) {
                state.timers.set(key, Instant::now() + delay);
            }
            state.timers.first() != first
        });
        if is_first {
            // All who wait, wait for a later moment.
            self.shared.changed.notify_waiters();
        }
    }

    /// The next key, to be given back with [`Queue::done`]. Nothing is taken when the call is dropped.
    pub async fn next(&self) -> K {
        self.take_next().await.key
    }

    /// The worker has finished with `key`.
    pub fn done(&self, key: &K) {
        self.change(|state| {
            if state.held.remove(key).unwrap_or(false) {
                state.add(key.clone());
            }
        });
    }

    /// How many keys wait; those whose time has not come do not count.
    pub fn len(&self) -> usize {
        let mut state = self.state();
        state.wake(Instant::now());
        state.waiting.len()
    }

    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// As [`Queue::next`], and for how long the key has waited.
    pub(super) async fn take_next(&self) -> Taken<K> {
        loop {
            let changed = self.shared.changed.notified();
            let due = match self.take() {
                Ok(taken) => return taken,
                Err(due) => due,
            };
            match due {
                Some(due) => {
                    let _ = tokio::time::timeout_at(due, changed).await;
                }
                None => changed.await,
            }
        }
    }

    /// Shows the depth in `gauge` from now on.
    pub(super) fn show_depth(&self, gauge: IntGauge) {
        let _ = self.shared.depth.set(gauge);
        self.change(|_| ());
    }

    /// A key, or the moment at which there will be one.
    fn take(&self) -> Result<Taken<K>, Option<Instant>> {
        let now = Instant::now();
        self.change(|state| {
            state.wake(now);
            let Some((key, since)) = state.waiting.pop_front() else {
                return Err(state.timers.first());
            };
            state.held.insert(key.clone(), false);
            Ok(Taken { key, waited: now.saturating_duration_since(since) })
        })
    }

    /// Changes the state, then wakes one of those who wait if there is something to take.
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
        // No caller's code runs under the lock but `Hash` and `Eq` of a key: what is poisoned is whole.
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Clone + Eq + Hash> State<K> {
    fn add(&mut self, key: K) {
        self.timers.forget(&key);
        if let Some(again) = self.held.get_mut(&key) {
            *again = true;
        } else if !self.waiting.contains_key(&key) {
            self.waiting.insert(key, Instant::now());
        }
    }

    /// Adds the keys whose time has come.
    fn wake(&mut self, now: Instant) {
        while let Some(key) = self.timers.due(now) {
            self.add(key);
        }
    }
}

impl<K: Clone + Eq + Hash> Timers<K> {
    fn set(&mut self, key: K, moment: Instant) {
        if self.by_key.get(&key).is_some_and(|(earlier, _)| *earlier <= moment) {
            return;
        }
        self.forget(&key);
        let place = (moment, self.next_number);
        self.next_number += 1;
        self.by_moment.insert(place, key.clone());
        self.by_key.insert(key, place);
    }

    fn forget(&mut self, key: &K) {
        if let Some(place) = self.by_key.remove(key) {
            self.by_moment.remove(&place);
        }
    }

    fn first(&self) -> Option<Instant> {
        self.by_moment.first_key_value().map(|((moment, _), _)| *moment)
    }

    fn due(&mut self, now: Instant) -> Option<K> {
        self.first().filter(|moment| *moment <= now)?;
        let (_, key) = self.by_moment.pop_first()?;
        self.by_key.remove(&key);
        Some(key)
    }
}

#[cfg(test)]
mod tests;

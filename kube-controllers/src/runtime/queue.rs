//! A queue of keys. A key is in the queue at most once, and at most one worker processes it at a
//! time. Groups of keys may take turns.
//!
//! Keys gather while this replica may not write. Nobody works on them, so the metrics of the queue
//! leave that time out.

mod timers;
mod waiting_keys;

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use self::timers::Timers;
use self::waiting_keys::WaitingKeys;
use crate::telemetry::WorkerMetrics;

/// The keys that wait to be processed. Cheap to clone; all clones are the same queue.
pub struct Queue<K> {
    shared: Arc<Shared<K>>,
}

struct Shared<K> {
    state: Mutex<State<K>>,
    changed: Notify,
    /// Metrics of the queue, once [`Queue::publish`] has set them.
    metrics: OnceLock<WorkerMetrics>,
}

struct State<K> {
    waiting: WaitingKeys<K>,
    /// The keys that workers are processing. The value is true if the key was added again after a
    /// worker took it.
    in_progress: HashMap<K, bool>,
    timers: Timers<K>,
    /// The time since which this replica may write; `None` while it may not.
    leads_since: Option<Instant>,
    /// Number of additions that are not in the metrics yet.
    uncounted_adds: u64,
}

pub(super) struct TakenKey<K> {
    pub(super) key: K,
    /// The time for which the key waited while this replica might write.
    pub(super) waited: Duration,
}

impl<K> Clone for Queue<K> {
    fn clone(&self) -> Self {
        Queue {
            shared: self.shared.clone(),
        }
    }
}

impl<K: Clone + Eq + Hash + Send + 'static> Default for Queue<K> {
    fn default() -> Self {
        Queue::grouped(|_| "")
    }
}

impl<K: Clone + Eq + Hash + Send + 'static> Queue<K> {
    /// Creates a queue in which the groups of keys take turns, so that many keys of one group do
    /// not delay the keys of the others. `group_of` returns the name of a key's group.
    pub fn grouped(group_of: fn(&K) -> &str) -> Self {
        let state = State {
            waiting: WaitingKeys::new(group_of),
            in_progress: HashMap::new(),
            timers: Timers::default(),
            leads_since: None,
            uncounted_adds: 0,
        };
        let (changed, metrics) = (Notify::new(), OnceLock::new());
        Queue {
            shared: Arc::new(Shared {
                state: Mutex::new(state),
                changed,
                metrics,
            }),
        }
    }

    /// Adds a key, unless the key is waiting already. A key that a worker is processing is added
    /// when the worker is done. A delay set by [`Queue::add_after`] is discarded.
    pub fn add(&self, key: K) {
        self.change(|state| state.add(key));
    }

    /// Adds a key after `delay`, unless the key is added earlier. Only the earliest deadline of
    /// each key counts.
    pub fn add_after(&self, key: K, delay: Duration) {
        if delay.is_zero() {
            return self.add(key);
        }
        let is_first = self.change(|state| {
            let first = state.timers.first_deadline();
            if !state.waiting.contains(&key) {
                state.timers.set(key, Instant::now() + delay);
            }
            state.timers.first_deadline() != first
        });
        if is_first {
            // All waiting workers wait for a later deadline, so they have to wake and read the new
            // one.
            self.shared.changed.notify_waiters();
        }
    }

    /// Records that the worker has finished with `key`. Adds the key again if it was added while
    /// the worker processed it.
    pub fn done(&self, key: &K) {
        self.change(|state| {
            if state.in_progress.remove(key).unwrap_or(false) {
                state.insert(key.clone());
            }
        });
    }

    /// Returns a key to the queue whose processing was not concluded. Nobody added the key, so it
    /// does not count as added.
    pub(super) fn put_back(&self, key: &K) {
        self.change(|state| {
            state.in_progress.remove(key);
            state.insert(key.clone());
        });
    }

    /// Begins the time in which this replica may write: counts the keys that wait as added now. Has
    /// no effect during that time.
    pub(super) fn lead(&self) {
        let leads = self.state().leads_since.is_some();
        if leads {
            // A worker calls this before each key, and must not wake the other workers each time.
            return;
        }
        self.change(|state| {
            // Several workers may have come here.
            if state.leads_since.is_none() {
                state.leads_since = Some(Instant::now());
                state.uncounted_adds += u64::try_from(state.waiting.len()).unwrap_or(u64::MAX);
            }
        });
    }

    /// Ends the time in which this replica may write: the queue looks empty to the metrics until
    /// [`Queue::lead`].
    pub(super) fn stand_by(&self) {
        self.change(|state| state.leads_since = None);
    }

    /// Waits for the next key and takes it. The caller has to call [`Queue::done`] with the key. If
    /// the future is dropped, no key is taken.
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

    /// Publishes the numbers of waiting and of added keys in `metrics`, at once and after each
    /// change.
    pub(super) fn publish(&self, metrics: WorkerMetrics) {
        let _ = self.shared.metrics.set(metrics);
        self.change(|_| ());
    }

    /// Takes a key. If no key is waiting, returns the earliest deadline of a delayed key as the
    /// error, or `None` if no key is delayed.
    fn take(&self) -> Result<TakenKey<K>, Option<Instant>> {
        let now = Instant::now();
        self.change(|state| {
            state.add_due(now);
            let Some((key, since)) = state.waiting.take() else {
                return Err(state.timers.first_deadline());
            };
            state.in_progress.insert(key.clone(), false);
            let since = state
                .leads_since
                .map_or(now, |leads_since| leads_since.max(since));
            Ok(TakenKey {
                key,
                waited: now.saturating_duration_since(since),
            })
        })
    }

    /// Changes the state, then wakes one waiting worker if a key can be taken.
    fn change<T>(&self, change: impl FnOnce(&mut State<K>) -> T) -> T {
        let mut state = self.state();
        let result = change(&mut state);
        let waiting = state.waiting.len();
        if let Some(metrics) = self.shared.metrics.get() {
            let depth = if state.leads_since.is_some() {
                waiting
            } else {
                0
            };
            metrics.depth.set(i64::try_from(depth).unwrap_or(i64::MAX));
            metrics
                .adds
                .inc_by(std::mem::take(&mut state.uncounted_adds));
        }
        drop(state);
        if waiting > 0 {
            self.shared.changed.notify_one();
        }
        result
    }

    fn state(&self) -> MutexGuard<'_, State<K>> {
        // A poisoned lock is safe to use: the only code of other modules that runs under it is that
        // of a key: `Clone`, `Hash`, `Eq` and its drop.
        self.shared
            .state
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Clone + Eq + Hash> State<K> {
    fn add(&mut self, key: K) {
        self.timers.remove(&key);
        let is_new = match self.in_progress.get_mut(&key) {
            Some(is_added_again) => !std::mem::replace(is_added_again, true),
            None => self.insert(key),
        };
        if is_new && self.leads_since.is_some() {
            self.uncounted_adds += 1;
        }
    }

    /// Adds a key that no worker is processing. Returns false if the key is waiting already.
    fn insert(&mut self, key: K) -> bool {
        self.timers.remove(&key);
        self.waiting.insert(key, Instant::now())
    }

    fn add_due(&mut self, now: Instant) {
        while let Some(key) = self.timers.due(now) {
            self.add(key);
        }
    }
}

#[cfg(test)]
mod tests;

//! A queue of keys: each at most once, never handed to two workers at once.

use std::collections::{HashMap, HashSet, VecDeque};
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

/// Keys that wait to be looked at. Cheap to clone; all clones are the same queue.
pub struct Queue<K> {
    shared: Arc<Shared<K>>,
}

struct Shared<K> {
    state: Mutex<State<K>>,
    changed: Notify,
}

struct State<K> {
    waiting: VecDeque<K>,
    /// What is in `waiting`.
    queued: HashSet<K>,
    /// What workers hold; true if it was added again meanwhile.
    held: HashMap<K, bool>,
}

impl<K> Clone for Queue<K> {
    fn clone(&self) -> Self {
        Queue { shared: self.shared.clone() }
    }
}

impl<K: Clone + Eq + Hash + Send + 'static> Default for Queue<K> {
    fn default() -> Self {
        let state = State { waiting: VecDeque::new(), queued: HashSet::new(), held: HashMap::new() };
        Queue { shared: Arc::new(Shared { state: Mutex::new(state), changed: Notify::new() }) }
    }
}

impl<K: Clone + Eq + Hash + Send + 'static> Queue<K> {
    /// Adds a key, unless it waits already. One that a worker holds comes again when the worker is done.
    pub fn add(&self, key: K) {
        let mut state = self.state();
        if let Some(again) = state.held.get_mut(&key) {
            *again = true;
            return;
        }
        if state.queued.insert(key.clone()) {
            state.waiting.push_back(key);
            self.shared.changed.notify_one();
        }
    }

    /// Adds a key when `delay` is over.
    pub fn add_after(&self, key: K, delay: Duration) {
        let queue = self.clone();
        tokio::spawn(async move {
            tokio::time::sleep(delay).await;
            queue.add(key);
        });
    }

    /// The next key, to be given back with [`Queue::done`].
    pub async fn next(&self) -> K {
        loop {
            let changed = self.shared.changed.notified();
            if let Some(key) = self.take() {
                return key;
            }
            changed.await;
        }
    }

    /// The worker has finished with `key`.
    pub fn done(&self, key: &K) {
        let again = self.state().held.remove(key).unwrap_or(false);
        if again {
            self.add(key.clone());
        }
    }

    /// How many keys wait.
    pub fn len(&self) -> usize {
        self.state().waiting.len()
    }

    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn take(&self) -> Option<K> {
        let mut state = self.state();
        let key = state.waiting.pop_front()?;
        state.queued.remove(&key);
        state.held.insert(key.clone(), false);
        if !state.waiting.is_empty() {
            self.shared.changed.notify_one();
        }
        Some(key)
    }

    fn state(&self) -> MutexGuard<'_, State<K>> {
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

//! [`Timers`]: the keys that were added with a delay.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;

use tokio::time::Instant;

/// The keys that were added with a delay, with one deadline for each.
pub(super) struct Timers<K> {
    /// The number distinguishes keys with the same deadline.
    by_deadline: BTreeMap<(Instant, u64), K>,
    by_key: HashMap<K, (Instant, u64)>,
    next_number: u64,
}

impl<K> Default for Timers<K> {
    fn default() -> Self {
        Timers {
            by_deadline: BTreeMap::new(),
            by_key: HashMap::new(),
            next_number: 0,
        }
    }
}

impl<K: Clone + Eq + Hash> Timers<K> {
    pub(super) fn set(&mut self, key: K, deadline: Instant) {
        if self
            .by_key
            .get(&key)
            .is_some_and(|(earlier, _)| *earlier <= deadline)
        {
            return;
        }
        self.remove(&key);
        let slot = (deadline, self.next_number);
        self.next_number += 1;
        self.by_deadline.insert(slot, key.clone());
        self.by_key.insert(key, slot);
    }

    pub(super) fn remove(&mut self, key: &K) {
        if let Some(slot) = self.by_key.remove(key) {
            self.by_deadline.remove(&slot);
        }
    }

    pub(super) fn first_deadline(&self) -> Option<Instant> {
        self.by_deadline
            .first_key_value()
            .map(|((deadline, _), _)| *deadline)
    }

    pub(super) fn due(&mut self, now: Instant) -> Option<K> {
        self.first_deadline().filter(|deadline| *deadline <= now)?;
        let (_, key) = self.by_deadline.pop_first()?;
        self.by_key.remove(&key);
        Some(key)
    }
}

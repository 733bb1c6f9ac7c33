//! [`WaitingKeys`]: the keys that a worker can take, in groups that take turns.

use std::collections::BTreeMap;
use std::hash::Hash;
use std::ops::Bound::{Excluded, Unbounded};

use hashlink::LinkedHashMap;
use tokio::time::Instant;

/// The keys that a worker can take. The keys of a group are taken in the order of their addition.
/// The groups take turns: the next key is of the group with the next name. So the first key of a
/// group waits for at most one key of each other group.
pub(super) struct WaitingKeys<K> {
    group_of: fn(&K) -> &str,
    /// The keys of each group that has any, with the time at which each was added.
    groups: BTreeMap<String, LinkedHashMap<K, Instant>>,
    /// The group of the key that was taken last.
    last_group: String,
    len: usize,
}

impl<K: Eq + Hash> WaitingKeys<K> {
    pub(super) fn new(group_of: fn(&K) -> &str) -> Self {
        WaitingKeys {
            group_of,
            groups: BTreeMap::new(),
            last_group: String::new(),
            len: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn contains(&self, key: &K) -> bool {
        self.groups
            .get((self.group_of)(key))
            .is_some_and(|keys| keys.contains_key(key))
    }

    /// Adds a key as the last one of its group. Returns false if the key is waiting already.
    pub(super) fn insert(&mut self, key: K, now: Instant) -> bool {
        if self.contains(&key) {
            return false;
        }
        let group = (self.group_of)(&key).to_owned();
        self.groups.entry(group).or_default().insert(key, now);
        self.len += 1;
        true
    }

    /// Removes the next key, and returns it with the time at which it was added.
    pub(super) fn take(&mut self) -> Option<(K, Instant)> {
        let later = (Excluded(self.last_group.as_str()), Unbounded);
        let (group, _) = self
            .groups
            .range::<str, _>(later)
            .next()
            .or_else(|| self.groups.first_key_value())?;
        let group = group.clone();
        let keys = self.groups.get_mut(&group)?;
        let taken = keys.pop_front()?;
        if keys.is_empty() {
            self.groups.remove(&group);
        }
        self.len -= 1;
        self.last_group = group;
        Some(taken)
    }
}

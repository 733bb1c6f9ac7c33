//! [`GraceTracker`]: suspect objects and the times since when they have been unchanged.

use std::collections::BTreeMap;
use std::time::Duration;

use super::leaks::Postponement;

/// Suspect keys, each with the state in which it was found, such as a revision. A change of the
/// state restarts the time.
#[derive(Debug, Clone)]
pub struct GraceTracker<K, S> {
    suspected: BTreeMap<K, Suspected<S>>,
}

#[derive(Debug, Clone)]
struct Suspected<S> {
    state: S,
    since: Duration,
    postponement: Postponement,
}

impl<S> Suspected<S> {
    /// Returns the first time at which the key has been unchanged for `grace` and is not postponed.
    fn due(&self, grace: Duration) -> Duration {
        self.since
            .saturating_add(grace)
            .max(self.postponement.until)
    }
}

impl<K, S> Default for GraceTracker<K, S> {
    fn default() -> Self {
        GraceTracker {
            suspected: BTreeMap::new(),
        }
    }
}

impl<K: Ord + Clone, S: PartialEq> GraceTracker<K, S> {
    /// Records that a key is suspect in a state.
    pub fn suspect(&mut self, key: K, state: S, now: Duration) {
        match self.suspected.get(&key) {
            Some(entry) if entry.state == state => {}
            _ => {
                _ = self.suspected.insert(
                    key,
                    Suspected {
                        state,
                        since: now,
                        postponement: Postponement::default(),
                    },
                )
            }
        }
    }

    /// Returns the state in which a key is suspect; `None` if the key is not suspect.
    pub fn state(&self, key: &K) -> Option<&S> {
        self.suspected.get(key).map(|entry| &entry.state)
    }

    /// Removes a key that is no longer suspect.
    pub fn clear(&mut self, key: &K) {
        self.suspected.remove(key);
    }

    /// Removes all keys except those that `keep` accepts.
    pub fn retain(&mut self, keep: impl Fn(&K) -> bool) {
        self.suspected.retain(|key, _| keep(key));
    }

    /// Postpones a key whose repair failed.
    pub fn postpone(&mut self, key: &K, now: Duration) {
        if let Some(entry) = self.suspected.get_mut(key) {
            entry.postponement.fail(now);
        }
    }

    /// Returns the keys that have been suspect and unchanged for `grace`, except those that are
    /// postponed.
    pub fn due(&self, now: Duration, grace: Duration) -> Vec<K> {
        self.suspected
            .iter()
            .filter(|(_, entry)| now >= entry.due(grace))
            .map(|(key, _)| key.clone())
            .collect()
    }

    /// Returns the keys that have been suspect and unchanged for `grace`, even those that are
    /// postponed.
    pub fn unchanged_for(&self, now: Duration, grace: Duration) -> impl Iterator<Item = &K> {
        let unchanged = self
            .suspected
            .iter()
            .filter(move |(_, entry)| now >= entry.since.saturating_add(grace));
        unchanged.map(|(key, _)| key)
    }

    /// Returns the suspect keys.
    pub fn keys(&self) -> impl Iterator<Item = &K> {
        self.suspected.keys()
    }

    /// Returns the time after `now` at which the next key is due.
    pub fn next_deadline(&self, now: Duration, grace: Duration) -> Option<Duration> {
        self.suspected
            .values()
            .map(|entry| entry.due(grace))
            .filter(|due| *due > now)
            .min()
    }

    /// Returns the number of suspect keys.
    pub fn len(&self) -> usize {
        self.suspected.len()
    }

    /// Returns true if no key is suspect.
    pub fn is_empty(&self) -> bool {
        self.suspected.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: fn(u64) -> Duration = Duration::from_secs;

    #[test]
    fn only_entries_unchanged_for_the_grace_period_are_due() {
        let mut list = GraceTracker::default();
        list.suspect("a", 1, AT(0));
        list.suspect("b", 1, AT(0));
        list.suspect("b", 2, AT(5));
        assert_eq!(list.due(AT(10), AT(10)), ["a"]);
        assert_eq!(list.next_deadline(AT(10), AT(10)), Some(AT(15)));
        list.postpone(&"a", AT(10));
        assert_eq!(
            (list.due(AT(10), AT(10)).len(), list.due(AT(11), AT(10))),
            (0, vec!["a"])
        );
        list.clear(&"a");
        assert_eq!(list.due(AT(15), AT(10)), ["b"]);
        list.retain(|key| *key != "b");
        assert!(list.is_empty());
    }
}

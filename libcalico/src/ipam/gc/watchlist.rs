//! [`Watchlist`]: suspect objects, each with the time since when it has been unchanged.

use std::collections::BTreeMap;
use std::time::Duration;

use super::leaks::Postponement;

/// Suspect keys, each with the state in which it was found, such as a revision. A change of the state restarts the
/// time, because a changing object is in use.
#[derive(Debug, Clone)]
pub struct Watchlist<K, S> {
    watched: BTreeMap<K, Watched<S>>,
}

#[derive(Debug, Clone)]
struct Watched<S> {
    state: S,
    since: Duration,
    postponement: Postponement,
}

impl<S> Watched<S> {
    /// Returns the time at which the key has been unchanged for `grace` and is not postponed.
    fn due(&self, grace: Duration) -> Duration {
        self.since.saturating_add(grace).max(self.postponement.until)
    }
}

impl<K, S> Default for Watchlist<K, S> {
    fn default() -> Self {
        Watchlist { watched: BTreeMap::new() }
    }
}

impl<K: Ord + Clone, S: PartialEq> Watchlist<K, S> {
    /// Records that a key is suspect in a state.
    pub fn suspect(&mut self, key: K, state: S, now: Duration) {
        match self.watched.get(&key) {
            Some(watched) if watched.state == state => {}
            _ => _ = self.watched.insert(key, Watched { state, since: now, postponement: Postponement::default() }),
        }
    }

    /// Returns the state in which a key is suspect.
    pub fn state(&self, key: &K) -> Option<&S> {
        self.watched.get(key).map(|watched| &watched.state)
    }

    /// Removes a key that is no longer suspect, or whose object no longer exists.
    pub fn clear(&mut self, key: &K) {
        self.watched.remove(key);
    }

    /// Removes all keys except those that `keep` accepts.
    pub fn retain(&mut self, keep: impl Fn(&K) -> bool) {
        self.watched.retain(|key, _| keep(key));
    }

    /// Postpones a key whose repair failed. The pause grows with each failure.
    pub fn failed(&mut self, key: &K, now: Duration) {
        if let Some(watched) = self.watched.get_mut(key) {
            watched.postponement.fail(now);
        }
    }

    /// Returns the keys that have been suspect and unchanged for `grace`, except those that are postponed.
    pub fn due(&self, now: Duration, grace: Duration) -> Vec<K> {
        self.watched.iter().filter(|(_, watched)| now >= watched.due(grace)).map(|(key, _)| key.clone()).collect()
    }

    /// Returns the keys that have been suspect and unchanged for `grace`.
    pub fn settled(&self, now: Duration, grace: Duration) -> impl Iterator<Item = &K> {
        let settled = self.watched.iter().filter(move |(_, watched)| now >= watched.since.saturating_add(grace));
        settled.map(|(key, _)| key)
    }

    /// Returns the suspect keys.
    pub fn keys(&self) -> impl Iterator<Item = &K> {
        self.watched.keys()
    }

    /// Returns the time at which the next key is due.
    pub fn next_deadline(&self, now: Duration, grace: Duration) -> Option<Duration> {
        self.watched.values().map(|watched| watched.due(grace)).filter(|due| *due > now).min()
    }

    /// Returns the number of suspect keys.
    pub fn len(&self) -> usize {
        self.watched.len()
    }

    /// Returns true if no key is suspect.
    pub fn is_empty(&self) -> bool {
        self.watched.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: fn(u64) -> Duration = Duration::from_secs;

    #[test]
    fn only_entries_unchanged_for_the_grace_period_are_due() {
        let mut list = Watchlist::default();
        list.suspect("a", 1, AT(0));
        list.suspect("b", 1, AT(0));
        list.suspect("b", 2, AT(5));
        assert_eq!(list.due(AT(10), AT(10)), ["a"]);
        assert_eq!(list.next_deadline(AT(10), AT(10)), Some(AT(15)));
        list.failed(&"a", AT(10));
        assert_eq!((list.due(AT(10), AT(10)).len(), list.due(AT(11), AT(10))), (0, vec!["a"]));
        list.clear(&"a");
        assert_eq!(list.due(AT(15), AT(10)), ["b"]);
        list.retain(|key| *key != "b");
        assert!(list.is_empty());
    }
}

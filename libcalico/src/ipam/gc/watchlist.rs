//! [`Watchlist`]: what looked wrong, and since when it has looked the same.

use std::collections::BTreeMap;
use std::time::Duration;

/// Keys that something is wrong with, each with the state in which it was seen (a revision, say). One that is seen in
/// another state begins anew: only what does not move is settled.
#[derive(Debug, Clone)]
pub struct Watchlist<K, S> {
    watched: BTreeMap<K, Watched<S>>,
}

#[derive(Debug, Clone)]
struct Watched<S> {
    state: S,
    since: Duration,
    failures: u32,
    again: Duration,
}

impl<K, S> Default for Watchlist<K, S> {
    fn default() -> Self {
        Watchlist { watched: BTreeMap::new() }
    }
}

impl<K: Ord + Clone, S: PartialEq> Watchlist<K, S> {
    /// It looks wrong, in this state.
    pub fn suspect(&mut self, key: K, state: S, now: Duration) {
        match self.watched.get(&key) {
            Some(watched) if watched.state == state => {}
            _ => _ = self.watched.insert(key, Watched { state, since: now, failures: 0, again: now }),
        }
    }

    /// The state in which it looks wrong.
    pub fn state(&self, key: &K) -> Option<&S> {
        self.watched.get(key).map(|watched| &watched.state)
    }

    /// Nothing is wrong with it, or it is gone.
    pub fn clear(&mut self, key: &K) {
        self.watched.remove(key);
    }

    /// Only these are of concern still.
    pub fn retain(&mut self, keep: impl Fn(&K) -> bool) {
        self.watched.retain(|key, _| keep(key));
    }

    /// It could not be mended: to be tried again later, longer each time.
    pub fn failed(&mut self, key: &K, now: Duration) {
        if let Some(watched) = self.watched.get_mut(key) {
            watched.failures += 1;
            watched.again = now.saturating_add(super::leaks::backoff(watched.failures));
        }
    }

    /// What has looked wrong, and the same, for `grace`, and did not fail a moment ago.
    pub fn due(&self, now: Duration, grace: Duration) -> Vec<K> {
        let due = |watched: &Watched<S>| now >= watched.since.saturating_add(grace).max(watched.again);
        self.watched.iter().filter(|(_, watched)| due(watched)).map(|(key, _)| key.clone()).collect()
    }

    /// What has looked wrong, and the same, for `grace`.
    pub fn settled(&self, now: Duration, grace: Duration) -> impl Iterator<Item = &K> {
        let settled = move |watched: &Watched<S>| now >= watched.since.saturating_add(grace);
        self.watched.iter().filter(move |(_, watched)| settled(watched)).map(|(key, _)| key)
    }

    /// What looks wrong.
    pub fn keys(&self) -> impl Iterator<Item = &K> {
        self.watched.keys()
    }

    /// When the next one is due.
    pub fn next_deadline(&self, now: Duration, grace: Duration) -> Option<Duration> {
        let due = |watched: &Watched<S>| watched.since.saturating_add(grace).max(watched.again);
        self.watched.values().map(due).filter(|due| *due > now).min()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.watched.len()
    }

    /// Whether nothing looks wrong.
    pub fn is_empty(&self) -> bool {
        self.watched.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: fn(u64) -> Duration = Duration::from_secs;

    #[test]
    fn only_what_does_not_move_is_settled() {
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

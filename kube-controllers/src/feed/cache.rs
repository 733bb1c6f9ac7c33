//! What a feed named, by key.

use std::collections::BTreeMap;

use super::Event;
use crate::watched::Watched;

/// The latest of each object, kept as `V`. A list that is under way replaces what it names; what it leaves out goes when it
/// is complete, so that a listener never sees an empty cache because a watch began anew.
#[derive(Debug)]
pub struct Cache<K, V> {
    kept: BTreeMap<K, Kept<V>>,
    list: u64,
    synced: bool,
}

#[derive(Debug)]
struct Kept<V> {
    value: V,
    list: u64,
}

impl<K, V> Default for Cache<K, V> {
    fn default() -> Self {
        Cache { kept: BTreeMap::new(), list: 0, synced: false }
    }
}

impl<K: Clone + Ord, V: PartialEq> Cache<K, V> {
    /// Follows an event; `keep` says what of an object is kept, nothing if it is of no concern. Returns the keys whose
    /// kept value came, changed or went.
    pub fn follow<T: Watched<Key = K>>(&mut self, event: &Event<'_, T>, keep: impl FnOnce(&T) -> Option<V>) -> Vec<K> {
        match event {
            Event::Restarted => {
                self.list += 1;
                Vec::new()
            }
            Event::Put(object) => {
                let key = object.key();
                match keep(object) {
                    None => self.kept.remove(&key).map(|_| key).into_iter().collect(),
                    Some(value) => {
                        let same = self.kept.get(&key).is_some_and(|kept| kept.value == value);
                        self.kept.insert(key.clone(), Kept { value, list: self.list });
                        if same { Vec::new() } else { vec![key] }
                    }
                }
            }
            Event::Gone(key) => self.kept.remove(key).map(|_| (*key).clone()).into_iter().collect(),
            Event::Synced => {
                self.synced = true;
                let list = self.list;
                self.kept.extract_if(.., |_, kept| kept.list != list).map(|(key, _)| key).collect()
            }
        }
    }
}

impl<K: Ord, V> Cache<K, V> {
    /// Whether everything that exists has been named at least once.
    pub fn is_synced(&self) -> bool {
        self.synced
    }

    /// What is known of `key`.
    pub fn get(&self, key: &K) -> Option<&V> {
        self.kept.get(key).map(|kept| &kept.value)
    }

    /// Everything, by key.
    pub fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.kept.iter().map(|(key, kept)| (key, &kept.value))
    }
}

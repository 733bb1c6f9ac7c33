use std::collections::BTreeMap;

use super::Event;
use crate::watched::Watched;

/// The latest state of each object, as a value `V` derived from it. While a list is in progress,
/// its objects replace the cached ones; cached objects that the list does not contain are removed
/// when the list is complete. So the cache never becomes empty because a watch restarted.
#[derive(Debug)]
pub struct Cache<K, V> {
    entries: BTreeMap<K, CacheEntry<V>>,
    list_number: u64,
    is_synced: bool,
}

#[derive(Debug)]
struct CacheEntry<V> {
    value: V,
    list_number: u64,
}

impl<K, V> Default for Cache<K, V> {
    fn default() -> Self {
        Cache {
            entries: BTreeMap::new(),
            list_number: 0,
            is_synced: false,
        }
    }
}

impl<K: Clone + Ord, V: PartialEq> Cache<K, V> {
    /// Applies an event. `keep` derives the cached value from an object, or returns `None` for an
    /// object that is not cached. Returns the keys whose value was added, changed or removed.
    pub fn apply<T: Watched<Key = K>>(
        &mut self,
        event: &Event<'_, T>,
        keep: impl FnOnce(&T) -> Option<V>,
    ) -> Vec<K> {
        match event {
            Event::ListStart => {
                self.list_number += 1;
                Vec::new()
            }
            Event::Upsert(object) => {
                let key = object.key();
                match keep(object) {
                    None => self.entries.remove(&key).map(|_| key).into_iter().collect(),
                    Some(value) => {
                        let is_same = self
                            .entries
                            .get(&key)
                            .is_some_and(|entry| entry.value == value);
                        self.entries.insert(
                            key.clone(),
                            CacheEntry {
                                value,
                                list_number: self.list_number,
                            },
                        );
                        if is_same { Vec::new() } else { vec![key] }
                    }
                }
            }
            Event::Delete(key) => self
                .entries
                .remove(key)
                .map(|_| (*key).clone())
                .into_iter()
                .collect(),
            Event::ListEnd => {
                self.is_synced = true;
                let current = self.list_number;
                self.entries
                    .extract_if(.., |_, entry| entry.list_number != current)
                    .map(|(key, _)| key)
                    .collect()
            }
        }
    }
}

impl<K: Ord, V> Cache<K, V> {
    /// Returns true if a list has been complete, so that an object that is not cached does not
    /// exist, is unreadable or was not kept.
    pub fn is_synced(&self) -> bool {
        self.is_synced
    }

    /// Returns the cached value of `key`.
    pub fn get(&self, key: &K) -> Option<&V> {
        self.entries.get(key).map(|entry| &entry.value)
    }

    /// Returns all cached values, in the order of their keys.
    pub fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.entries.iter().map(|(key, entry)| (key, &entry.value))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use libcalico::api::ObjectKey;
    use proptest::prelude::*;

    use super::*;
    use crate::watched::{Labels, Node};

    fn node(name: &str, uid: u8) -> Node {
        Node {
            name: ObjectKey::global(name),
            uid: uid.to_string(),
            labels: Labels::new(),
        }
    }

    fn follow(cache: &mut Cache<ObjectKey, String>, event: &Event<'_, Node>) -> Vec<String> {
        let keep = |node: &Node| (node.uid != "0").then(|| node.uid.clone());
        cache
            .apply(event, keep)
            .into_iter()
            .map(|key| key.name)
            .collect()
    }

    #[test]
    fn restarted_list_removes_entries_only_when_complete() {
        let mut cache = Cache::default();
        for (event, changed) in [
            (Event::ListStart, &[][..]),
            (Event::Upsert(&node("a", 1)), &["a"]),
            (Event::Upsert(&node("b", 1)), &["b"]),
            (Event::ListEnd, &[]),
            (Event::ListStart, &[]),
            (Event::Upsert(&node("b", 1)), &[]),
        ] {
            assert_eq!(follow(&mut cache, &event), changed, "{event:?}");
        }
        assert_eq!(cache.iter().count(), 2);
        assert_eq!(follow(&mut cache, &Event::ListEnd), ["a"]);
        assert_eq!(
            cache.iter().map(|(key, _)| &*key.name).collect::<Vec<_>>(),
            ["b"]
        );
    }

    /// A change on the server, as a watch would deliver or miss it.
    #[derive(Debug, Clone)]
    enum Act {
        Set(u8, u8),
        Delete(u8),
        /// Changes that happen without a watch, and then a list of all objects. The list is
        /// interrupted after this number of objects and starts over.
        Relist(Vec<(u8, Option<u8>)>, usize),
    }

    fn acts() -> impl Strategy<Value = Vec<Act>> {
        let (name, value) = (0..6u8, 0..4u8);
        let missed = prop::collection::vec((name.clone(), prop::option::of(value.clone())), 0..6);
        let act = prop_oneof![
            4 => (name.clone(), value).prop_map(|(name, value)| Act::Set(name, value)),
            2 => name.prop_map(Act::Delete),
            1 => (missed, 0..8usize).prop_map(|(missed, broken)| Act::Relist(missed, broken)),
        ];
        prop::collection::vec(act, 0..40)
    }

    /// A copy of the cache that is updated only for the keys that the cache reports as changed.
    struct Mirror {
        cache: Cache<ObjectKey, String>,
        copy: BTreeMap<String, String>,
    }

    impl Mirror {
        fn on_event(&mut self, event: &Event<'_, Node>) {
            for name in follow(&mut self.cache, event) {
                match self.cache.get(&ObjectKey::global(name.clone())) {
                    Some(value) => self.copy.insert(name, value.clone()),
                    None => self.copy.remove(&name),
                };
            }
        }
    }

    proptest! {
        #[test]
        fn cache_converges_to_the_server_and_retains_unchanged_entries(acts in acts()) {
            let mut server = BTreeMap::<String, u8>::new();
            let mut mirror = Mirror {
                cache: Cache::default(),
                copy: BTreeMap::new(),
            };
            mirror.on_event(&Event::ListStart);
            mirror.on_event(&Event::ListEnd);
            let kept = |server: &BTreeMap<String, u8>| -> BTreeMap<String, String> {
                server
                    .iter()
                    .filter(|(_, uid)| **uid != 0)
                    .map(|(name, uid)| (name.clone(), uid.to_string()))
                    .collect()
            };
            for act in acts {
                match act {
                    Act::Set(name, value) => {
                        server.insert(name.to_string(), value);
                        mirror.on_event(&Event::Upsert(&node(&name.to_string(), value)));
                    }
                    Act::Delete(name) => {
                        server.remove(&name.to_string());
                        mirror.on_event(&Event::Delete(&ObjectKey::global(name.to_string())));
                    }
                    Act::Relist(missed, broken) => {
                        let before: BTreeSet<String> = kept(&server).into_keys().collect();
                        for (name, value) in missed {
                            match value {
                                Some(value) => server.insert(name.to_string(), value),
                                None => server.remove(&name.to_string()),
                            };
                        }
                        let after: BTreeSet<String> = kept(&server).into_keys().collect();
                        let stayed: Vec<ObjectKey> =
                            before.intersection(&after).map(ObjectKey::global).collect();
                        for part in [broken.min(server.len()), server.len()] {
                            mirror.on_event(&Event::ListStart);
                            for (name, value) in server.iter().take(part) {
                                mirror.on_event(&Event::Upsert(&node(name, *value)));
                                prop_assert!(
                                    stayed.iter().all(|key| mirror.cache.get(key).is_some())
                                );
                            }
                        }
                        mirror.on_event(&Event::ListEnd);
                    }
                }
                let cached: BTreeMap<String, String> = mirror
                    .cache
                    .iter()
                    .map(|(key, value)| (key.name.clone(), value.clone()))
                    .collect();
                prop_assert_eq!(&cached, &kept(&server));
                prop_assert_eq!(&cached, &mirror.copy);
            }
        }
    }
}

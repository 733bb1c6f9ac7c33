//! [`Objects`]: the objects of the server, the log of their changes, and the counts of writes.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use hyper::body::Bytes;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::path::key;

pub(crate) struct Objects {
    state: Mutex<State>,
    changed: watch::Sender<u64>,
}

#[derive(Default)]
struct State {
    revision: u64,
    collections: HashMap<String, Collection>,
    written: BTreeMap<String, Written>,
}

#[derive(Default)]
struct Collection {
    objects: BTreeMap<String, Object>,
    /// Keys of the pods on each node.
    of_node: BTreeMap<String, BTreeSet<String>>,
    log: Vec<(u64, Bytes)>,
}

#[derive(Clone)]
struct Object {
    revision: u64,
    text: Arc<str>,
}

/// Successful write requests of one kind.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Written {
    pub(crate) count: usize,
    pub(crate) last: Instant,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refused {
    NotFound,
    AlreadyExists,
    Conflict,
}

pub(super) struct Page {
    pub(super) revision: u64,
    pub(super) texts: Vec<Arc<str>>,
    /// The last key of the page if more objects follow; `None` on the last page.
    pub(super) after: Option<String>,
}

/// The objects of a collection that a list selects.
pub(super) struct Selection<'a> {
    pub(super) namespace: Option<&'a str>,
    pub(super) name: Option<&'a str>,
    pub(super) node: Option<&'a str>,
}

impl Default for Objects {
    fn default() -> Self {
        Objects {
            state: Mutex::default(),
            changed: watch::Sender::new(0),
        }
    }
}

impl Objects {
    /// Writes an object for the benchmark itself: not counted and without preconditions.
    pub(crate) fn put(&self, group: &str, plural: &str, object: Value) {
        self.state().put(&collection(group, plural), object);
        self.changed.send_modify(|changes| *changes += 1);
    }

    /// Returns the program's successful writes of one kind, such as `PUT ipamblocks`.
    pub(crate) fn written(&self, what: &str) -> Option<Written> {
        self.state().written.get(what).copied()
    }

    pub(crate) fn count(&self, group: &str, plural: &str) -> usize {
        self.state()
            .collections
            .get(&collection(group, plural))
            .map_or(0, |collection| collection.objects.len())
    }

    pub(super) fn get(&self, collection: &str, key: &str) -> Option<Arc<str>> {
        self.state()
            .collections
            .get(collection)?
            .objects
            .get(key)
            .map(|object| object.text.clone())
    }

    pub(super) fn list(
        &self,
        collection: &str,
        select: &Selection<'_>,
        after: Option<&str>,
        limit: usize,
    ) -> Page {
        let state = self.state();
        let mut page = Page {
            revision: state.revision,
            texts: Vec::new(),
            after: None,
        };
        let Some(collection) = state.collections.get(collection) else {
            return page;
        };
        if let (Some(namespace), Some(name)) = (select.namespace, select.name) {
            let found = collection.objects.get(&key(Some(namespace), name));
            page.texts.extend(found.map(|object| object.text.clone()));
            return page;
        }
        if let Some(name) = select.name {
            page.texts.extend(
                collection
                    .objects
                    .get(name)
                    .map(|object| object.text.clone()),
            );
            return page;
        }
        if let Some(node) = select.node {
            let keys = collection.of_node.get(node).into_iter().flatten();
            page.texts.extend(
                keys.filter_map(|key| collection.objects.get(key))
                    .map(|object| object.text.clone()),
            );
            return page;
        }
        let within = select
            .namespace
            .map(|namespace| format!("{namespace}/"))
            .unwrap_or_default();
        let begin = after.map_or(Bound::Included(within.as_str()), Bound::Excluded);
        let mut last: Option<&String> = None;
        for (key, object) in collection
            .objects
            .range::<str, _>((begin, Bound::Unbounded))
        {
            if !key.starts_with(&within) {
                break;
            }
            if page.texts.len() == limit {
                page.after = last.cloned();
                break;
            }
            page.texts.push(object.text.clone());
            last = Some(key);
        }
        page
    }

    /// Returns the position in a collection's log of the first change after `revision`.
    pub(super) fn since(&self, collection: &str, revision: u64) -> usize {
        let state = self.state();
        let log = state
            .collections
            .get(collection)
            .map_or(&[][..], |collection| &collection.log);
        log.partition_point(|(at, _)| *at <= revision)
    }

    /// Returns the log of a collection from `position` on, and the revision up to which the log is
    /// complete.
    pub(super) fn log(&self, collection: &str, position: usize) -> (Vec<Bytes>, u64) {
        let state = self.state();
        let log = state
            .collections
            .get(collection)
            .map_or(&[][..], |collection| &collection.log);
        (
            log.get(position..)
                .unwrap_or_default()
                .iter()
                .map(|(_, line)| line.clone())
                .collect(),
            state.revision,
        )
    }

    pub(super) fn changes(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    pub(super) fn create(
        &self,
        group: &str,
        plural: &str,
        object: Value,
    ) -> Result<Arc<str>, Refused> {
        self.write("POST", plural, |state| {
            let collection = collection(group, plural);
            let exists = state
                .collections
                .get(&collection)
                .is_some_and(|found| found.objects.contains_key(&key_of(&object)));
            match exists {
                true => Err(Refused::AlreadyExists),
                false => Ok(state.put(&collection, object)),
            }
        })
    }

    pub(super) fn replace(
        &self,
        group: &str,
        plural: &str,
        object: Value,
    ) -> Result<Arc<str>, Refused> {
        self.write("PUT", plural, |state| {
            let collection = collection(group, plural);
            let found = state.find(&collection, &key_of(&object))?;
            let expected = object["metadata"]["resourceVersion"]
                .as_str()
                .unwrap_or_default();
            match expected.is_empty() || expected == found.revision.to_string() {
                true => Ok(state.put(&collection, object)),
                false => Err(Refused::Conflict),
            }
        })
    }

    pub(super) fn delete(
        &self,
        group: &str,
        plural: &str,
        key: &str,
        preconditions: &Value,
    ) -> Result<Arc<str>, Refused> {
        self.write("DELETE", plural, |state| {
            let collection = collection(group, plural);
            let found = state.find(&collection, key)?;
            let object: Value = serde_json::from_str(&found.text).unwrap_or_default();
            let differs = |name: &str| {
                preconditions[name]
                    .as_str()
                    .is_some_and(|expected| object["metadata"][name] != expected)
            };
            match differs("resourceVersion") || differs("uid") {
                true => Err(Refused::Conflict),
                false => Ok(state.remove(&collection, key, object)),
            }
        })
    }

    fn write(
        &self,
        verb: &str,
        plural: &str,
        change: impl FnOnce(&mut State) -> Result<Arc<str>, Refused>,
    ) -> Result<Arc<str>, Refused> {
        let mut state = self.state();
        let done = change(&mut state)?;
        let now = Instant::now();
        let written = state.written.entry(format!("{verb} {plural}"));
        let written = written.or_insert(Written {
            count: 0,
            last: now,
        });
        (written.count, written.last) = (written.count + 1, now);
        drop(state);
        self.changed.send_modify(|changes| *changes += 1);
        Ok(done)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn find(&self, collection: &str, key: &str) -> Result<Object, Refused> {
        let found = self
            .collections
            .get(collection)
            .and_then(|collection| collection.objects.get(key));
        found.cloned().ok_or(Refused::NotFound)
    }

    fn put(&mut self, collection: &str, mut object: Value) -> Arc<str> {
        self.revision += 1;
        let revision = self.revision;
        object["metadata"]["resourceVersion"] = revision.to_string().into();
        let key = key_of(&object);
        let text: Arc<str> = object.to_string().into();
        let collection = self.collections.entry(collection.to_owned()).or_default();
        if let Some(node) = object["spec"]["nodeName"].as_str() {
            collection
                .of_node
                .entry(node.to_owned())
                .or_default()
                .insert(key.clone());
        }
        let known = collection
            .objects
            .insert(
                key,
                Object {
                    revision,
                    text: text.clone(),
                },
            )
            .is_some();
        collection.log.push((
            revision,
            line(if known { "MODIFIED" } else { "ADDED" }, &text),
        ));
        text
    }

    fn remove(&mut self, collection: &str, key: &str, mut object: Value) -> Arc<str> {
        self.revision += 1;
        object["metadata"]["resourceVersion"] = self.revision.to_string().into();
        let text: Arc<str> = object.to_string().into();
        let revision = self.revision;
        if let Some(collection) = self.collections.get_mut(collection) {
            collection.objects.remove(key);
            if let Some(node) = object["spec"]["nodeName"].as_str() {
                collection
                    .of_node
                    .entry(node.to_owned())
                    .or_default()
                    .remove(key);
            }
            collection.log.push((revision, line("DELETED", &text)));
        }
        text
    }

    fn forget(&mut self) {
        self.collections
            .values_mut()
            .for_each(|collection| collection.log = Vec::new());
    }
}

impl Objects {
    /// Ends the initial filling: no watch starts at an earlier revision.
    pub(crate) fn begin(&self) {
        self.state().forget();
    }
}

pub(super) fn collection(group: &str, plural: &str) -> String {
    format!("{group}/{plural}")
}

fn line(kind: &str, text: &str) -> Bytes {
    format!("{{\"type\":\"{kind}\",\"object\":{text}}}\n").into()
}

fn key_of(object: &Value) -> String {
    let metadata = &object["metadata"];
    key(
        metadata["namespace"].as_str(),
        metadata["name"].as_str().unwrap_or_default(),
    )
}

pub(super) fn bookmark(revision: u64) -> Bytes {
    line(
        "BOOKMARK",
        &json!({"metadata": {"resourceVersion": revision.to_string()}}).to_string(),
    )
}

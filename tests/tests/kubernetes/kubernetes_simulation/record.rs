//! [`Record`]: sends requests to a server and records their outcomes.

use std::fmt::Debug;

use libcalico::kubernetes::{ApiGroup, Location, PODS, Preconditions};
use libcalico::store::{Entry, Kind, ReadBatch, Revision, StoreError, Write};
use serde_json::{Map, Value, json};

use super::NAMESPACE;
use super::subjects::{Subject, resource};

/// Fields whose values differ between two servers.
const OF_ONE_SERVER: [&str; 4] = [
    "uid",
    "resourceVersion",
    "creationTimestamp",
    "deletionTimestamp",
];

/// The outcomes of the requests to one server.
pub(super) struct Record<'s> {
    subject: &'s mut dyn Subject,
    pub(super) group: ApiGroup,
    pub(super) lines: Vec<String>,
}

impl<'s> Record<'s> {
    pub(super) fn new(subject: &'s mut dyn Subject, group: ApiGroup) -> Self {
        Record {
            subject,
            group,
            lines: Vec::new(),
        }
    }

    /// Records a fact that must be the same for both servers.
    pub(super) fn note(&mut self, about: &str, fact: impl Debug) {
        self.lines.push(format!("{about}: {fact:?}"));
    }

    fn outcome<T>(&mut self, about: &str, outcome: Result<T, StoreError>) -> Option<T> {
        let kind = match &outcome {
            Ok(_) => "success".to_owned(),
            // The texts of errors contain revisions and uids.
            Err(error) => {
                eprintln!("{about}: {error}");
                let text = format!("{error:?}");
                text.split([' ', '(']).next().unwrap_or_default().to_owned()
            }
        };
        self.lines.push(format!("{about}: {kind}"));
        outcome.ok()
    }

    /// Writes with the shipped client. Returns the revision after a success.
    pub(super) fn write(&mut self, about: &str, write: Result<Write, StoreError>) -> Revision {
        let outcome = self.subject.write(&write.unwrap());
        self.outcome(about, outcome)
            .unwrap_or_else(|| Revision(String::new()))
    }

    /// Reads an object with the shipped client.
    pub(super) fn get<K: Kind>(&mut self, key: &K::Key) -> Option<Entry<K>> {
        let mut batch = ReadBatch::new();
        let ticket = batch.get::<K>(key);
        let read = self
            .subject
            .read(&batch)
            .and_then(|answers| answers.get(&ticket));
        let about = format!("get {} {key}", K::KIND);
        let found = self.outcome(&about, read).flatten();
        let value = found.as_ref().map(|entry| comparable(&entry.value));
        self.note(&about, value.map(|value| value.to_string()));
        found
    }

    /// Reads an object that exists.
    pub(super) fn found<K: Kind>(&mut self, key: &K::Key) -> Entry<K> {
        self.get::<K>(key)
            .unwrap_or_else(|| panic!("{} {key} is missing", K::KIND))
    }

    /// Lists objects with the shipped client.
    pub(super) fn list<K: Kind>(&mut self, about: &str, select: &K::Select) {
        let mut batch = ReadBatch::new();
        let ticket = batch.list::<K>(select);
        let read = self.subject.read(&batch);
        let Some(answers) = self.outcome(about, read) else {
            return;
        };
        for entry in answers.list(&ticket) {
            self.note(&entry.key.to_string(), comparable(&entry.value).to_string());
        }
        self.note(about, answers.raw_entries(&ticket).len());
    }

    /// Lists keys with the shipped client.
    pub(super) fn keys<K: Kind>(&mut self, about: &str, select: &K::Select) {
        let mut batch = ReadBatch::new();
        let ticket = batch.list_keys::<K>(select);
        let read = self.subject.read(&batch);
        if let Some(answers) = self.outcome(about, read) {
            let keys: Vec<String> = answers
                .listed_keys(&ticket)
                .map(|key| key.to_string())
                .collect();
            self.note(about, keys);
        }
    }

    /// Reads the revision of an object. Records whether it is that of `known`.
    pub(super) fn revision<K: Kind>(&mut self, key: &K::Key, known: &Revision) {
        let mut batch = ReadBatch::new();
        let ticket = batch.get_revision::<K>(key);
        let answers = self.subject.read(&batch).unwrap();
        let found = answers
            .revision(&ticket)
            .map(|found| found.resource_version() == known.resource_version());
        self.note("is the revision that of the object", found);
    }

    /// Records an object as stored.
    pub(super) fn stored(&mut self, location: &Location) -> Option<Value> {
        let object = self.subject.object(location);
        let line = object.as_ref().map(|object| {
            if location.resource == PODS {
                of_pod(object).to_string()
            } else {
                comparable(object).to_string()
            }
        });
        self.note(&format!("stored {}", location.name), line);
        object
    }

    /// Creates an object as another client.
    pub(super) fn create(&mut self, location: &Location, object: &Value) {
        let outcome = self.subject.create(location, object);
        self.outcome(&format!("create {}", location.name), outcome);
    }

    /// Changes a stored object as another client, which replaces it.
    pub(super) fn edit(&mut self, location: &Location, change: impl FnOnce(&mut Value)) {
        let mut object = self.subject.object(location).unwrap();
        change(&mut object);
        let outcome = self.subject.replace(location, &object);
        self.outcome(&format!("edit {}", location.name), outcome);
    }

    /// Merges a patch into an object.
    pub(super) fn patch(&mut self, location: &Location, patch: &Value) {
        let outcome = self.subject.patch(location, patch);
        self.outcome(&format!("patch {} {patch}", location.name), outcome);
    }

    /// Merges fields into the status of a pod.
    pub(super) fn status(&mut self, pod: &Location, uid: Option<&str>, status: &Value) {
        let outcome = self.subject.patch_pod_status(pod, uid, status);
        self.outcome(&format!("status of {} {status}", pod.name), outcome);
    }

    /// Deletes an object.
    pub(super) fn delete(&mut self, about: &str, location: &Location, grace: Option<u64>) {
        self.delete_if(about, location, grace, &Preconditions::default());
    }

    /// Deletes an object under conditions.
    pub(super) fn delete_if(
        &mut self,
        about: &str,
        location: &Location,
        grace: Option<u64>,
        preconditions: &Preconditions,
    ) {
        let outcome = self.subject.delete(location, grace, preconditions);
        self.outcome(&format!("delete {} {about}", location.name), outcome);
    }

    /// Returns the location of a cluster-scoped object.
    pub(super) fn at(&self, kind: &str, name: &str) -> Location {
        Location::global(resource(self.group, kind), name)
    }
}

/// Returns the location of a pod.
pub(super) fn pod(name: &str) -> Location {
    Location::namespaced(PODS, NAMESPACE, name)
}

/// Returns a value as JSON, without the data of one server.
fn comparable(value: &impl serde::Serialize) -> Value {
    let mut value = serde_json::to_value(value).unwrap();
    blank(&mut value);
    value
}

fn blank(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for field in OF_ONE_SERVER {
                if let Some(value) = fields.get_mut(field).filter(|value| !value.is_null()) {
                    *value = "present".into();
                }
            }
            if let Some(managers) = fields.get_mut("managedFields") {
                *managers = "present".into();
            }
            fields.values_mut().for_each(blank);
        }
        Value::Array(items) => items.iter_mut().for_each(blank),
        // An annotation may contain metadata.
        Value::String(text) if text.starts_with('{') => {
            if let Ok(mut inner) = serde_json::from_str(text) {
                blank(&mut inner);
                *text = inner.to_string();
            }
        }
        _ => {}
    }
}

/// Returns the fields of a stored pod that the simulation models.
fn of_pod(pod: &Value) -> Value {
    let take = |part: &str, fields: &[&str]| {
        let fields = fields
            .iter()
            .filter_map(|field| Some(((*field).to_owned(), pod[part].get(*field)?.clone())));
        Map::from_iter(fields)
    };
    let metadata = [
        "name",
        "namespace",
        "labels",
        "annotations",
        "finalizers",
        "deletionGracePeriodSeconds",
        "deletionTimestamp",
        "generation",
    ];
    let spec = [
        "nodeName",
        "serviceAccountName",
        "terminationGracePeriodSeconds",
    ];
    comparable(&json!({
        "metadata": take("metadata", &metadata), "spec": take("spec", &spec),
        "status": take("status", &["phase", "podIP", "podIPs"]),
    }))
}

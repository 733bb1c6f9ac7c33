//! POST, PUT and PATCH.

use libcalico::kubernetes::{Location, NAMESPACES, PODS};
use serde_json::{Value, json};

use super::fields::{copy, remove, text, timestamp, with_identity};
use super::strategic_merge::merge;
use super::{ApiServer, Refusal, defaults, deletion, refusal};

/// The part of an object that a request may change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    /// All fields except the status.
    Main,
    /// The status; of Kubernetes' own kinds also labels and annotations.
    Status,
}

/// The fields of the metadata that only the server sets.
const SERVER_FIELDS: [&str; 6] = [
    "uid",
    "resourceVersion",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "generation",
];

impl ApiServer {
    /// Creates an object and returns it.
    pub(super) fn post(&mut self, location: &Location, body: Value) -> Result<Value, Refusal> {
        self.check_namespace(location)?;
        if self.objects.get(location).is_some() {
            return Err(refusal::already_exists(location));
        }
        let mut object = with_identity(location, body);
        match self.constants.schemas.get(&location.resource) {
            Some(schema) => {
                schema.conform(&mut object);
                if schema.has_status {
                    remove(&mut object, "status");
                }
            }
            None => defaults::set_defaults(location, &mut object),
        }
        Ok(self.insert(location, object))
    }

    /// Stores a new object without any check, and returns it.
    pub(super) fn insert(&mut self, location: &Location, mut object: Value) -> Value {
        self.revision += 1;
        let metadata = &mut object["metadata"];
        for field in SERVER_FIELDS {
            remove(metadata, field);
        }
        metadata["uid"] = uid(self.revision).into();
        metadata["resourceVersion"] = self.revision.to_string().into();
        metadata["creationTimestamp"] = timestamp(self.now);
        if is_custom(location) || location.resource == PODS {
            metadata["generation"] = 1.into();
        }
        if is_custom(location) {
            metadata["managedFields"] = json!([{ "manager": "simulation" }]);
        }
        self.objects.put(location, object.clone());
        object
    }

    /// Replaces a part of an object by that of `body`, and returns the object.
    pub(super) fn replace(
        &mut self,
        location: &Location,
        body: Value,
        part: Part,
    ) -> Result<Value, Refusal> {
        let schema = self.constants.schemas.get(&location.resource);
        let has_status = schema.is_none_or(|schema| schema.has_status);
        if part == Part::Status && !has_status {
            return Err(refusal::not_found(location));
        }
        let wanted_uid = body["metadata"]["uid"].as_str().unwrap_or_default();
        let found = self.objects.get(location);
        let found_uid = found.map_or("", |found| text(found, "uid"));
        // The server compares the uid before it notices that the object is missing.
        if !wanted_uid.is_empty() && wanted_uid != found_uid {
            let why = format!(
                "Precondition failed: UID in precondition: {wanted_uid}, UID in object meta: \
                 {found_uid}"
            );
            return Err(refusal::conflict(location, &why));
        }
        let old = found.ok_or_else(|| refusal::not_found(location))?;
        match text(&body, "resourceVersion") {
            "" | "0" => {
                return Err(refusal::invalid(
                    location,
                    "metadata.resourceVersion",
                    "Invalid value: 0: must be specified for an update",
                ));
            }
            version if version != text(old, "resourceVersion") => {
                return Err(refusal::modified(location));
            }
            _ => {}
        }
        let mut new = with_identity(location, body);
        if let Some(schema) = schema {
            schema.conform(&mut new);
        }
        let new = match part {
            Part::Status => {
                let mut whole = old.clone();
                copy(&mut whole, &new, "status");
                whole
            }
            Part::Main => {
                if schema.is_some() && has_status {
                    copy(&mut new, old, "status");
                }
                set_managed_fields(&mut new, old);
                keep_server_fields(&mut new, old);
                if is_custom(location) && !are_equal_besides_metadata(&new, old) {
                    let generation = old["metadata"]["generation"].as_u64().unwrap_or_default();
                    new["metadata"]["generation"] = (generation + 1).into();
                }
                new
            }
        };
        Ok(self.commit(location, new))
    }

    /// Merges a strategic merge patch into a part of an object, and returns the object.
    pub(super) fn patch(
        &mut self,
        location: &Location,
        patch: &Value,
        part: Part,
    ) -> Result<Value, Refusal> {
        let old = self.stored(location)?;
        let mut new = old.clone();
        merge(&mut new, patch);
        let version = text(&new, "resourceVersion");
        if !version.is_empty() && version != text(old, "resourceVersion") {
            return Err(refusal::modified(location));
        }
        let uid = text(&new, "uid");
        if !uid.is_empty() && uid != text(old, "uid") {
            let why = format!("Invalid value: {uid:?}: field is immutable");
            return Err(refusal::invalid(location, "metadata.uid", &why));
        }
        keep_server_fields(&mut new, old);
        match part {
            Part::Main => copy(&mut new, old, "status"),
            Part::Status => {
                copy(&mut new, old, "spec");
                copy(&mut new["metadata"], &old["metadata"], "ownerReferences");
            }
        }
        for map in ["labels", "annotations"] {
            if new["metadata"][map]
                .as_object()
                .is_none_or(|map| map.is_empty())
            {
                remove(&mut new["metadata"], map);
            }
        }
        if let Some(status) = new.get_mut("status").filter(|_| location.resource == PODS) {
            defaults::conform_addresses(status);
        }
        Ok(self.commit(location, new))
    }

    /// Stores a changed object with a new revision, or removes it if the change permits its
    /// deletion. An object without a change keeps its revision.
    pub(super) fn commit(&mut self, location: &Location, mut object: Value) -> Value {
        if self.objects.get(location) == Some(&object) {
            return object;
        }
        self.revision += 1;
        object["metadata"]["resourceVersion"] = self.revision.to_string().into();
        if deletion::is_complete(&object) {
            self.objects.remove(location);
        } else {
            self.objects.put(location, object.clone());
        }
        object
    }

    /// Returns an error if the namespace of a new object is missing or is being deleted.
    fn check_namespace(&self, location: &Location) -> Result<(), Refusal> {
        let Some(name) = &location.namespace else {
            return Ok(());
        };
        let namespace = self.stored(&Location::global(NAMESPACES, name))?;
        if namespace["metadata"].get("deletionTimestamp").is_some() {
            return Err(refusal::terminating(location, name));
        }
        Ok(())
    }
}

/// Returns the uid of the object that the server created at a revision.
fn uid(revision: u64) -> String {
    format!(
        "{:08x}-5eed-4000-8000-{:012x}",
        revision & 0xffff_ffff,
        revision
    )
}

/// Returns true for a kind that a definition adds to the server.
fn is_custom(location: &Location) -> bool {
    location.resource.api_version.contains('/')
}

fn keep_server_fields(new: &mut Value, old: &Value) {
    for field in SERVER_FIELDS {
        copy(&mut new["metadata"], &old["metadata"], field);
    }
}

/// Keeps the record of the field managers, or removes it if the body of a PUT resets it.
fn set_managed_fields(new: &mut Value, old: &Value) {
    if new["metadata"]["managedFields"] == json!([{}]) {
        remove(&mut new["metadata"], "managedFields");
    } else {
        copy(&mut new["metadata"], &old["metadata"], "managedFields");
    }
}

fn are_equal_besides_metadata(one: &Value, other: &Value) -> bool {
    let without = |object: &Value| {
        let mut object = object.clone();
        remove(&mut object, "metadata");
        object
    };
    without(one) == without(other)
}

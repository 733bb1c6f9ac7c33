//! [`ApiServer`]: a kube-apiserver in memory, as a value.
//!
//! The shipped [`Codec`] encodes requests and decodes objects. This module does the work of the
//! server: it stores JSON objects, compares revisions, and sets the metadata of objects.
//!
//! Not modeled: validation by schema and CEL, authorization, admission except for the lifecycle of
//! namespaces, pages of a list, watches, and the garbage collection of owners. Each kind exists,
//! even if no definition of this repository has it.
//!
//! Read `writes` and `deletion` for the semantics of each verb.

mod actors;
mod defaults;
mod deletion;
mod fields;
mod pods;
mod refusal;
mod schema;
mod selector;
mod storage;
mod strategic_merge;
#[cfg(test)]
mod tests;
mod writes;

use std::sync::Arc;

use libcalico::ipam::ListedBlock;
use libcalico::kubernetes::{
    ApiGroup, Codec, List, Location, Query, Request, Status, decode_listed_block, json_bytes,
};
use libcalico::store::{
    Answers, Entry, Kind, Range, RawEntry, ReadBatch, Revision, StoreError, Survey, Write, WriteOp,
};
use serde_json::{Value, json};
use time::OffsetDateTime;

use schema::Schemas;
use selector::is_selected;
use storage::Objects;
use writes::Part;

/// The refusal of a request. It is on the heap, because results with it are returned frequently.
type Refusal = Box<Status>;

/// A kube-apiserver with its objects. A clone shares the objects until one of both changes.
#[derive(Debug, Clone)]
pub struct ApiServer {
    constants: Arc<Constants>,
    objects: Objects,
    /// The resourceVersion of the last write.
    revision: u64,
    now: OffsetDateTime,
}

#[derive(Debug)]
struct Constants {
    codec: Codec,
    schemas: Schemas,
}

impl ApiServer {
    /// Creates a server without objects, which has the namespaces `default` and `kube-system`. Its
    /// clock shows the beginning of 1970.
    pub fn new(group: ApiGroup) -> Self {
        let constants = Constants {
            codec: Codec::new(group),
            schemas: Schemas::of(group),
        };
        let mut server = ApiServer {
            constants: Arc::new(constants),
            objects: Objects::default(),
            revision: 0,
            now: OffsetDateTime::UNIX_EPOCH,
        };
        for name in ["default", "kube-system"] {
            let created = server.create_namespace(name);
            debug_assert!(created.is_ok(), "{created:?}");
        }
        server
    }

    /// Returns the API group of Calico's objects.
    pub fn group(&self) -> ApiGroup {
        self.constants.codec.group()
    }

    /// Returns the resourceVersion of the last write. It is equal in two states of one server only
    /// if the objects are equal.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// Sets the clock, from which timestamps of objects come.
    pub fn set_time(&mut self, now: OffsetDateTime) {
        self.now = now;
    }

    /// Answers one GET or LIST of the shipped client. The answer ignores the freshness of the
    /// range: an older clone of the server is a cache that lags behind.
    ///
    /// # Errors
    /// If the codec or the server refuses the request.
    pub fn answer(&self, range: &Range) -> Result<Vec<RawEntry>, StoreError> {
        self.answer_and_completions(range)
            .map(|(entries, _)| entries)
    }

    /// Answers a range as [`ApiServer::answer`] does. Returns the writes, too, that the shipped
    /// client sends after the answer, to complete a deletion that another process began. The client
    /// ignores that such a write loses a race.
    ///
    /// # Errors
    /// As those of [`ApiServer::answer`].
    pub fn answer_and_completions(
        &self,
        range: &Range,
    ) -> Result<(Vec<RawEntry>, Vec<Write>), StoreError> {
        let codec = &self.constants.codec;
        let objects = match codec.query(range)? {
            Query::Nothing => Vec::new(),
            Query::Get(location) => {
                let found = self.objects.get(&location).into_iter();
                let form = |object| {
                    if range.keys_only && !range.is_prefix {
                        metadata_only(object)
                    } else {
                        object.clone()
                    }
                };
                found.map(form).collect()
            }
            Query::List(list) => self
                .list_objects(&list)
                .map_err(|refusal| refusal.store_error(&list.url_path(), ""))?,
        };
        let decoded = objects
            .into_iter()
            .filter_map(|object| codec.decode(range, object));
        Ok(Codec::answer(range, decoded.collect()))
    }

    /// Answers the shipped client's list for a survey of blocks.
    ///
    /// # Errors
    /// As those of [`ApiServer::answer`].
    pub fn survey(&self, survey: &Survey) -> Result<Vec<ListedBlock>, StoreError> {
        let Some(range) = survey.ranges().into_iter().next() else {
            return Ok(Vec::new());
        };
        let Query::List(list) = self.constants.codec.query(&range)? else {
            return Ok(Vec::new());
        };
        let objects = self
            .list_objects(&list)
            .map_err(|refusal| refusal.store_error(&list.url_path(), ""))?;
        let blocks = objects
            .iter()
            .filter_map(|object| decode_listed_block(&json_bytes(object)).ok().flatten());
        Ok(blocks
            .filter(|block| survey.families.contains(&block.cidr().version()))
            .collect())
    }

    /// Executes the request by which the shipped client performs `write`. Returns the revision that
    /// the client returns.
    ///
    /// # Errors
    /// The error of the shipped client. The server is unchanged then.
    pub fn apply(&mut self, write: &Write) -> Result<Revision, StoreError> {
        let outcome = match self.constants.codec.request(write)? {
            Request::Create { location, body } => self.post(&location, body),
            Request::Replace { location, body } => self.replace(&location, body, Part::Main),
            Request::ReplaceStatus { location, body } => {
                self.replace(&location, body, Part::Status)
            }
            Request::PatchStatus { location, body } => self.patch(&location, &body, Part::Status),
            Request::Delete {
                location,
                preconditions,
            } => self.delete(&location, &preconditions, None),
            Request::Nothing(revision) => return Ok(revision),
        };
        let reply = outcome.map_err(|refusal| refusal.store_error(&write.key, ""))?;
        Ok(match &write.op {
            WriteOp::Delete(revision) => {
                revision.clone().unwrap_or_else(|| Revision(String::new()))
            }
            _ => self.constants.codec.revision(write.kind, &reply),
        })
    }

    /// Returns the objects that `select` selects, decoded as the shipped programs do. Objects that
    /// cannot be decoded are left out.
    ///
    /// # Panics
    /// If the datastore does not support the list.
    pub fn list<K: Kind>(&self, select: &K::Select) -> Vec<Entry<K>> {
        let mut batch = ReadBatch::new();
        let ticket = batch.list::<K>(select);
        self.answers(&batch).list(&ticket)
    }

    /// Returns an object, decoded as the shipped programs do, or `None` if it is missing.
    ///
    /// # Errors
    /// If the object cannot be decoded.
    ///
    /// # Panics
    /// If the datastore does not support the kind.
    pub fn get<K: Kind>(&self, key: &K::Key) -> Result<Option<Entry<K>>, StoreError> {
        let mut batch = ReadBatch::new();
        let ticket = batch.get::<K>(key);
        self.answers(&batch).get(&ticket)
    }

    fn answers(&self, batch: &ReadBatch) -> Answers {
        let answers = batch.ranges().iter().map(|range| {
            self.answer(range)
                .unwrap_or_else(|error| panic!("{}: {error}", range.path))
        });
        Answers::new(answers.collect())
    }

    fn list_objects(&self, list: &List) -> Result<Vec<Value>, Refusal> {
        let mut items = Vec::new();
        for object in self.objects.list(&list.resource, list.namespace.as_deref()) {
            if is_selected(list, object)? {
                items.push(if list.metadata_only {
                    metadata_only(object)
                } else {
                    list_item(object)
                });
            }
        }
        Ok(items)
    }

    fn stored(&self, location: &Location) -> Result<&Value, Refusal> {
        self.objects
            .get(location)
            .ok_or_else(|| refusal::not_found(location))
    }
}

fn metadata_only(object: &Value) -> Value {
    json!({
        "apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata",
        "metadata": object["metadata"],
    })
}

/// Returns the object as an item of a list: the items of Kubernetes' own kinds have no type.
fn list_item(object: &Value) -> Value {
    let mut item = object.clone();
    let is_custom = object["apiVersion"]
        .as_str()
        .is_some_and(|version| version.contains('/'));
    if let Some(fields) = item.as_object_mut().filter(|_| !is_custom) {
        fields.remove("apiVersion");
        fields.remove("kind");
    }
    item
}

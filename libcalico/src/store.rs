//! The datastore as the rest of the program sees it.
//!
//! A request is a value: a [`ReadBatch`] of ranges or a list of [`Write`]s. A store answers a batch in as few round
//! trips as it can (etcd: one transaction; SQLite: one snapshot; Kubernetes: parallel requests), which is why callers
//! gather everything they know they need before they ask (IPAM-209). Every write is a compare-and-swap (IPAM-88).
//!
//! Values travel in the canonical encoding of [`Kind`]: the path and JSON of upstream's etcd layout (DS-24..DS-34).

mod reads;
mod survey;

use std::fmt;
use std::future::Future;

use serde::Serialize;
use serde::de::DeserializeOwned;

pub use self::reads::{
    Answers, Freshness, GetTicket, KeysTicket, ListTicket, Range, RawEntry, ReadBatch, RevisionTicket, decode_entry,
};
pub use self::survey::{Survey, sighting};
use crate::ipam::Sighting;

/// The compare-and-swap token of one stored object: etcd's mod-revision, SQLite's row revision, Kubernetes'
/// resourceVersion. Opaque; equal tokens mean an unchanged object (IPAM-175).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Revision(pub String);

impl Revision {
    /// The part that an object's `metadata.resourceVersion` shows. The rest, after an `@`, is what a store wants to see
    /// again with the next write.
    pub fn resource_version(&self) -> &str {
        self.0.split_once('@').map_or(&self.0, |(version, _)| version)
    }
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A kind of stored object: how it is keyed and where it lives.
pub trait Kind: Serialize + DeserializeOwned + Clone + fmt::Debug + Send + Sync + 'static {
    /// The kind as people write it, `IPPool` or `IPAMBlock`.
    const KIND: &'static str;
    /// What names one object of this kind.
    type Key: Clone + fmt::Debug + fmt::Display + PartialEq + Eq + std::hash::Hash + Send + Sync;
    /// What narrows a list of this kind.
    type Select;

    /// The full path of one object (DS-24, DS-25).
    fn path(key: &Self::Key) -> String;
    /// The inverse of [`Kind::path`]; `None` for a path of another kind, which lists skip silently (DS-42).
    fn parse_path(path: &str) -> Option<Self::Key>;
    /// The path prefix that covers a selection.
    fn prefix(select: &Self::Select) -> String;
    /// Whether this value may stand under `key`: one that names itself and is found elsewhere is corrupt.
    fn belongs_to(&self, _key: &Self::Key) -> bool {
        true
    }
    /// Puts into `value` what the store knows better than the stored bytes (resourceVersion).
    fn set_revision(&mut self, _revision: &Revision) {}
    /// What is written: the value without what the store itself keeps.
    fn encode(&self) -> Result<Vec<u8>, serde_json::Error> {
        serde_json::to_vec(self)
    }
    /// The value of stored bytes. `Err` makes a single get fail and a list skip the entry (DS-40, DS-42).
    fn decode(bytes: &[u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(bytes)
    }
}

/// One object as it was read: key, value, and the revision to compare when it is written back.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry<K: Kind> {
    /// The object's name.
    pub key: K::Key,
    /// The object.
    pub value: K,
    /// The revision that was read.
    pub revision: Revision,
}

/// What went wrong with a request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// The object is not there.
    #[error("resource does not exist: {key}")]
    NotFound {
        /// Identifier of the object, `IPPool(pool4)`.
        key: String,
    },
    /// A create found the object already there.
    #[error("resource already exists: {key}")]
    AlreadyExists {
        /// Identifier of the object.
        key: String,
    },
    /// The object changed since it was read.
    #[error("update conflict: {key}")]
    Conflict {
        /// Identifier of the object.
        key: String,
    },
    /// The datastore refused who we are or what we may do.
    #[error("connection is unauthorized: {reason}")]
    Unauthorized {
        /// What the server said, and which credential it was about.
        reason: String,
    },
    /// The datastore could not be reached or did not answer in time.
    #[error("datastore {datastore} is unavailable: {reason}")]
    Unavailable {
        /// Which one: endpoints or path.
        datastore: String,
        /// The cause.
        reason: String,
        /// A write was on its way when the connection broke: it may have been applied (IPAM-184).
        outcome_unknown: bool,
    },
    /// The server answers, and has no definitions of Calico's objects.
    #[error("{reason}")]
    NotInstalled {
        /// What was asked for, and what is missing.
        reason: String,
    },
    /// The embedded datastore's disk is full.
    #[error("disk full: {path} cannot be written; free space on its file system and retry")]
    DiskFull {
        /// The database file.
        path: String,
    },
    /// A stored value that cannot be read as its kind.
    #[error("failed to parse datastore entry {key}: {reason}")]
    Corrupt {
        /// Path of the entry.
        key: String,
        /// The decoder's words.
        reason: String,
    },
    /// Anything else the datastore answered.
    #[error("{0}")]
    Other(String),
}

impl StoreError {
    /// The datastore is out of reach, as opposed to reachable and refusing (design decision 7).
    pub fn is_unavailable(&self) -> bool {
        matches!(self, StoreError::Unavailable { .. })
    }

    /// Returns true if the same request may succeed later without being changed: the datastore is out of reach, refuses
    /// this process for now, or is not installed yet.
    pub fn is_postponable(&self) -> bool {
        let is_refusal = matches!(self, StoreError::Unauthorized { .. } | StoreError::NotInstalled { .. });
        is_refusal || self.is_unavailable()
    }

    /// Whether what was sent may have taken effect, or may do so yet.
    pub fn has_unknown_outcome(&self) -> bool {
        matches!(self, StoreError::Unavailable { outcome_unknown: true, .. })
    }

    /// Someone else was faster: read again and retry. Not-found on a write counts (IPAM-181).
    pub fn is_race(&self) -> bool {
        matches!(self, StoreError::Conflict { .. } | StoreError::AlreadyExists { .. } | StoreError::NotFound { .. })
    }
}

/// One compare-and-swap write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Write {
    /// Kind written.
    pub kind: &'static str,
    /// Full path.
    pub path: String,
    /// The object's identifier for errors, `IPPool(pool4)`.
    pub key: String,
    /// What to do.
    pub op: WriteOp,
}

/// The condition and effect of a [`Write`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WriteOp {
    /// Only if absent.
    Create(Vec<u8>),
    /// Only if still at this revision.
    Update(Vec<u8>, Revision),
    /// Only if still at this revision, and of the object its `status`. Where a status is written apart from the rest,
    /// the rest stays as it is; elsewhere it is an update. Of an endpoint that is a pod: the addresses, and not the
    /// sandbox.
    UpdateStatus(Vec<u8>, Revision),
    /// Only if still at this revision; without one, whatever is there (but something must be).
    Delete(Option<Revision>),
}

impl Write {
    fn of<K: Kind>(key: &K::Key, op: WriteOp) -> Self {
        Write { kind: K::KIND, path: K::path(key), key: identifier::<K>(key), op }
    }

    /// Creates `value` under `key`.
    pub fn create<K: Kind>(key: &K::Key, value: &K) -> Result<Self, StoreError> {
        Ok(Self::of::<K>(key, WriteOp::Create(encode::<K>(key, value)?)))
    }

    /// Replaces the object that was read at `revision`.
    pub fn update<K: Kind>(key: &K::Key, value: &K, revision: &Revision) -> Result<Self, StoreError> {
        Ok(Self::of::<K>(key, WriteOp::Update(encode::<K>(key, value)?, revision.clone())))
    }

    /// Replaces the `status` of the object that was read at `revision`; nothing else of `value` may differ from it.
    pub fn update_status<K: Kind>(key: &K::Key, value: &K, revision: &Revision) -> Result<Self, StoreError> {
        Ok(Self::of::<K>(key, WriteOp::UpdateStatus(encode::<K>(key, value)?, revision.clone())))
    }

    /// Deletes the object, if given only at `revision`.
    pub fn delete<K: Kind>(key: &K::Key, revision: Option<&Revision>) -> Self {
        Self::of::<K>(key, WriteOp::Delete(revision.cloned()))
    }
}

fn encode<K: Kind>(key: &K::Key, value: &K) -> Result<Vec<u8>, StoreError> {
    value.encode().map_err(|e| StoreError::Other(format!("cannot encode {}: {e}", identifier::<K>(key))))
}

/// `Kind(key)`, as error messages name an object (DS-118).
pub fn identifier<K: Kind>(key: &K::Key) -> String {
    format!("{}({key})", K::KIND)
}

/// A list of writes that failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{cause}")]
pub struct WriteError {
    /// Index of the write that failed.
    pub index: usize,
    /// How many writes before it took effect: 0 for a store with transactions. The caller undoes these.
    pub applied: usize,
    /// Why.
    pub cause: StoreError,
}

/// A datastore.
pub trait Store: Send + Sync {
    /// Answers a batch of reads, with as few round trips as the datastore allows.
    fn read(&self, batch: &ReadBatch) -> impl Future<Output = Result<Answers, StoreError>> + Send;

    /// Tells `tell` of every block that `survey` is of. A store that can reads them piece by piece, so that no more
    /// than a piece is in memory at one time.
    fn survey(
        &self,
        survey: &Survey,
        tell: &mut (dyn FnMut(Sighting) + Send),
    ) -> impl Future<Output = Result<(), StoreError>> + Send
    where
        Self: Sized,
    {
        let (batch, tickets) = survey.batch();
        async move {
            let answers = self.read(&batch).await?;
            let pairs = tickets.iter().flat_map(|ticket| answers.pairs(ticket));
            pairs.filter_map(|pair| survey::sighting(&pair.path, &pair.value)).for_each(tell);
            Ok(())
        }
    }

    /// Whether a list of writes takes effect as a whole, in one round trip. Where it does not, callers save round trips
    /// by sending side by side what does not depend on each other.
    fn has_transactions(&self) -> bool;

    /// Returns true if each request fails at once from now on: this process has no time left to wait for a server that
    /// is busy. To try again would be in vain.
    fn has_given_up(&self) -> bool {
        false
    }

    /// Applies writes in order. A store with transactions applies all or none; another stops at the first that fails.
    /// The order given must therefore be legal at every intermediate state (IPAM-221). Returns the new revisions (of a
    /// delete: the revision deleted at, or the empty one).
    fn write(&self, writes: &[Write]) -> impl Future<Output = Result<Vec<Revision>, WriteError>> + Send;

    /// Reads one object; absent is [`StoreError::NotFound`].
    fn get<K: Kind>(&self, key: &K::Key) -> impl Future<Output = Result<Entry<K>, StoreError>> + Send
    where
        Self: Sized,
    {
        let mut batch = ReadBatch::new();
        let ticket = batch.get::<K>(key);
        let missing = identifier::<K>(key);
        async move { self.read(&batch).await?.get(&ticket)?.ok_or(StoreError::NotFound { key: missing }) }
    }

    /// Reads a selection, in path order.
    fn list<K: Kind>(&self, select: &K::Select) -> impl Future<Output = Result<Vec<Entry<K>>, StoreError>> + Send
    where
        Self: Sized,
    {
        let mut batch = ReadBatch::new();
        let ticket = batch.list::<K>(select);
        async move { Ok(self.read(&batch).await?.list(&ticket)) }
    }

    /// Creates one object.
    fn create<K: Kind>(&self, key: &K::Key, value: &K) -> impl Future<Output = Result<Revision, StoreError>> + Send
    where
        Self: Sized,
    {
        let write = Write::create::<K>(key, value);
        async move { self.write_one(write?).await }
    }

    /// Replaces one object at the revision it was read.
    fn update<K: Kind>(
        &self,
        key: &K::Key,
        value: &K,
        revision: &Revision,
    ) -> impl Future<Output = Result<Revision, StoreError>> + Send
    where
        Self: Sized,
    {
        let write = Write::update::<K>(key, value, revision);
        async move { self.write_one(write?).await }
    }

    /// Replaces the `status` of one object at the revision it was read.
    fn update_status<K: Kind>(
        &self,
        key: &K::Key,
        value: &K,
        revision: &Revision,
    ) -> impl Future<Output = Result<Revision, StoreError>> + Send
    where
        Self: Sized,
    {
        let write = Write::update_status::<K>(key, value, revision);
        async move { self.write_one(write?).await }
    }

    /// Deletes one object.
    fn delete<K: Kind>(
        &self,
        key: &K::Key,
        revision: Option<&Revision>,
    ) -> impl Future<Output = Result<(), StoreError>> + Send
    where
        Self: Sized,
    {
        let write = Write::delete::<K>(key, revision);
        async move { self.write_one(write).await.map(|_| ()) }
    }

    /// Applies a single write.
    fn write_one(&self, write: Write) -> impl Future<Output = Result<Revision, StoreError>> + Send
    where
        Self: Sized,
    {
        async move {
            let mut revisions = self.write(&[write]).await.map_err(|e| e.cause)?;
            revisions.pop().ok_or_else(|| StoreError::Other("the datastore returned no revision".into()))
        }
    }
}

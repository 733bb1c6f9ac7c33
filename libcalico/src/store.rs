//! The interface to the datastore.
//!
//! A store answers a [`ReadBatch`] in as few round trips as it can. Callers should collect all
//! reads that they can name in advance into one batch.
//!
//! Paths and values have the canonical encoding of [`Kind`]. The values of an API server are JSON
//! that is parsed already ([`StoredValue`]).

mod reads;
mod value;

use std::future::Future;

pub use self::reads::{
    Answers, Freshness, GetTicket, KeysTicket, ListTicket, PairsTicket, Range, RawEntry, ReadBatch,
    RevisionTicket, Survey, decode_entry, listed_block,
};
pub use self::value::StoredValue;
use crate::ipam::ListedBlock;
pub use crate::kind::{Entry, Kind, Revision};

/// An error of a request to the datastore.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// The object is missing.
    #[error("resource does not exist: {key}")]
    NotFound {
        /// Identifier of the object, `IPPool(pool4)`.
        key: String,
    },
    /// The object to create already exists.
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
    /// The datastore rejected the credential of this process.
    #[error("connection is unauthorized: {reason}")]
    Unauthorized {
        /// The answer of the server, and the credential concerned.
        reason: String,
    },
    /// This process has no permission for the object.
    #[error("connection is unauthorized: {reason}")]
    Forbidden {
        /// The answer of the server, and the credential concerned.
        reason: String,
    },
    /// The datastore cannot be used at present, for example because it was unreachable or did not
    /// answer in time.
    #[error("datastore {datastore} is unavailable: {reason}")]
    Unavailable {
        /// The endpoints or the path of the datastore.
        datastore: String,
        /// The cause.
        reason: String,
        /// True if the writes sent may have been applied nevertheless (IPAM-184).
        outcome_unknown: bool,
    },
    /// Another program, such as a proxy, answered in place of the datastore, or the answer cannot
    /// be read.
    #[error(
        "datastore {datastore} is unavailable, because another program may have answered in its \
         place: {reason}"
    )]
    ForeignAnswer {
        /// The endpoints of the datastore.
        datastore: String,
        /// A description of the answer, and the way out.
        reason: String,
        /// True if the writes sent may have been applied nevertheless.
        outcome_unknown: bool,
    },
    /// The datastore refuses writes until a person ends the alarm.
    #[error("{reason}")]
    Alarm {
        /// The endpoints of the datastore, the alarm, and the way to end it.
        reason: String,
    },
    /// The server is reachable but does not serve Calico's kinds.
    #[error("{reason}")]
    NotInstalled {
        /// The object requested, and the definition that is missing.
        reason: String,
    },
    /// The disk of the embedded datastore is full.
    #[error("disk full: {path} cannot be written; free space on its file system and retry")]
    DiskFull {
        /// The database file.
        path: String,
    },
    /// A stored value that cannot be decoded as its kind.
    #[error("failed to parse datastore entry {key}: {reason}")]
    Corrupt {
        /// Path of the entry.
        key: String,
        /// The message of the decoder.
        reason: String,
    },
    /// Any other error from the datastore.
    #[error("{0}")]
    Other(String),
}

impl StoreError {
    /// Returns true for [`StoreError::Unavailable`].
    pub fn is_unavailable(&self) -> bool {
        matches!(self, StoreError::Unavailable { .. })
    }

    /// Returns true for each failed request, whatever the reason: the same request may succeed
    /// later, without changes by the caller. A stored value that cannot be decoded is no failed
    /// request.
    pub fn is_postponable(&self) -> bool {
        !matches!(self, StoreError::Corrupt { .. })
    }

    /// Returns true if requests for other objects may succeed at the same time.
    pub fn is_of_one_object(&self) -> bool {
        match self {
            StoreError::Unauthorized { .. }
            | StoreError::Unavailable { .. }
            | StoreError::ForeignAnswer { .. }
            | StoreError::Alarm { .. }
            | StoreError::NotInstalled { .. }
            | StoreError::DiskFull { .. } => false,
            StoreError::NotFound { .. }
            | StoreError::AlreadyExists { .. }
            | StoreError::Conflict { .. }
            | StoreError::Forbidden { .. }
            | StoreError::Corrupt { .. }
            | StoreError::Other(_) => true,
        }
    }

    /// Returns true if the writes sent may have taken effect, or may still do so.
    pub fn has_unknown_outcome(&self) -> bool {
        matches!(
            self,
            StoreError::Unavailable {
                outcome_unknown: true,
                ..
            } | StoreError::ForeignAnswer {
                outcome_unknown: true,
                ..
            }
        )
    }

    /// Returns true for [`StoreError::ForeignAnswer`]. The same request usually gets the same
    /// answer.
    pub fn is_foreign_answer(&self) -> bool {
        matches!(self, StoreError::ForeignAnswer { .. })
    }

    /// Returns true if the caller should read the object again and retry, because another writer
    /// may have been faster. A missing object counts as such a race (IPAM-181).
    pub fn is_race(&self) -> bool {
        matches!(
            self,
            StoreError::Conflict { .. }
                | StoreError::AlreadyExists { .. }
                | StoreError::NotFound { .. }
        )
    }
}

/// A write, with the condition under which it takes effect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Write {
    /// The kind of the object.
    pub kind: &'static str,
    /// The full path of the object.
    pub path: String,
    /// The object's identifier for error messages, such as `IPPool(pool4)`.
    pub key: String,
    /// The operation, with its condition.
    pub op: WriteOp,
}

/// The condition and effect of a [`Write`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WriteOp {
    /// Creates the object if it is missing.
    Create(Vec<u8>),
    /// Replaces the object if it is still at this revision.
    Update(Vec<u8>, Revision),
    /// Replaces the `status` of the object if the object is still at this revision. A store that
    /// does not write the status separately replaces the whole object.
    UpdateStatus(Vec<u8>, Revision),
    /// Deletes the object if it is still at this revision; without a revision, at any. A missing
    /// object is an error.
    Delete(Option<Revision>),
}

impl Write {
    fn of<K: Kind>(key: &K::Key, op: WriteOp) -> Self {
        Write {
            kind: K::KIND,
            path: K::path(key),
            key: identifier::<K>(key),
            op,
        }
    }

    /// Returns the write that creates `value` under `key`.
    pub fn create<K: Kind>(key: &K::Key, value: &K) -> Result<Self, StoreError> {
        Ok(Self::of::<K>(
            key,
            WriteOp::Create(encode::<K>(key, value)?),
        ))
    }

    /// Returns the write that replaces the object read at `revision`.
    pub fn update<K: Kind>(
        key: &K::Key,
        value: &K,
        revision: &Revision,
    ) -> Result<Self, StoreError> {
        Ok(Self::of::<K>(
            key,
            WriteOp::Update(encode::<K>(key, value)?, revision.clone()),
        ))
    }

    /// Returns the write that replaces the `status` of the object read at `revision`. All other
    /// fields of `value` must equal those of the object read.
    pub fn update_status<K: Kind>(
        key: &K::Key,
        value: &K,
        revision: &Revision,
    ) -> Result<Self, StoreError> {
        Ok(Self::of::<K>(
            key,
            WriteOp::UpdateStatus(encode::<K>(key, value)?, revision.clone()),
        ))
    }

    /// Returns the write that deletes the object; with a `revision`, only if the object still has
    /// that revision.
    pub fn delete<K: Kind>(key: &K::Key, revision: Option<&Revision>) -> Self {
        Self::of::<K>(key, WriteOp::Delete(revision.cloned()))
    }
}

fn encode<K: Kind>(key: &K::Key, value: &K) -> Result<Vec<u8>, StoreError> {
    value
        .encode()
        .map_err(|e| StoreError::Other(format!("cannot encode {}: {e}", identifier::<K>(key))))
}

/// Turns the error of a deletion that finds no object into success.
pub fn ignore_missing(deleted: Result<(), StoreError>) -> Result<(), StoreError> {
    match deleted {
        Err(StoreError::NotFound { .. }) => Ok(()),
        outcome => outcome,
    }
}

/// Returns `Kind(key)`, the form in which error messages name an object (DS-118).
pub fn identifier<K: Kind>(key: &K::Key) -> String {
    format!("{}({key})", K::KIND)
}

/// The failure of a list of writes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{cause}")]
pub struct WriteError {
    /// Index of the write that failed, from 0.
    pub index: usize,
    /// The number of earlier writes that are known to have taken effect.
    pub applied: usize,
    /// The error of the write that failed.
    pub cause: StoreError,
}

/// The way in which a store applies a list of writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteModel {
    /// All writes of a list take effect together, or none.
    Transactional,
    /// Each write is a request by itself, sent in the order of the list.
    PerObject,
}

/// The place where a store keeps the addresses of a pod's interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndpointForm {
    /// A WorkloadEndpoint, which the CNI plugin creates, updates and deletes. Each interface of a
    /// pod has one.
    Object,
    /// Annotations of the Pod. The pod's only WorkloadEndpoint is a view of the Pod: it exists as
    /// long as the Pod, and its update writes the annotations.
    PodAnnotations,
}

/// The origin of the profiles that a store returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProfileOrigin {
    /// Profiles are objects, which the CNI plugin or kube-controllers write.
    Stored,
    /// The store derives profiles from namespaces and service accounts, and refuses to write one.
    Derived,
}

/// The nodes that use the same store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sharing {
    /// All nodes of the cluster.
    Cluster,
    /// This node alone.
    ThisNode,
}

/// Access to a datastore.
pub trait Store: Send + Sync {
    /// Answers a batch of reads, with as few round trips as the datastore allows.
    fn read(&self, batch: &ReadBatch) -> impl Future<Output = Result<Answers, StoreError>> + Send;

    /// Calls `report` for each block that `survey` selects. A store overrides this if it can read
    /// the blocks in pieces.
    fn survey(
        &self,
        survey: &Survey,
        report: &mut (dyn FnMut(ListedBlock) + Send),
    ) -> impl Future<Output = Result<(), StoreError>> + Send {
        let (batch, tickets) = survey.batch();
        async move {
            let answers = self.read(&batch).await?;
            let pairs = tickets
                .iter()
                .flat_map(|ticket| answers.raw_entries(ticket));
            pairs
                .filter_map(|pair| listed_block(&pair.path, &pair.value.bytes()))
                .for_each(report);
            Ok(())
        }
    }

    /// Returns the way in which the store applies a list of writes.
    fn write_model(&self) -> WriteModel;

    /// Returns the place where the store keeps the addresses of a pod's endpoint.
    fn endpoint_form(&self) -> EndpointForm;

    /// Returns the origin of the profiles that the store returns.
    fn profile_origin(&self) -> ProfileOrigin;

    /// Returns the nodes that use the same store.
    fn sharing(&self) -> Sharing;

    /// Returns true if a retry is hardly useful, because requests of this process that would have
    /// to wait for the server fail at once.
    fn has_given_up(&self) -> bool {
        false
    }

    /// Applies writes in order, as the [`WriteModel`] says. Stored data must be consistent after
    /// each write of the list (IPAM-221). Returns the new revisions; that of a delete may be empty.
    fn write(
        &self,
        writes: &[Write],
    ) -> impl Future<Output = Result<Vec<Revision>, WriteError>> + Send;

    /// Reads one object; a missing object is [`StoreError::NotFound`].
    fn get<K: Kind>(
        &self,
        key: &K::Key,
    ) -> impl Future<Output = Result<Entry<K>, StoreError>> + Send {
        let mut batch = ReadBatch::new();
        let ticket = batch.get::<K>(key);
        let missing = identifier::<K>(key);
        async move {
            self.read(&batch)
                .await?
                .get(&ticket)?
                .ok_or(StoreError::NotFound { key: missing })
        }
    }

    /// Reads the objects of a selection, in the order of [`ReadBatch::list`]. Objects that cannot
    /// be decoded are skipped.
    fn list<K: Kind>(
        &self,
        select: &K::Select,
    ) -> impl Future<Output = Result<Vec<Entry<K>>, StoreError>> + Send {
        let mut batch = ReadBatch::new();
        let ticket = batch.list::<K>(select);
        async move { Ok(self.read(&batch).await?.list(&ticket)) }
    }

    /// Creates one object.
    fn create<K: Kind>(
        &self,
        key: &K::Key,
        value: &K,
    ) -> impl Future<Output = Result<Revision, StoreError>> + Send {
        let write = Write::create::<K>(key, value);
        async move { self.write_one(write?).await }
    }

    /// Replaces one object that was read at `revision`.
    fn update<K: Kind>(
        &self,
        key: &K::Key,
        value: &K,
        revision: &Revision,
    ) -> impl Future<Output = Result<Revision, StoreError>> + Send {
        let write = Write::update::<K>(key, value, revision);
        async move { self.write_one(write?).await }
    }

    /// Replaces the `status` of one object that was read at `revision`.
    fn update_status<K: Kind>(
        &self,
        key: &K::Key,
        value: &K,
        revision: &Revision,
    ) -> impl Future<Output = Result<Revision, StoreError>> + Send {
        let write = Write::update_status::<K>(key, value, revision);
        async move { self.write_one(write?).await }
    }

    /// Deletes one object; with a `revision`, only if the object still has that revision.
    fn delete<K: Kind>(
        &self,
        key: &K::Key,
        revision: Option<&Revision>,
    ) -> impl Future<Output = Result<(), StoreError>> + Send {
        let write = Write::delete::<K>(key, revision);
        async move { self.write_one(write).await.map(|_| ()) }
    }

    /// Applies a single write.
    fn write_one(&self, write: Write) -> impl Future<Output = Result<Revision, StoreError>> + Send {
        async move {
            let mut revisions = self.write(&[write]).await.map_err(|e| e.cause)?;
            revisions
                .pop()
                .ok_or_else(|| StoreError::Other("the datastore returned no revision".into()))
        }
    }
}

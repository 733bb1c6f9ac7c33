//! [`WatchSource`]: lists and changes of one kind, as a watch needs them.

use std::time::Duration;

use libcalico::store::{Entry, Kind, RawEntry, decode_entry};

/// A kind of object on a server.
pub trait WatchSource: Send + 'static {
    /// An object.
    type Value: Send + 'static;
    /// The key of an object.
    type Key: Send + 'static;
    /// The position of the next page of a list.
    type Token: Clone + Send + 'static;
    /// A revision of the server: that of a list, or of the last delivered change.
    type Position: Clone + PartialEq + Send + 'static;

    /// Maximum time without a message on an open watch. After that time its connection counts as dead.
    const LONGEST_SILENCE: Duration;

    /// Returns the kind, for logs.
    fn kind(&self) -> &'static str;

    /// Returns a page of the list of all objects. The first page has no token.
    fn list(&mut self, page: Option<Self::Token>) -> impl Future<Output = Result<Page<Self>, WatchFailure>> + Send;

    /// Opens a watch for changes after `from`, and closes the previous watch.
    fn open(&mut self, from: &Self::Position) -> impl Future<Output = Result<(), WatchFailure>> + Send;

    /// Returns the next changes of the open watch, or `None` if the server has ended the watch.
    fn next(&mut self) -> impl Future<Output = Result<Option<WatchStep<Self>>, WatchFailure>> + Send;
}

/// A page of a list.
pub struct Page<S: WatchSource + ?Sized> {
    /// The objects of the page.
    pub objects: Vec<ObjectChange<S::Value, S::Key>>,
    /// The position after the page.
    pub next: NextPage<S>,
}

/// The position after a page.
pub enum NextPage<S: WatchSource + ?Sized> {
    /// Another page follows.
    Page(S::Token),
    /// The list is complete, and a watch can start at this position.
    Watch(S::Position),
}

/// Changes that happened together, or only progress if there are none.
pub struct WatchStep<S: WatchSource + ?Sized> {
    /// The changes.
    pub changes: Vec<ObjectChange<S::Value, S::Key>>,
    /// The position at which to resume after this step.
    pub position: S::Position,
}

/// A change of one object.
#[derive(Debug, Clone, PartialEq)]
pub enum ObjectChange<V, K> {
    /// The object exists.
    Upsert(V),
    /// The object does not exist.
    Delete(K),
    /// The object exists but cannot be read. It counts as not existing.
    Unreadable {
        /// The object's name on the server.
        name: String,
        /// The object's key, if it can be determined.
        key: Option<K>,
        /// The problem with the object.
        reason: String,
    },
}

impl<K: Kind> ObjectChange<Entry<K>, K::Key> {
    /// Decodes a stored object. `name` is its name on the server. Returns `None` if the path is not one of the kind.
    pub(crate) fn decode(raw: &RawEntry, name: &str) -> Option<Self> {
        let key = K::parse_path(&raw.path)?;
        Some(match decode_entry::<K>(raw) {
            Ok(entry) => ObjectChange::Upsert(entry),
            Err(error) => ObjectChange::Unreadable { name: name.into(), key: Some(key), reason: error.to_string() },
        })
    }
}

/// The reason why a list or a watch failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WatchFailure {
    /// The server no longer has that position of the list or of its history.
    #[error("the server no longer knows the place to go on from: {0}")]
    Expired(String),
    /// The server does not have this kind.
    #[error("the server does not have this kind: {0}")]
    Missing(String),
    /// The server rejected the request, and a retry does not help by itself.
    #[error("{0}")]
    Refused(String),
    /// The server is unreachable or busy, or the connection broke.
    #[error("{reason}")]
    Lost {
        /// The problem.
        reason: String,
        /// The delay after which the server accepts a retry.
        retry_after: Option<Duration>,
    },
}

impl WatchFailure {
    /// Creates a [`WatchFailure::Lost`] without a delay.
    pub fn lost(reason: impl Into<String>) -> Self {
        WatchFailure::Lost { reason: reason.into(), retry_after: None }
    }
}

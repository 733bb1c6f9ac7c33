//! [`Source`]: where a watch gets its lists and changes.

use std::time::Duration;

/// One kind of object on one server.
pub trait Source: Send + 'static {
    /// An object.
    type Value: Send + 'static;
    /// What names one.
    type Key: Send + 'static;
    /// Where the next page of a list begins.
    type Token: Clone + Send + 'static;
    /// A moment of the server: what a list showed, or the last change that was told.
    type Position: Clone + PartialEq + Send + 'static;

    /// How long an open watch may be silent before its connection is taken for dead.
    const LONGEST_SILENCE: Duration;

    /// The kind, for logs.
    fn kind(&self) -> &'static str;

    /// A page of the list of everything; the first without a token.
    fn list(&mut self, page: Option<Self::Token>) -> impl Future<Output = Result<Page<Self>, WatchFailure>> + Send;

    /// Opens a watch for what happens after `from`, in place of the one that was open.
    fn open(&mut self, from: &Self::Position) -> impl Future<Output = Result<(), WatchFailure>> + Send;

    /// What happened next on the open watch; `None` when the server has ended it.
    fn next(&mut self) -> impl Future<Output = Result<Option<Step<Self>>, WatchFailure>> + Send;
}

/// Part of a list.
pub struct Page<S: Source + ?Sized> {
    /// What is on it.
    pub objects: Vec<Change<S::Value, S::Key>>,
    /// What comes after it.
    pub next: Next<S>,
}

/// What comes after a page.
pub enum Next<S: Source + ?Sized> {
    /// Another.
    Page(S::Token),
    /// Nothing: a watch from here tells what happens.
    Watch(S::Position),
}

/// One or more changes that happened together, or none but the passing of time.
pub struct Step<S: Source + ?Sized> {
    /// What happened.
    pub changes: Vec<Change<S::Value, S::Key>>,
    /// Where to resume afterwards.
    pub position: S::Position,
}

/// What happened to one object.
#[derive(Debug, Clone, PartialEq)]
pub enum Change<V, K> {
    /// Is there.
    Put(V),
    /// Is not there.
    Gone(K),
    /// Is there, but cannot be read: it counts as not there.
    Unreadable {
        /// As the server calls it.
        name: String,
        /// What names it, if that can be told.
        key: Option<K>,
        /// What is wrong with it.
        reason: String,
    },
}

/// Why there is no page or no change.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WatchFailure {
    /// The server has forgotten that place of the list or of its history.
    #[error("the server no longer knows the place to go on from: {0}")]
    Expired(String),
    /// The server does not have this kind.
    #[error("the server does not have this kind: {0}")]
    Missing(String),
    /// The server's refusal, which asking again will not mend by itself.
    #[error("{0}")]
    Refused(String),
    /// Out of reach, busy, or cut off.
    #[error("{reason}")]
    Lost {
        /// What happened.
        reason: String,
        /// When the server wants to be asked again.
        retry_after: Option<Duration>,
    },
}

impl WatchFailure {
    /// Out of reach or cut off.
    pub fn lost(reason: impl Into<String>) -> Self {
        WatchFailure::Lost { reason: reason.into(), retry_after: None }
    }
}

//! [`WatchSource`]: lists and changes of one kind, as a watch needs them.

use std::time::Duration;

use libcalico::store::{Entry, Kind, RawEntry, decode_entry};
use tokio::time::timeout;

/// Time limit of the request for one page, and of the request that starts a watch.
pub(super) const PAGE_DEADLINE: Duration = Duration::from_secs(60);

/// A source that lists the objects of one kind on a server, and watches them.
pub trait WatchSource: Send + 'static {
    /// An object.
    type Value: Send + 'static;
    /// The key of an object.
    type Key: Send + 'static;
    /// The position of a page in a list.
    type Token: Clone + Send + 'static;
    /// A revision of the server: the revision of a list, or of the last message of a watch.
    type Position: Clone + PartialEq + Send + 'static;

    /// Maximum time without a message on an open watch, which is then opened again.
    const LONGEST_SILENCE: Duration;

    /// Returns the kind, for logs.
    fn kind(&self) -> &'static str;

    /// Returns the page at the position `page` of the list of the objects; `None` means the first
    /// page.
    fn list(
        &mut self,
        page: Option<Self::Token>,
    ) -> impl Future<Output = Result<Page<Self>, WatchFailure>> + Send;

    /// Returns a page as [`list`](Self::list) does, or [`WatchFailure::Lost`] if the time limit of
    /// a page passes first.
    fn list_in_time(
        &mut self,
        page: Option<Self::Token>,
    ) -> impl Future<Output = Result<Page<Self>, WatchFailure>> + Send {
        async move {
            let late = |_| {
                Err(WatchFailure::lost(format!(
                    "no page of the list within {PAGE_DEADLINE:?}"
                )))
            };
            timeout(PAGE_DEADLINE, self.list(page))
                .await
                .unwrap_or_else(late)
        }
    }

    /// Opens a watch for changes after `from`, and closes the previous watch.
    fn open(
        &mut self,
        from: &Self::Position,
    ) -> impl Future<Output = Result<(), WatchFailure>> + Send;

    /// Returns the next changes of the open watch, or `None` if the server has ended the watch.
    fn next(
        &mut self,
    ) -> impl Future<Output = Result<Option<WatchStep<Self>>, WatchFailure>> + Send;
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

/// Changes that arrived together, or no changes but a later position.
pub struct WatchStep<S: WatchSource + ?Sized> {
    /// The changes.
    pub changes: Vec<ObjectChange<S::Value, S::Key>>,
    /// The position at which to resume after this step.
    pub position: S::Position,
}

/// An object of a list, or a change of one object.
#[derive(Debug, Clone, PartialEq)]
pub enum ObjectChange<V, K> {
    /// The object exists.
    Upsert(V),
    /// The object does not exist.
    Delete(K),
    /// The object exists but cannot be read. If its key is known, a [`Watcher`](super::Watcher)
    /// reports it as deleted.
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
    /// Returns `None` if the path does not belong to the kind. `name` is the object's name on the
    /// server.
    pub(crate) fn decode(raw: &RawEntry, name: &str) -> Option<Self> {
        let key = K::parse_path(&raw.path)?;
        Some(match decode_entry::<K>(raw) {
            Ok(entry) => ObjectChange::Upsert(entry),
            Err(error) => ObjectChange::Unreadable {
                name: name.into(),
                key: Some(key),
                reason: error.to_string(),
            },
        })
    }
}

/// The reason why a list or a watch failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WatchFailure {
    /// The server no longer has the requested position of the list, or the revision from which a
    /// watch is to continue.
    #[error("the server no longer has the revision to continue from: {0}")]
    Expired(String),
    /// The server does not have this kind.
    #[error("the server does not serve this kind: {0}")]
    Missing(String),
    /// The server rejected the request, or the request failed in another way that a retry is
    /// unlikely to change.
    #[error("{0}")]
    Refused(String),
    /// A failure that may end without a change, for example because the server is unreachable or
    /// busy.
    #[error("{reason}")]
    Lost {
        /// The problem.
        reason: String,
        /// The delay before a retry that the server asks for; `None` if it asks for none.
        retry_after: Option<Duration>,
    },
}

impl WatchFailure {
    /// Creates a [`WatchFailure::Lost`] without a delay.
    pub fn lost(reason: impl Into<String>) -> Self {
        WatchFailure::Lost {
            reason: reason.into(),
            retry_after: None,
        }
    }
}

/// Target size of a page in bytes. A page is in memory as a whole, and several times while it
/// arrives.
const PAGE_BYTES: usize = 512 << 10;
const FIRST_PAGE: usize = 50;
const SMALLEST_PAGE: usize = 10;
const LARGEST_PAGE: usize = 1000;

/// The number of objects to request with the next page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageSize(usize);

impl Default for PageSize {
    fn default() -> Self {
        PageSize(FIRST_PAGE)
    }
}

impl PageSize {
    /// Returns the number of objects.
    pub fn get(self) -> usize {
        self.0
    }

    /// Adjusts the size of the next page after a page of `objects` objects that took `bytes`. The
    /// size grows at most by a factor of four, since the first objects may be small. A page without
    /// objects changes nothing.
    pub fn adjust(&mut self, objects: usize, bytes: usize) {
        if objects > 0 {
            let fitting = PAGE_BYTES * objects / bytes.max(1);
            self.0 = fitting.min(4 * self.0).clamp(SMALLEST_PAGE, LARGEST_PAGE);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_size_adapts_to_the_object_size() {
        let mut size = PageSize::default();
        size.adjust(50, 50 * 5000);
        assert_eq!(size.get(), PAGE_BYTES / 5000);
        size.adjust(100, 100 * 200_000);
        assert_eq!(size.get(), SMALLEST_PAGE);
        size.adjust(0, 300);
        assert_eq!(size.get(), SMALLEST_PAGE);
        for expected in [40, 160, 640, LARGEST_PAGE, LARGEST_PAGE] {
            size.adjust(10, 10 * 100);
            assert_eq!(size.get(), expected);
        }
    }
}

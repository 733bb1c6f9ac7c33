//! Watches: list all objects of one kind, then deliver each change, across failures of servers and connections.
//!
//! A [`Source`] lists page by page and then delivers changes. [`Watch`] drives a source forever. It retries a failed
//! page instead of the whole list, resumes an interrupted watch at its last position, and lists again if the server no
//! longer has that position. It backs off on repeated failures, and omits an unreadable object with a log line. kube's
//! own watcher restarts a list of hundreds of pages when one page fails, retries immediately after a server closes the
//! connection, and loses the whole page that contains one unreadable object.
//!
//! Read `source` first, then `driver`.

mod backoff;
mod driver;
mod page_size;
mod report;
mod source;
#[cfg(test)]
mod tests;

pub use driver::Watch;
pub use page_size::PageSize;
pub use report::{Meter, WatchReport};
pub use source::{Change, Next, Page, Source, Step, WatchFailure};

/// An event of a watch. After [`WatchEvent::Restarted`], the watch delivers every existing object and then
/// [`WatchEvent::Synced`]. An object that was not delivered in between no longer exists. A list may restart before it
/// is complete.
#[derive(Debug, Clone, PartialEq)]
pub enum WatchEvent<V, K> {
    /// A full list begins.
    Restarted,
    /// The object exists. It is new, changed, or part of a list.
    Put(V),
    /// The object no longer exists.
    Gone(K),
    /// The list is complete.
    Synced,
}

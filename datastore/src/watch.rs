//! Watches: everything of one kind, and then each change, whatever happens to servers and connections.
//!
//! A [`Source`] lists page by page and then tells what changed; [`Watch`] drives one for ever. It goes on with a page that
//! failed instead of beginning anew, resumes a watch that was cut where it ended, lists again when the server has forgotten
//! that place, waits longer from failure to failure, and leaves out, with a word in the log, an object that cannot be read.
//! kube's own watcher begins a list of hundreds of pages anew when one of them fails, asks again at once when a server
//! hangs up on it, and loses the whole page that holds one unreadable object.

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

/// What a watch says. After [`WatchEvent::Restarted`] everything that exists is named, then comes
/// [`WatchEvent::Synced`]: what was not named in between is gone. A list may restart before it is complete.
#[derive(Debug, Clone, PartialEq)]
pub enum WatchEvent<V, K> {
    /// A full list begins.
    Restarted,
    /// Is there, new or changed.
    Put(V),
    /// Is not there.
    Gone(K),
    /// The list that began is complete.
    Synced,
}

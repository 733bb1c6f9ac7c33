//! Watches: list all objects of one kind, then deliver each change, across failures of servers and connections.
//!
//! A [`WatchSource`] lists page by page and then delivers changes. [`Watcher`] drives a source forever. A watcher
//! retries a failed page instead of the whole list, resumes an interrupted watch at its last position, and lists again
//! if the server no longer has that position. A watcher pauses longer after each repeated failure, and omits an
//! unreadable object with a log line. kube's own watcher restarts a list of hundreds of pages when one page fails,
//! retries immediately after a server closes the connection, and loses the whole page that contains one unreadable
//! object.
//!
//! Read `source` first, then `watcher`.

mod source;
mod stats;
#[cfg(test)]
mod tests;
mod watcher;

pub use source::{NextPage, ObjectChange, Page, PageSize, WatchFailure, WatchSource, WatchStep};
pub use stats::{StatsHandle, WatchStats};
pub use watcher::{WatchEvent, Watcher};

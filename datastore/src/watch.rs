//! Watches: list the objects of one kind, then deliver changes, across failures of servers and
//! connections.
//!
//! A [`WatchSource`] lists page by page and then delivers changes. [`Watcher`] drives a source
//! forever. Unlike kube's own watcher, it retries a failed page instead of a list of hundreds of
//! pages, pauses longer after repeated failures, and omits only the unreadable object of a page.
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

//! Feeds: one watch per kind of object, however many listen.

mod cache;
mod feeds;
mod kubernetes;
mod listeners;
mod running;

pub use cache::Cache;
pub use feeds::Feeds;
pub use listeners::{Feed, Listener};
pub use running::{FeedHealth, Running};

use crate::watched::Watched;

/// What a feed says. After [`Event::Restarted`] everything that exists is named once, then comes [`Event::Synced`]: what
/// was not named in between is gone. A list may restart before it is complete.
#[derive(Debug)]
pub enum Event<'a, T: Watched> {
    /// A full list begins.
    Restarted,
    /// Is there, new or changed.
    Put(&'a T),
    /// Is not there. It need not have been.
    Gone(&'a T::Key),
    /// The list that began is complete.
    Synced,
}

//! Watches of the API server and the datastore: one per kind of object, shared by all listeners.

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

/// An event of a watch. After [`Event::Restarted`], every existing object is delivered once, followed by
/// [`Event::Synced`]; objects that were not delivered in between do not exist. A list may restart before it is
/// complete.
#[derive(Debug)]
pub enum Event<'a, T: Watched> {
    /// A full list begins.
    Restarted,
    /// An object exists and is new or changed.
    Put(&'a T),
    /// An object does not exist. It may never have been delivered.
    Gone(&'a T::Key),
    /// The current list is complete.
    Synced,
}

//! Watches of the API server and the datastore: one per kind of object, shared by all event handlers.

mod cache;
mod handler;
mod running;
mod set;

pub use cache::Cache;
pub use handler::{Event, Subscribers};
pub use running::{RunningWatches, WatchHealth};
pub use set::Watches;

//! Feeds: one watch per kind of object, however many listen.

mod cache;
mod feeds;

pub use cache::Cache;
pub use feeds::{Feed, Feeds};

use crate::watched::Watched;

/// What a feed says. After [`Event::Restarted`] everything that exists is named once, then comes [`Event::Synced`]: what
/// was not named in between is gone.
#[derive(Debug)]
pub enum Event<'a, T: Watched> {
    /// A full list begins.
    Restarted,
    /// Is there, new or changed.
    Put(&'a T),
    /// Is no longer there.
    Gone(&'a T::Key),
    /// The list that began is complete.
    Synced,
}

/// Who hears a feed. Called on the feed's own task: keep what is needed, put keys on queues, and return. No I/O and no
/// waiting here, or all who listen to this kind wait too (B-04).
pub trait Listener<T: Watched>: Send + 'static {
    /// Takes notice of an event.
    fn hear(&mut self, event: &Event<'_, T>);
}

impl<T: Watched, F: FnMut(&Event<'_, T>) + Send + 'static> Listener<T> for F {
    fn hear(&mut self, event: &Event<'_, T>) {
        self(event);
    }
}

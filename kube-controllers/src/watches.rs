//! Watches of the API server and the datastore: one per kind of object, shared by all event
//! handlers.

mod cache;
mod running;
mod set;

pub use cache::Cache;
pub use running::{RunningWatches, WatchHealth};
pub use set::Watches;

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::logging::panic_message;
use crate::watched::Watched;

/// An event of a watch. After [`Event::ListStart`], every readable object is delivered once,
/// followed by [`Event::ListEnd`]; objects that were not delivered in between do not exist or are
/// unreadable. A list may restart before it is complete.
#[derive(Debug)]
pub enum Event<'a, T: Watched> {
    /// A full list begins.
    ListStart,
    /// An object exists. It is new or changed, or unchanged and part of a list.
    Upsert(&'a T),
    /// An object does not exist or is unreadable. It may never have been delivered.
    Delete(&'a T::Key),
    /// The current list is complete.
    ListEnd,
}

type EventHandler<T> = Box<dyn FnMut(&Event<'_, T>) + Send>;

/// The event handlers of one kind of object. A watch without event handlers is not started.
pub struct Subscribers<T: Watched> {
    handlers: Vec<EventHandler<T>>,
}

impl<T: Watched> Default for Subscribers<T> {
    fn default() -> Self {
        Subscribers {
            handlers: Vec::new(),
        }
    }
}

impl<T: Watched> Subscribers<T> {
    /// Adds an event handler. Takes effect only before the watch starts.
    ///
    /// The handler is called on the task of the watch and delays all event handlers of the same
    /// kind, so it must not wait or do I/O.
    pub fn subscribe(&mut self, handler: impl FnMut(&Event<'_, T>) + Send + 'static) {
        self.handlers.push(Box::new(handler));
    }

    /// Returns true if there is an event handler.
    pub fn has_subscribers(&self) -> bool {
        !self.handlers.is_empty()
    }

    /// Passes the event to all event handlers. An event handler that panics misses this event and
    /// receives the next.
    pub fn dispatch(&mut self, event: &Event<'_, T>) {
        for handler in &mut self.handlers {
            // Unwind-safe: the handler's own state may be incomplete after a panic; the next full
            // list repairs most of it.
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| handler(event))) {
                let reason = panic_message(&*panic).unwrap_or("of unknown kind");
                tracing::error!(
                    kind = T::KIND,
                    reason,
                    hint = "the next full list of the kind repairs most of this",
                    "an event handler panicked and missed an event"
                );
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::logging::captured::Captured;
    use crate::settings::LogSeverity;
    use crate::watched::Node;

    #[test]
    fn panicking_subscriber_does_not_block_other_subscribers() {
        let heard = Arc::new(Mutex::new(0));
        let mut subscribers = Subscribers::<Node>::default();
        let mut first = true;
        subscribers.subscribe(move |_: &Event<'_, Node>| {
            if std::mem::take(&mut first) {
                panic!("at the first event");
            }
        });
        let counter = heard.clone();
        subscribers.subscribe(move |_: &Event<'_, Node>| *counter.lock().unwrap() += 1);
        let (log, _logging) = Captured::on_this_thread(LogSeverity::Error);
        subscribers.dispatch(&Event::ListStart);
        subscribers.dispatch(&Event::ListEnd);
        assert_eq!(
            (
                *heard.lock().unwrap(),
                log.from("an event handler panicked and missed an event")
                    .len()
            ),
            (2, 1)
        );
    }
}

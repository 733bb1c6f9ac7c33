//! [`Feed`]: the listeners of one kind of object.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

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

/// A listener of a watch. It is called on the task of the watch and delays all listeners of the same kind, so it must
/// not wait or do I/O: store the needed data, add keys to queues, and return.
pub trait Listener<T: Watched>: Send + 'static {
    /// Handles an event.
    fn hear(&mut self, event: &Event<'_, T>);
}

impl<T: Watched, F: FnMut(&Event<'_, T>) + Send + 'static> Listener<T> for F {
    fn hear(&mut self, event: &Event<'_, T>) {
        self(event);
    }
}

/// The listeners of one kind of object. A watch without listeners is not started.
pub struct Feed<T: Watched> {
    listeners: Vec<Box<dyn Listener<T>>>,
    panics: Panics,
}

/// Number of times that a listener panicked.
#[derive(Debug, Clone, Default)]
pub(super) struct Panics(Arc<AtomicU64>);

impl Panics {
    pub(super) fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl<T: Watched> Default for Feed<T> {
    fn default() -> Self {
        Feed { listeners: Vec::new(), panics: Panics::default() }
    }
}

impl<T: Watched> Feed<T> {
    /// Adds a listener. Takes effect only before the watch starts.
    pub fn subscribe(&mut self, listener: impl Listener<T>) {
        self.listeners.push(Box::new(listener));
    }

    /// Returns true if there is a listener.
    pub fn is_wanted(&self) -> bool {
        !self.listeners.is_empty()
    }

    /// Passes the event to all listeners. A listener that panics misses this event and receives the next.
    pub fn tell(&mut self, event: &Event<'_, T>) {
        for listener in &mut self.listeners {
            // Safe: the listener's own state may be incomplete after a panic, and the next full list repairs it.
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| listener.hear(event))) {
                self.panics.0.fetch_add(1, Ordering::Relaxed);
                tracing::error!(kind = T::KIND, reason = reason(&*panic), "a listener panicked");
            }
        }
    }

    pub(super) fn panics(&self) -> Panics {
        self.panics.clone()
    }
}

fn reason(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("of unknown kind")
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::watched::Node;

    #[test]
    fn a_listener_that_panics_keeps_nothing_from_the_others() {
        let heard = Arc::new(Mutex::new(0));
        let mut feed = Feed::<Node>::default();
        let mut first = true;
        feed.subscribe(move |_: &Event<'_, Node>| {
            if std::mem::take(&mut first) {
                panic!("at the first event");
            }
        });
        let counter = heard.clone();
        feed.subscribe(move |_: &Event<'_, Node>| *counter.lock().unwrap() += 1);
        let panics = feed.panics();
        feed.tell(&Event::Restarted);
        feed.tell(&Event::Synced);
        assert_eq!((*heard.lock().unwrap(), panics.count()), (2, 1));
    }
}

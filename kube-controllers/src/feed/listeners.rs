//! [`Feed`]: who listens to one kind.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::Event;
use crate::watched::Watched;

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

/// One kind, and who listens. A feed that nobody listens to is not started.
pub struct Feed<T: Watched> {
    listeners: Vec<Box<dyn Listener<T>>>,
    panics: Panics,
}

/// Counts panics of listeners.
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
    /// Adds a listener, before the feed starts.
    pub fn subscribe(&mut self, listener: impl Listener<T>) {
        self.listeners.push(Box::new(listener));
    }

    /// Whether anybody listens.
    pub fn is_wanted(&self) -> bool {
        !self.listeners.is_empty()
    }

    /// Tells all listeners. One that panics misses this event and hears the next.
    pub fn tell(&mut self, event: &Event<'_, T>) {
        for listener in &mut self.listeners {
            // A listener's own state may be half changed then, as after any error; the next full list mends it.
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

//! [`WatchStats`]: the statistics of a watch.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::time::Instant;

/// The state and the statistics of a watch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WatchStats {
    /// True if every existing object has been delivered at least once.
    pub is_synced: bool,
    /// True if the server does not have the kind. The kind then counts as empty.
    pub is_missing: bool,
    /// True if the server rejected the last list, possibly because the role lacks the kind.
    pub is_refused: bool,
    /// Number of full lists begun.
    pub lists: u64,
    /// Number of watches opened, including resumed ones.
    pub watches: u64,
    /// Number of objects that were stored or deleted.
    pub changes: u64,
    /// Number of failed requests and broken watches.
    pub failures: u64,
    /// Number of objects that could not be read.
    pub unreadable: u64,
    /// The instant of the server's last response or event.
    pub last_response: Option<Instant>,
}

impl WatchStats {
    /// Returns true if no list has been delivered and the server has not rejected one.
    pub fn is_awaited(&self) -> bool {
        !self.is_synced && !self.is_refused
    }
}

/// A handle to the [`WatchStats`] of a watch. Clones share the report.
#[derive(Debug, Clone, Default)]
pub struct StatsHandle(Arc<Mutex<WatchStats>>);

impl StatsHandle {
    /// Returns the present report.
    pub fn read(&self) -> WatchStats {
        *self.lock()
    }

    pub(super) fn update(&self, change: impl FnOnce(&mut WatchStats)) {
        change(&mut self.lock());
    }

    fn lock(&self) -> MutexGuard<'_, WatchStats> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

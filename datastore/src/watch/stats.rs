//! [`WatchStats`]: the statistics of a watch.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::time::Instant;

/// The state and the statistics of a watch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WatchStats {
    /// True after the first complete list.
    pub is_synced: bool,
    /// True if the last complete list is empty because the server does not have the kind.
    pub is_missing: bool,
    /// True if the server rejected the last request for a list.
    pub is_refused: bool,
    /// Number of lists begun.
    pub lists: u64,
    /// Number of watches opened, including resumed ones.
    pub watches: u64,
    /// Number of objects delivered as listed, changed or deleted, without unreadable ones.
    pub changes: u64,
    /// Number of failed requests and broken watches, without lists of a kind that the server does
    /// not have.
    pub failures: u64,
    /// Number of times that an object could not be read.
    pub unreadable: u64,
    /// The instant of the server's last response that is no failure, or of its last event; `None`
    /// before the first.
    pub last_response: Option<Instant>,
}

impl WatchStats {
    /// Returns true if no list is complete yet, and the server did not reject the last request for
    /// a list.
    pub fn is_awaited(&self) -> bool {
        !self.is_synced && !self.is_refused
    }
}

/// A handle to the statistics of a watch, which its clones share.
#[derive(Debug, Clone, Default)]
pub struct StatsHandle(Arc<Mutex<WatchStats>>);

impl StatsHandle {
    /// Returns the present statistics.
    pub fn read(&self) -> WatchStats {
        *self.lock()
    }

    /// Records a response that is no failure.
    pub(super) fn record_response(&self) {
        self.update(|report| {
            (report.is_refused, report.last_response) = (false, Some(Instant::now()))
        });
    }

    pub(super) fn update(&self, change: impl FnOnce(&mut WatchStats)) {
        change(&mut self.lock());
    }

    fn lock(&self) -> MutexGuard<'_, WatchStats> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

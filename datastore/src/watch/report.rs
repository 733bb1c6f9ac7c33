//! [`WatchReport`]: how a watch is doing.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::time::Instant;

/// How a watch is doing, and has done since it began.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WatchReport {
    /// Everything that exists has been named at least once.
    pub synced: bool,
    /// The server does not have the kind, which counts as none.
    pub missing: bool,
    /// The last list was refused: the role may lack the kind.
    pub refused: bool,
    /// Full lists that were begun.
    pub lists: u64,
    /// Watches that were opened, resumed ones included.
    pub watches: u64,
    /// Objects that were put or gone.
    pub changes: u64,
    /// Requests that failed and watches that broke.
    pub failures: u64,
    /// Objects that could not be read.
    pub unreadable: u64,
    /// When the server was last heard.
    pub heard: Option<Instant>,
}

impl WatchReport {
    /// Returns true while nothing has been listed, and the server has not refused to.
    pub fn is_awaited(&self) -> bool {
        !self.synced && !self.refused
    }
}

/// Shows the [`WatchReport`] of a watch. Clones show the same.
#[derive(Debug, Clone, Default)]
pub struct Meter(Arc<Mutex<WatchReport>>);

impl Meter {
    /// How the watch is doing now.
    pub fn read(&self) -> WatchReport {
        *self.lock()
    }

    pub(super) fn note(&self, change: impl FnOnce(&mut WatchReport)) {
        change(&mut self.lock());
    }

    fn lock(&self) -> MutexGuard<'_, WatchReport> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

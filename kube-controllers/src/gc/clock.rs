//! [`Clock`]: the clock of grace periods.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

/// Time since the start, which never goes back. Clones share the same time.
#[derive(Debug, Clone)]
pub struct Clock {
    began: Instant,
    /// Number of milliseconds by which the clock was put forward.
    ahead: Arc<AtomicU64>,
    was_put: Arc<Notify>,
}

impl Clock {
    /// Starts a clock at zero.
    pub(super) fn start() -> Self {
        Clock { began: Instant::now(), ahead: Arc::default(), was_put: Arc::default() }
    }

    /// Returns the time since the start.
    pub(super) fn now(&self) -> Duration {
        self.began.elapsed() + Duration::from_millis(self.ahead.load(Ordering::Acquire))
    }

    /// Puts the clock forward, so that tests need not wait for grace periods.
    pub fn put_forward(&self, by: Duration) {
        self.ahead.fetch_add(u64::try_from(by.as_millis()).unwrap_or(u64::MAX), Ordering::AcqRel);
        self.was_put.notify_one();
    }

    /// Waits until the clock is put forward.
    pub(super) async fn jumps(&self) {
        self.was_put.notified().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn clock_advances_and_adds_the_manual_offset() {
        let clock = Clock::start();
        let same = clock.clone();
        tokio::time::advance(Duration::from_secs(2)).await;
        same.put_forward(Duration::from_secs(300));
        clock.jumps().await;
        assert_eq!((clock.now(), same.now()), (Duration::from_secs(302), Duration::from_secs(302)));
    }
}

//! [`Clock`]: the clock of grace periods.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use time::OffsetDateTime;
use tokio::sync::Notify;
use tokio::time::Instant;

/// Time since the start, which never goes back. Clones share the same time.
#[derive(Debug, Clone)]
pub struct Clock {
    started_at: Instant,
    /// Number of milliseconds by which the clock was advanced.
    offset_millis: Arc<AtomicU64>,
    offset_changed: Arc<Notify>,
}

impl Clock {
    /// Starts a clock at zero.
    pub(super) fn start() -> Self {
        Clock {
            started_at: Instant::now(),
            offset_millis: Arc::default(),
            offset_changed: Arc::default(),
        }
    }

    /// Advances the clock, so that tests need not wait for grace periods.
    pub fn advance(&self, by: Duration) {
        self.offset_millis.fetch_add(
            u64::try_from(by.as_millis()).unwrap_or(u64::MAX),
            Ordering::AcqRel,
        );
        self.offset_changed.notify_one();
    }

    /// Waits for a call of [`Clock::advance`].
    pub(super) async fn advanced(&self) {
        self.offset_changed.notified().await;
    }
}

impl os::clock::Clock for Clock {
    fn now(&self) -> OffsetDateTime {
        OffsetDateTime::now_utc()
    }

    fn elapsed(&self) -> Duration {
        self.started_at.elapsed()
            + Duration::from_millis(self.offset_millis.load(Ordering::Acquire))
    }

    fn sleep(&self, duration: Duration) -> impl Future<Output = ()> + Send {
        tokio::time::sleep(duration)
    }

    /// The result is not advanced by [`Clock::advance`].
    fn restarted(&self) -> Self {
        Clock::start()
    }
}

#[cfg(test)]
mod tests {
    use os::clock::Clock as _;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn clock_advances_and_adds_the_manual_offset() {
        let clock = Clock::start();
        let same = clock.clone();
        tokio::time::advance(Duration::from_secs(2)).await;
        same.advance(Duration::from_secs(300));
        clock.advanced().await;
        assert_eq!(
            (clock.elapsed(), same.elapsed()),
            (Duration::from_secs(302), Duration::from_secs(302))
        );
    }
}

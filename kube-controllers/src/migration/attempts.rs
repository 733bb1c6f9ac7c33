//! [`LockTimer`]: the limit of the time for which a migration holds the lock. [`Attempts`]: the pauses after migrations
//! that failed under the lock.
//!
//! No pod starts or ends while v1 is locked. So a migration never waits under the lock, neither for a person nor for an
//! object that cannot be copied. The pauses bound the sum of the outages that a tenant can cause with such objects.

use std::cell::Cell;
use std::time::Duration;

use libcalico::backoff::{Backoff, Jitter};
use tokio::time::{Instant, sleep_until};

/// Time under the lock for which requests of the plugins that began before the lock may still write to v1 (MIG-57).
const DRAINING: Duration = Duration::from_secs(10);
/// Longest time under the lock without a finished object.
const LONGEST_STANDSTILL: Duration = Duration::from_secs(300);
const PAUSES: Backoff =
    Backoff { first: Duration::from_secs(300), longest: Duration::from_secs(3600), jitter: Jitter::None };

/// The progress of this process under the lock.
#[derive(Debug)]
pub(super) struct LockTimer {
    /// Time at which this process locked v1, or found it locked.
    began: Instant,
    last_finished: Cell<Instant>,
}

impl LockTimer {
    pub(super) fn start() -> Self {
        let began = Instant::now();
        LockTimer { began, last_finished: Cell::new(began) }
    }

    /// Records that an object was created, replaced or deleted in v3. An object that was only compared does not count:
    /// each pass compares all objects again.
    pub(super) fn finished(&self) {
        self.last_finished.set(Instant::now());
    }

    /// Waits until no plugin can write to v1 any more, except for those that call it very slowly: they are found by the
    /// second look at v1.
    pub(super) async fn drained(&self) {
        sleep_until(self.began + DRAINING).await;
    }

    /// Waits until no object was finished for too long.
    pub(super) async fn expired(&self) {
        loop {
            let end = self.end();
            sleep_until(end).await;
            if end == self.end() {
                return;
            }
        }
    }

    pub(super) fn has_expired(&self) -> bool {
        Instant::now() >= self.end()
    }

    fn end(&self) -> Instant {
        self.last_finished.get().max(self.began + DRAINING) + LONGEST_STANDSTILL
    }
}

/// The failed migrations of this process, and the time before which no other one may begin.
#[derive(Debug, Default)]
pub(super) struct Attempts {
    failures: u32,
    paused_until: Option<Instant>,
}

impl Attempts {
    /// Records a failure. Returns the pause before the next attempt.
    pub(super) fn fail(&mut self) -> Duration {
        self.failures = self.failures.saturating_add(1);
        let pause = PAUSES.pause(self.failures, 0.0);
        self.paused_until = Some(Instant::now() + pause);
        pause
    }

    /// Returns the rest of the present pause; `None` if the next attempt may begin.
    pub(super) fn remaining_pause(&self) -> Option<Duration> {
        let remaining = self.paused_until?.saturating_duration_since(Instant::now());
        (!remaining.is_zero()).then_some(remaining)
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::{advance, timeout};

    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    #[tokio::test(start_paused = true)]
    async fn pauses_between_failures_double_up_to_an_hour() {
        let mut attempts = Attempts::default();
        assert_eq!(attempts.remaining_pause(), None);
        let pauses: Vec<_> = (0..6).map(|_| attempts.fail() / 60).collect();
        assert_eq!(pauses, [5, 10, 20, 40, 60, 60].map(Duration::from_secs));
        advance(59 * MINUTE).await;
        assert_eq!(attempts.remaining_pause(), Some(MINUTE));
        advance(MINUTE).await;
        assert_eq!(attempts.remaining_pause(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn timer_expires_five_minutes_after_the_last_finished_object() {
        let timer = LockTimer::start();
        timer.drained().await;
        advance(4 * MINUTE).await;
        timer.finished();
        advance(4 * MINUTE).await;
        assert!(!timer.has_expired() && timeout(MINUTE / 2, timer.expired()).await.is_err());
        timeout(MINUTE, timer.expired()).await.unwrap();
        assert!(timer.has_expired());
    }
}

//! [`LockTimer`]: the limit of the time for which a migration holds the lock. [`Attempts`]: the
//! pauses after migrations that failed under the lock. [`Withdrawals`]: the time for which the end
//! of a migration fails.
//!
//! No pod starts or ends while v1 is locked. So a migration never waits under the lock, neither for
//! a person nor for an object that cannot be copied. The pauses bound the sum of the outages that a
//! tenant can cause with such objects.

use std::cell::Cell;
use std::time::Duration;

use libcalico::backoff::{Backoff, Jitter};
use time::OffsetDateTime;
use tokio::time::{Instant, sleep_until};

/// Time under the lock for which requests of the plugins that began before the lock may still write
/// to v1 (MIG-57).
const DRAINING: Duration = Duration::from_secs(10);
/// Longest time under the lock without a finished object.
const LONGEST_STANDSTILL: Duration = Duration::from_secs(300);
/// Longest time under the lock, after which a process that finds v1 locked unlocks it.
const LONGEST_LOCK: Duration = Duration::from_secs(1800);
/// Time after which a request cannot take effect any more. The API server ends each request after a
/// minute.
const LONGEST_REQUEST: Duration = Duration::from_secs(120);
const PAUSES: Backoff = Backoff {
    first: Duration::from_secs(300),
    longest: Duration::from_secs(3600),
    jitter: Jitter::None,
};

/// The progress of this process under the lock.
#[derive(Debug)]
pub(super) struct LockTimer {
    /// Time at which this process locked v1, or found it locked.
    began: Instant,
    last_finished: Cell<Instant>,
    /// Number of passes so far.
    passes: Cell<usize>,
    /// Number of calls of [`LockTimer::treated`] in the present pass.
    treated: Cell<usize>,
    /// Greatest number of these calls in a pass.
    furthest: Cell<usize>,
}

impl LockTimer {
    pub(super) fn start() -> Self {
        let began = Instant::now();
        let [passes, treated, furthest] = [0; 3].map(Cell::new);
        LockTimer {
            began,
            last_finished: Cell::new(began),
            passes,
            treated,
            furthest,
        }
    }

    /// Begins to count the objects of a pass.
    pub(super) fn begin_pass(&self) {
        self.passes.set(self.passes.get() + 1);
        self.treated.set(0);
    }

    /// Records that the pass has copied or compared an object, or has looked for its owners. That
    /// is progress if no pass has come so far before: each pass treats all objects again, and may
    /// fail at the same object each time.
    pub(super) fn treated(&self) {
        self.treated.set(self.treated.get() + 1);
        if self.treated.get() > self.furthest.get() {
            self.furthest.set(self.treated.get());
            self.last_finished.set(Instant::now());
        }
    }

    /// Records that an object was created, replaced or deleted in v3. That is progress in the first
    /// pass only: a client of v3 can cause the same write in each pass.
    pub(super) fn finished(&self) {
        if self.passes.get() <= 1 {
            self.last_finished.set(Instant::now());
        }
    }

    /// Waits until no plugin can write to v1 any more, except for those that call it very slowly:
    /// they are found by the second look at v1.
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

/// Returns true if v1 has been locked for so long that the processes before this one must have
/// ended again and again, for example because their memory did not suffice. None of them lived long
/// enough to unlock v1.
pub(super) fn is_overdue(locked_at: Option<OffsetDateTime>) -> bool {
    locked_at.is_some_and(|time| OffsetDateTime::now_utc() - time > LONGEST_LOCK)
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

/// The withdrawals of v3 that have failed, since this process copied objects last.
#[derive(Debug, Default)]
pub(super) struct Withdrawals {
    first_failed: Option<Instant>,
}

impl Withdrawals {
    /// Records a failure. Returns true if no request from before the first failure could take
    /// effect any more at `read_at`, a time before v3 was read for the failed write.
    pub(super) fn fail(&mut self, read_at: Instant) -> bool {
        let first_failed = *self.first_failed.get_or_insert_with(Instant::now);
        read_at.saturating_duration_since(first_failed) >= LONGEST_REQUEST
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
    async fn failure_of_a_withdrawal_suffices_when_earlier_requests_are_over() {
        let mut withdrawals = Withdrawals::default();
        let mut sufficient = Vec::new();
        for _ in 0..4 {
            sufficient.push(withdrawals.fail(Instant::now()));
            advance(MINUTE).await;
        }
        assert_eq!(sufficient, [false, false, true, true]);
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

    /// Shows SEC-36.
    #[tokio::test(start_paused = true)]
    async fn writes_count_as_progress_in_the_first_pass_only() {
        let timer = LockTimer::start();
        timer.begin_pass();
        for _ in 0..5 {
            advance(4 * MINUTE).await;
            timer.finished();
            assert!(!timer.has_expired());
        }
        timer.begin_pass();
        advance(4 * MINUTE).await;
        timer.finished();
        advance(2 * MINUTE).await;
        assert!(timer.has_expired());
    }

    #[tokio::test(start_paused = true)]
    async fn comparisons_count_as_progress_once() {
        let timer = LockTimer::start();
        for (passes, objects, has_expired) in [(1, 9, false), (2, 3, true), (3, 10, false)] {
            advance(4 * MINUTE).await;
            for _ in 0..passes {
                timer.begin_pass();
                (0..objects).for_each(|_| timer.treated());
            }
            advance(4 * MINUTE).await;
            assert_eq!(timer.has_expired(), has_expired, "{objects}");
        }
    }
}

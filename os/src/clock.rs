//! [`Clock`]: time as an argument, so that tests control it.

use std::fmt::Debug;
use std::future::Future;
use std::time::Duration;

use time::OffsetDateTime;
use tokio::time::Instant;

/// The time of one operation.
pub trait Clock: Debug + Send + Sync {
    /// Returns the present date and time.
    fn now(&self) -> OffsetDateTime;

    /// Returns the time since the operation began, regardless of adjustments of the system's time.
    fn elapsed(&self) -> Duration;

    /// Waits for `duration`.
    fn sleep(&self, duration: Duration) -> impl Future<Output = ()> + Send;

    /// Returns the same time for an operation that begins now, so that [`Clock::elapsed`] of the
    /// result starts at zero.
    fn restarted(&self) -> Self
    where
        Self: Sized;
}

/// The system's clock. Sleeping needs a tokio runtime with time enabled.
#[derive(Debug, Clone, Copy)]
pub struct SystemClock {
    started: Instant,
}

impl SystemClock {
    /// Starts the clock for [`Clock::elapsed`].
    pub fn start() -> Self {
        SystemClock {
            started: Instant::now(),
        }
    }
}

impl Clock for SystemClock {
    fn now(&self) -> OffsetDateTime {
        OffsetDateTime::now_utc()
    }

    fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    fn sleep(&self, duration: Duration) -> impl Future<Output = ()> + Send {
        tokio::time::sleep(duration)
    }

    fn restarted(&self) -> Self {
        SystemClock::start()
    }
}

/// Runs `work` until [`Clock::elapsed`] is `deadline`. Returns `None` if the work does not end
/// before. Work that needs no wait ends even after the deadline.
pub async fn run_until<T>(
    clock: &impl Clock,
    deadline: Duration,
    work: impl Future<Output = T>,
) -> Option<T> {
    tokio::select! {
        biased;
        outcome = work => Some(outcome),
        () = clock.sleep(deadline.saturating_sub(clock.elapsed())) => None,
    }
}

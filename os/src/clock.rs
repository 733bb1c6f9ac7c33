//! [`Clock`]: time as an argument, so that tests control it.

use std::future::Future;
use std::time::{Duration, Instant};

use time::OffsetDateTime;

/// The time of one operation.
pub trait Clock: Send + Sync {
    /// Returns the present date and time.
    fn now(&self) -> OffsetDateTime;

    /// Returns the time since the operation began, regardless of adjustments of the system's time.
    fn elapsed(&self) -> Duration;

    /// Waits for `duration`.
    fn sleep(&self, duration: Duration) -> impl Future<Output = ()> + Send;
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
}

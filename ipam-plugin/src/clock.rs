//! [`Clock`]: time as an argument, so that tests decide what it is.

use std::future::Future;
use std::time::{Duration, Instant};

use time::OffsetDateTime;

/// Time for one operation.
pub trait Clock: Send + Sync {
    /// The time of day, as it goes into blocks (IPAM-67).
    fn now(&self) -> OffsetDateTime;

    /// Time since the operation began; unlike [`Clock::now`] it never jumps.
    fn elapsed(&self) -> Duration;

    /// Waits.
    fn sleep(&self, duration: Duration) -> impl Future<Output = ()> + Send;
}

/// The machine's clock. Needs a tokio runtime with time enabled to sleep in.
#[derive(Debug, Clone, Copy)]
pub struct SystemClock {
    started: Instant,
}

impl SystemClock {
    /// Begins to count [`Clock::elapsed`].
    pub fn start() -> Self {
        SystemClock { started: Instant::now() }
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

//! A clock that moves only through [`TestClock::advance`] and [`Clock::sleep`].

use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use time::OffsetDateTime;
use time::macros::datetime;

use os::clock::Clock;

/// A clock that starts at 2026-08-22 01:02:03.1234 UTC.
#[derive(Debug, Default)]
pub struct TestClock {
    state: Arc<Mutex<State>>,
    started: Duration,
}

#[derive(Debug, Default, Clone, Copy)]
struct State {
    elapsed: Duration,
    last_sleep: Duration,
}

impl TestClock {
    /// Moves the clock forward.
    pub fn advance(&self, duration: Duration) {
        self.state.lock().unwrap().elapsed += duration;
    }

    /// Returns the duration of the last call of [`Clock::sleep`].
    pub fn last_sleep(&self) -> Duration {
        self.state.lock().unwrap().last_sleep
    }
}

impl Clock for TestClock {
    fn now(&self) -> OffsetDateTime {
        datetime!(2026-08-22 01:02:03.1234 UTC) + self.state.lock().unwrap().elapsed
    }

    fn elapsed(&self) -> Duration {
        self.state.lock().unwrap().elapsed - self.started
    }

    fn sleep(&self, duration: Duration) -> impl Future<Output = ()> + Send {
        let mut state = self.state.lock().unwrap();
        state.elapsed += duration;
        state.last_sleep = duration;
        std::future::ready(())
    }

    fn restarted(&self) -> Self {
        let state = Arc::clone(&self.state);
        let started = state.lock().unwrap().elapsed;
        TestClock { state, started }
    }
}

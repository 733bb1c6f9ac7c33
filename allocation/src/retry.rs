//! The time that an operation may take, and the pauses between its attempts.

use std::time::Duration;

use libcalico::backoff::{Backoff, Jitter};
use libcalico::store::StoreError;

use crate::error::{IpamError, Result};
use os::clock::Clock;

/// Time for the attempts of an allocation or release. It equals the longest wait of an ADD for a
/// busy API server. Upstream allows 90 s.
pub const OPERATION_TIME: Duration = Duration::from_secs(110);
/// Time for the attempts of an undo, even after the operation's own time has ended (IPAM-185).
pub const UNDO_TIME: Duration = Duration::from_secs(30);

const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_millis(200);
const PAUSES: Backoff = Backoff {
    first: FIRST_PAUSE,
    longest: LONGEST_PAUSE,
    jitter: Jitter::Full,
};

/// The remaining time of an operation, and the number of its pauses.
#[derive(Debug)]
pub struct Retry<'a, C> {
    clock: &'a C,
    deadline: Duration,
    pauses: u32,
    had_foreign_answer: bool,
}

impl<'a, C: Clock> Retry<'a, C> {
    /// Creates a retry whose time ends `limit` from now.
    pub fn new(clock: &'a C, limit: Duration) -> Self {
        Retry {
            clock,
            deadline: clock.elapsed() + limit,
            pauses: 0,
            had_foreign_answer: false,
        }
    }

    /// Pauses before another attempt, on average longer each time up to a limit. Returns `false`
    /// without a pause if the time would end during the pause.
    pub async fn pause(&mut self) -> bool {
        self.pauses += 1;
        let pause = PAUSES.pause(self.pauses, fastrand::f64());
        if self.clock.elapsed() + pause >= self.deadline {
            return false;
        }
        self.clock.sleep(pause).await;
        true
    }

    /// Pauses before another attempt after a lost race.
    ///
    /// # Errors
    /// Returns [`IpamError::Contention`] if the time would end during the pause.
    pub async fn pause_after_race(&mut self) -> Result<()> {
        if self.pause().await {
            Ok(())
        } else {
            Err(IpamError::Contention)
        }
    }

    /// Pauses before another attempt after a write that lost a race or has an unknown outcome,
    /// which the reads of the other attempt show.
    ///
    /// # Errors
    /// Returns [`IpamError::Contention`] if the time would end during the pause, and `error` if it
    /// is the operation's second answer of another program in place of the datastore: further ones
    /// would follow.
    pub async fn pause_after_write(&mut self, error: &StoreError) -> Result<()> {
        if !self.admits(error) {
            return Err(error.clone().into());
        }
        self.pause_after_race().await
    }

    /// Returns false if `error` is the operation's second answer of another program in place of the
    /// datastore.
    fn admits(&mut self, error: &StoreError) -> bool {
        !error.is_foreign_answer() || !std::mem::replace(&mut self.had_foreign_answer, true)
    }

    /// Returns true if another attempt of an undo may succeed after `error`: a lost race, a failure
    /// of the datastore, or one answer of another program.
    pub fn may_succeed_after(&mut self, error: &StoreError) -> bool {
        (error.is_race() || error.is_unavailable() || error.is_foreign_answer())
            && self.admits(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TestClock;

    #[tokio::test]
    async fn pauses_grow_to_their_limit_until_the_deadline() {
        let clock = TestClock::default();
        let mut retry = Retry::new(&clock, OPERATION_TIME);
        let mut attempts = 0;
        while retry.pause().await {
            attempts += 1;
            assert!(clock.last_sleep() <= LONGEST_PAUSE);
        }
        assert!(clock.elapsed() <= OPERATION_TIME);
        assert!(
            clock.elapsed() > OPERATION_TIME - LONGEST_PAUSE * 2,
            "gave up early, after {:?}",
            clock.elapsed()
        );
        assert!(attempts > 550, "{attempts} attempts in {OPERATION_TIME:?}");
    }

    #[tokio::test]
    async fn first_retry_pause_is_short() {
        let clock = TestClock::default();
        assert!(Retry::new(&clock, OPERATION_TIME).pause().await);
        assert!(clock.elapsed() <= FIRST_PAUSE);
    }
}

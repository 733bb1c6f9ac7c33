//! The time that an operation may take, and the pauses between its attempts. Upstream retries without a pause.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use crate::clock::Clock;

/// Maximum duration of an allocation or release: not less than an ADD waits for a busy API server. Upstream allows
/// 90 s.
pub const OPERATION: Duration = Duration::from_secs(110);
/// Maximum duration of an undo, even after the operation's own time has ended (IPAM-185).
pub const UNDO: Duration = Duration::from_secs(30);

const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_millis(200);

/// The remaining time of an operation, and the number of its pauses.
#[derive(Debug)]
pub struct Retry<'a, C> {
    clock: &'a C,
    ends: Duration,
    pauses: u32,
    random: RandomState,
}

impl<'a, C: Clock> Retry<'a, C> {
    /// Creates a retry of `length` from now on.
    pub fn new(clock: &'a C, length: Duration) -> Self {
        Retry { clock, ends: clock.elapsed() + length, pauses: 0, random: RandomState::new() }
    }

    /// Pauses before another attempt, for a random part of 5 ms that doubles up to 200 ms. Returns `false` if the time
    /// has ended.
    pub async fn pause(&mut self) -> bool {
        let pause = self.next_pause();
        if self.clock.elapsed() + pause >= self.ends {
            return false;
        }
        self.clock.sleep(pause).await;
        true
    }

    fn next_pause(&mut self) -> Duration {
        let bound = FIRST_PAUSE.saturating_mul(1 << self.pauses.min(10)).min(LONGEST_PAUSE);
        let random = self.random.hash_one(self.pauses);
        self.pauses += 1;
        // The top 32 bits of the random number, as a fraction of one.
        bound.mul_f64((random >> 32) as f64 / f64::from(u32::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TestClock;

    #[tokio::test]
    async fn pauses_grow_to_their_limit_until_the_deadline() {
        let clock = TestClock::default();
        let mut retry = Retry::new(&clock, OPERATION);
        let mut attempts = 0;
        while retry.pause().await {
            attempts += 1;
            assert!(clock.last_sleep() <= LONGEST_PAUSE);
        }
        assert!(clock.elapsed() <= OPERATION);
        assert!(clock.elapsed() > OPERATION - LONGEST_PAUSE * 2, "gave up early, after {:?}", clock.elapsed());
        assert!(attempts > 550, "{attempts} attempts in {OPERATION:?}");
    }

    #[tokio::test]
    async fn first_retry_pause_is_short() {
        let clock = TestClock::default();
        assert!(Retry::new(&clock, OPERATION).pause().await);
        assert!(clock.elapsed() <= FIRST_PAUSE);
    }
}

//! [`Backoff`]: the pauses between retries.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::time::Duration;

const FIRST: Duration = Duration::from_millis(100);
/// Maximum pause, and thus the maximum delay of events after an outage.
const LONGEST: Duration = Duration::from_secs(10);

/// Pauses that double with each failure.
#[derive(Debug, Default)]
pub(super) struct Backoff {
    failures: u32,
}

impl Backoff {
    /// Returns the pause after one more failure. Half of it is random, so that clients that were disconnected together
    /// do not reconnect at the same time.
    pub(super) fn next(&mut self) -> Duration {
        let pause = FIRST.saturating_mul(1 << self.failures.min(16)).min(LONGEST);
        self.failures = self.failures.saturating_add(1);
        let random = RandomState::new().hash_one(0) % 1000;
        pause / 2 + pause / 2 * random as u32 / 1000
    }

    /// Starts again with the shortest pause after a success.
    pub(super) fn reset(&mut self) {
        self.failures = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_a_limit() {
        let mut backoff = Backoff::default();
        for expected in [100, 200, 400, 800, 1600, 3200, 6400, 10_000, 10_000] {
            let wait = backoff.next().as_millis();
            assert!((expected / 2..=expected).contains(&wait), "{wait} of {expected}");
        }
        (0..100).for_each(|_| _ = backoff.next());
        assert!(backoff.next() <= LONGEST);
        backoff.reset();
        assert!(backoff.next() <= FIRST);
    }
}

//! [`Backoff`]: the pauses between retries. They grow with each failure, and each has a random part, so that clients
//! that failed together do not retry at the same time.

use std::time::Duration;

use libcalico::backoff::{self, Jitter};

/// Pauses that double with each failure, up to a limit, and the number of failures since the last success.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Backoff {
    pauses: backoff::Backoff,
    failures: u32,
}

impl Backoff {
    /// Creates pauses of at most `first` after the first failure, which double up to at most `longest`. Only a server
    /// that asks for a longer pause gets one.
    pub(crate) const fn new(first: Duration, longest: Duration) -> Self {
        Backoff { pauses: backoff::Backoff { first, longest, jitter: Jitter::None }, failures: 0 }
    }

    /// Counts one more failure, and returns the pause before the next retry.
    pub(crate) fn next(&mut self) -> Duration {
        self.next_with_retry_after(None).within(Duration::MAX)
    }

    /// Counts one more failure, and returns the pause before the next retry. `retry_after` is the pause that the server
    /// asks for, or `None` if the server asks for none.
    pub(crate) fn next_with_retry_after(&mut self, retry_after: Option<Duration>) -> RetryPause {
        self.failures = self.failures.saturating_add(1);
        RetryPause::new(self.pauses.pause(self.failures, 0.0), retry_after)
    }

    /// Makes the next pause the first one again. Call this after a success.
    pub(crate) fn reset(&mut self) {
        self.failures = 0;
    }
}

/// The pause before a retry.
#[derive(Debug)]
pub(crate) struct RetryPause {
    /// The shortest pause.
    pub(crate) minimum: Duration,
    /// Maximum random addition to `minimum`.
    spread: Duration,
}

impl RetryPause {
    /// Creates a pause of a minimum and a random addition. The minimum is half of `pause`, or the server's `retry_after`
    /// if that is longer. The addition is at most half of `pause`, or an eighth of `retry_after` if that is longer.
    pub(crate) fn new(pause: Duration, retry_after: Option<Duration>) -> RetryPause {
        let retry_after = retry_after.unwrap_or_default();
        RetryPause { minimum: retry_after.max(pause / 2), spread: (retry_after / 8).max(pause / 2) }
    }

    /// Returns a pause of `minimum` and a random part. The random part takes at most half of the time by which
    /// `remaining` exceeds `minimum`, so that time is left for the request.
    pub(crate) fn within(&self, remaining: Duration) -> Duration {
        let spread = self.spread.min(remaining.saturating_sub(self.minimum) / 2);
        self.minimum + spread.mul_f64(fastrand::f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST_PAUSE: Duration = Duration::from_millis(100);
    const LONGEST_PAUSE: Duration = Duration::from_secs(10);

    #[test]
    fn watch_pauses_double_up_to_a_limit() {
        let mut backoff = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
        for expected in [100, 200, 400, 800, 1600, 3200, 6400, 10_000, 10_000] {
            let wait = backoff.next().as_millis();
            assert!((expected / 2..=expected).contains(&wait), "{wait} of {expected}");
        }
        (0..100).for_each(|_| _ = backoff.next());
        assert!(backoff.next() <= LONGEST_PAUSE);
        backoff.reset();
        assert!(backoff.next() <= FIRST_PAUSE);
    }
}

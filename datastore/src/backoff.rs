//! [`Backoff`]: the pauses between retries. Their random parts keep clients that failed together
//! from retrying together.

use std::time::Duration;

use libcalico::backoff::{self, Jitter};

/// Pauses that double with each failure, up to a limit.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Backoff {
    pauses: backoff::Backoff,
    failures: u32,
}

impl Backoff {
    /// Creates pauses of at most `first` after the first failure, which double up to at most
    /// `longest`.
    pub(crate) const fn new(first: Duration, longest: Duration) -> Self {
        Backoff {
            pauses: backoff::Backoff {
                first,
                longest,
                jitter: Jitter::None,
            },
            failures: 0,
        }
    }

    /// Counts one more failure, and returns the pause before the next retry.
    pub(crate) fn next(&mut self) -> Duration {
        self.next_with_retry_after(None).within(Duration::MAX)
    }

    /// Counts one more failure, and returns the pause before the next retry, which is longer if the
    /// server asks for it with `retry_after`.
    pub(crate) fn next_with_retry_after(&mut self, retry_after: Option<Duration>) -> RetryPause {
        self.failures = self.failures.saturating_add(1);
        RetryPause::new(self.pauses.pause(self.failures, 0.0), retry_after)
    }

    /// Makes the next pause the first one again.
    pub(crate) fn reset(&mut self) {
        self.failures = 0;
    }
}

#[derive(Debug)]
pub(crate) struct RetryPause {
    pub(crate) minimum: Duration,
    spread: Duration,
}

impl RetryPause {
    /// Creates a pause with a random part. Its minimum is the longer one of half of `pause` and the
    /// server's `retry_after`.
    pub(crate) fn new(pause: Duration, retry_after: Option<Duration>) -> RetryPause {
        let retry_after = retry_after.unwrap_or_default();
        RetryPause {
            minimum: retry_after.max(pause / 2),
            spread: (retry_after / 8).max(pause / 2),
        }
    }

    /// Returns a pause of `minimum` and a random part, which takes at most half of the time by
    /// which `remaining` exceeds `minimum`.
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
            assert!(
                (expected / 2..=expected).contains(&wait),
                "{wait} of {expected}"
            );
        }
        (0..100).for_each(|_| _ = backoff.next());
        assert!(backoff.next() <= LONGEST_PAUSE);
        backoff.reset();
        assert!(backoff.next() <= FIRST_PAUSE);
    }
}

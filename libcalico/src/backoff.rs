//! [`Backoff`]: pauses between retries that double with each failure, up to a longest pause.
//!
//! The caller counts the failures and draws the random numbers, so that the same count and number
//! always give the same pause.

use std::time::Duration;

/// The pauses of a caller that retries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    /// The pause after the first failure, without jitter.
    pub first: Duration,
    /// The longest pause.
    pub longest: Duration,
    /// The random part of each pause.
    pub jitter: Jitter,
}

/// The random part of a pause. It prevents callers that failed together from retrying together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Jitter {
    /// No part of the pause is random.
    None,
    /// Half of the pause is random.
    Half,
    /// The whole pause is random.
    Full,
}

impl Backoff {
    /// Returns the pause after a number of consecutive failures. `random` is between 0 and 1;
    /// without jitter it is not used.
    pub fn pause(&self, failures: u32, random: f64) -> Duration {
        let doublings = failures.saturating_sub(1).min(16);
        let pause = self.first.saturating_mul(1 << doublings).min(self.longest);
        match self.jitter {
            Jitter::None => pause,
            Jitter::Half => pause.mul_f64(0.5 + random / 2.0),
            Jitter::Full => pause.mul_f64(random),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: fn(u64) -> Duration = Duration::from_millis;

    fn backoff(jitter: Jitter) -> Backoff {
        Backoff {
            first: MS(100),
            longest: MS(10_000),
            jitter,
        }
    }

    #[test]
    fn pauses_double_up_to_the_longest() {
        let pauses = [0, 1, 2, 3, 7, 8, 17, u32::MAX]
            .map(|failures| backoff(Jitter::None).pause(failures, 0.7));
        assert_eq!(
            pauses,
            [100, 100, 200, 400, 6400, 10_000, 10_000, 10_000].map(MS)
        );
    }

    #[test]
    fn jitter_shortens_the_pause_by_its_part() {
        for (jitter, random, expected) in [
            (Jitter::Half, 0.0, 200),
            (Jitter::Half, 0.5, 300),
            (Jitter::Half, 1.0, 400),
            (Jitter::Full, 0.0, 0),
            (Jitter::Full, 0.5, 200),
            (Jitter::Full, 1.0, 400),
        ] {
            assert_eq!(
                backoff(jitter).pause(3, random),
                MS(expected),
                "{jitter:?} {random}"
            );
        }
    }
}

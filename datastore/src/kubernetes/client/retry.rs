//! The pauses between the attempts of a request.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::time::Duration;

use hyper::header::{HeaderMap, RETRY_AFTER};

/// The first pause before a retry; each further pause is twice as long.
pub(super) const FIRST_PAUSE: Duration = Duration::from_millis(50);
pub(super) const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// Upper limit of the `Retry-After` header. It exceeds every deadline, so a request that reaches it fails.
const LONGEST_ADVICE: Duration = Duration::from_secs(3600);
/// Returns the delay that a response's `Retry-After` header asks for.
pub(crate) fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let advice = headers.get(RETRY_AFTER)?;
    // A proxy may send a date. A value that is not a number counts as the API server's minimum of one second.
    let seconds = advice.to_str().ok().and_then(|text| text.parse().ok()).unwrap_or(1);
    Some(Duration::from_secs(seconds).min(LONGEST_ADVICE))
}

/// The pause before a retry. It is random, so that clients that were rejected together do not retry at the same time.
#[derive(Debug)]
pub(super) struct RetryPause {
    /// The shortest pause.
    pub(super) least: Duration,
    /// Maximum random addition to `least`.
    spread: Duration,
}

impl RetryPause {
    /// Creates a pause between half of `pause` and all of it. It is never shorter than the time that the server asks
    /// for, and not much longer if that time is the longer one.
    pub(super) fn new(pause: Duration, advice: Option<Duration>) -> RetryPause {
        let advice = advice.unwrap_or_default();
        RetryPause { least: advice.max(pause / 2), spread: (advice / 8).max(pause / 2) }
    }

    /// Returns a random pause that leaves at least half of the remaining time after `least` for the request.
    pub(super) fn within(&self, remaining: Duration) -> Duration {
        let random = RandomState::new().hash_one(0) % 1000;
        self.least + self.spread.min(remaining.saturating_sub(self.least) / 2) * random as u32 / 1000
    }
}

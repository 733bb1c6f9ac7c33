//! When the token is asked for again (INST-44): a function of what is known, without clocks and without chance of its own.
//!
//! Time is that of the boot clock, which goes on while the machine sleeps and does not jump. A token's end is counted on it
//! from the moment the token came, by the lifetime that the API server gave it: a node whose calendar is wrong renews in
//! time all the same.

use std::time::Duration;

/// The base of the pause after an attempt that failed, and before a token that is about to end.
pub const HASTE: Duration = Duration::from_secs(5);

/// A token whose end is this close is about to end.
const CLOSE: Duration = Duration::from_secs(4 * HASTE.as_secs());

/// The part of the lifetime that must be left for the agent to be ready (INST-51): a quarter.
const READY_PART: u32 = 4;

/// A token that holds for a while.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Held {
    /// When it came, by the boot clock.
    pub since: Duration,
    /// For how long it holds from then on.
    pub lifetime: Duration,
}

/// The last time that a token was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attempt {
    /// When, by the boot clock.
    pub at: Duration,
    /// Whether a token came and was written.
    pub succeeded: bool,
}

impl Held {
    /// How long it still holds.
    pub fn remaining(&self, now: Duration) -> Duration {
        (self.since + self.lifetime).saturating_sub(now)
    }

    /// Whether enough of it is left that a reader need not worry.
    pub fn is_fresh(&self, now: Duration) -> bool {
        self.remaining(now) >= self.lifetime / READY_PART
    }
}

/// How long to wait after `last` until the next attempt. `interval` is what an operator asks for in place of a quarter of
/// what is left; `random`, from 0 to 1, keeps many nodes apart.
///
/// No answer is later than half of what is left of the token, however long the interval.
pub fn pause(held: Option<Held>, last: Attempt, interval: Option<Duration>, random: f64) -> Duration {
    let stretch = |base: Duration| base.mul_f64(1.0 + random.clamp(0.0, 1.0));
    let Some(held) = held.filter(|_| last.succeeded) else { return stretch(HASTE) };
    let remaining = held.remaining(last.at);
    if remaining < CLOSE {
        return stretch(HASTE);
    }
    stretch(interval.unwrap_or(remaining / 4)).min(remaining / 2)
}

/// Whether the two clocks went apart by more than this since they were last looked at: the calendar was set, or the machine
/// was stopped and continued elsewhere. What was known about the token is in doubt then.
pub fn jumped(boot: Duration, calendar: Duration, tolerance: Duration) -> bool {
    boot.abs_diff(calendar) > tolerance
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: Duration = Duration::from_secs(86_400);
    const HOUR: Duration = Duration::from_secs(3600);

    fn secs(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn held(lifetime: Duration) -> Option<Held> {
        Some(Held { since: secs(1000), lifetime })
    }

    const DONE: Attempt = Attempt { at: Duration::from_secs(1000), succeeded: true };
    const FAILED: Attempt = Attempt { at: Duration::from_secs(1000), succeeded: false };

    #[test]
    fn a_day_long_token_is_renewed_after_six_to_twelve_hours() {
        assert_eq!(pause(held(DAY), DONE, None, 0.0), 6 * HOUR);
        assert_eq!(pause(held(DAY), DONE, None, 0.5), 9 * HOUR);
        assert_eq!(pause(held(DAY), DONE, None, 1.0), 12 * HOUR);
    }

    #[test]
    fn what_failed_is_tried_again_after_five_to_ten_seconds() {
        assert_eq!(pause(None, FAILED, None, 0.0), secs(5));
        assert_eq!(pause(held(DAY), FAILED, None, 1.0), secs(10));
        assert_eq!(pause(held(DAY), FAILED, Some(HOUR), 0.0), secs(5));
    }

    #[test]
    fn a_token_that_is_about_to_end_is_renewed_in_haste() {
        assert_eq!(pause(held(secs(19)), DONE, None, 0.0), secs(5));
        assert_eq!(pause(held(secs(20)), DONE, None, 0.0), secs(5));
        assert_eq!(pause(held(secs(24)), DONE, None, 0.0), secs(6));
    }

    #[test]
    fn an_interval_counts_unless_the_token_would_end_before() {
        assert_eq!(pause(held(DAY), DONE, Some(HOUR), 0.0), HOUR);
        assert_eq!(pause(held(DAY), DONE, Some(HOUR), 1.0), 2 * HOUR);
        assert_eq!(pause(held(secs(600)), DONE, Some(DAY), 0.0), secs(300));
    }

    #[test]
    fn chance_outside_its_bounds_does_no_harm() {
        assert_eq!(pause(held(DAY), DONE, None, -3.0), 6 * HOUR);
        assert_eq!(pause(held(DAY), DONE, None, 7.0), 12 * HOUR);
    }

    #[test]
    fn freshness_ends_with_the_last_quarter() {
        let token = Held { since: secs(1000), lifetime: secs(600) };
        assert!(token.is_fresh(secs(1000)) && token.is_fresh(secs(1450)));
        assert!(!token.is_fresh(secs(1451)));
        assert_eq!(token.remaining(secs(1600)), Duration::ZERO);
        assert_eq!(token.remaining(secs(99_999)), Duration::ZERO);
    }

    /// One life of an agent under clocks that are set by the test: every renewal is in time, whatever chance says.
    #[test]
    fn no_token_ends_while_renewals_succeed() {
        for random in [0.0, 0.3, 1.0] {
            let (mut now, mut token) = (secs(50), Held { since: secs(50), lifetime: secs(600) });
            for _ in 0..100 {
                now += pause(Some(token), Attempt { at: now, succeeded: true }, None, random);
                assert!(token.is_fresh(now), "{now:?}");
                token = Held { since: now, lifetime: secs(600) };
            }
        }
    }

    #[test]
    fn only_clocks_that_went_apart_jumped() {
        assert!(!jumped(secs(10), secs(10), secs(5)));
        assert!(!jumped(secs(10), secs(15), secs(5)));
        assert!(jumped(secs(10), secs(3610), secs(5)));
        // Set back: the calendar went by less than nothing, which is told as nothing.
        assert!(jumped(secs(10), Duration::ZERO, secs(5)));
    }
}

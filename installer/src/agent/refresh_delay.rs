//! Computes when the next token is requested (INST-44). The functions are pure: clock readings and random numbers are
//! arguments.
//!
//! All times are those of the boot clock, which counts time asleep and never jumps. A token's expiry is counted from
//! its arrival by the lifetime that the API server granted, so a node with a wrong wall clock still renews in time.

use std::time::{Duration, SystemTime};

use nix::time::{ClockId, clock_gettime};

/// Base of the pause after a failed attempt, and of the pause for a token that is about to expire.
pub const HASTE: Duration = Duration::from_secs(5);

/// Remaining lifetime below which a token is about to expire.
const CLOSE: Duration = Duration::from_secs(4 * HASTE.as_secs());

/// Divisor for the part of the lifetime that must remain for the agent to be ready (INST-51).
const READY_PART: u32 = 4;

/// A moment on both clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moment {
    /// Time since the machine booted, including time asleep. The clock never jumps.
    pub boot: Duration,
    /// Time since 1970 according to the node. People and time servers set this clock.
    pub calendar: Duration,
}

impl Moment {
    /// Reads both clocks.
    pub fn now() -> Self {
        let boot = clock_gettime(ClockId::CLOCK_BOOTTIME).map_or(Duration::ZERO, Duration::from);
        let calendar = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Moment { boot, calendar }
    }
}

/// A token and its validity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeldToken {
    /// The time of its arrival, on the boot clock.
    pub since: Duration,
    /// Its lifetime, counted from its arrival.
    pub lifetime: Duration,
}

/// The last attempt to renew the token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RefreshAttempt {
    /// The time of the attempt, on the boot clock.
    pub at: Duration,
    /// True if a token was received and written.
    pub succeeded: bool,
}

impl HeldToken {
    /// Returns the remaining lifetime.
    pub fn remaining(&self, now: Duration) -> Duration {
        (self.since + self.lifetime).saturating_sub(now)
    }

    /// Returns true if at least a quarter of the lifetime remains.
    pub fn is_fresh(&self, now: Duration) -> bool {
        self.remaining(now) >= self.lifetime / READY_PART
    }
}

/// Returns the pause between `last` and the next attempt. `interval` is the operator's setting; its default is a
/// quarter of the remaining lifetime. `random`, from 0 to 1, spreads the requests of many nodes.
///
/// Unless the token is about to expire, the pause is at most half of the remaining lifetime, whatever the interval.
pub fn pause(held: Option<HeldToken>, last: RefreshAttempt, interval: Option<Duration>, random: f64) -> Duration {
    let stretch = |base: Duration| base.mul_f64(1.0 + random.clamp(0.0, 1.0));
    let Some(held) = held.filter(|_| last.succeeded) else { return stretch(HASTE) };
    let remaining = held.remaining(last.at);
    if remaining < CLOSE {
        return stretch(HASTE);
    }
    stretch(interval.unwrap_or(remaining / 4)).min(remaining / 2)
}

/// Returns true if the two clocks diverged by more than `tolerance` since the last reading: someone set the wall clock,
/// or the machine was suspended and resumed elsewhere. The expiry computed for the token is then unreliable.
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

    fn held(lifetime: Duration) -> Option<HeldToken> {
        Some(HeldToken { since: secs(1000), lifetime })
    }

    const DONE: RefreshAttempt = RefreshAttempt { at: Duration::from_secs(1000), succeeded: true };
    const FAILED: RefreshAttempt = RefreshAttempt { at: Duration::from_secs(1000), succeeded: false };

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
        let token = HeldToken { since: secs(1000), lifetime: secs(600) };
        assert!(token.is_fresh(secs(1000)) && token.is_fresh(secs(1450)));
        assert!(!token.is_fresh(secs(1451)));
        assert_eq!(token.remaining(secs(1600)), Duration::ZERO);
        assert_eq!(token.remaining(secs(99_999)), Duration::ZERO);
    }

    /// Simulates an agent on clocks that the test sets. Every renewal must be in time for any random number.
    #[test]
    fn no_token_ends_while_renewals_succeed() {
        for random in [0.0, 0.3, 1.0] {
            let (mut now, mut token) = (secs(50), HeldToken { since: secs(50), lifetime: secs(600) });
            for _ in 0..100 {
                now += pause(Some(token), RefreshAttempt { at: now, succeeded: true }, None, random);
                assert!(token.is_fresh(now), "{now:?}");
                token = HeldToken { since: now, lifetime: secs(600) };
            }
        }
    }

    #[test]
    fn only_clocks_that_went_apart_jumped() {
        assert!(!jumped(secs(10), secs(10), secs(5)));
        assert!(!jumped(secs(10), secs(15), secs(5)));
        assert!(jumped(secs(10), secs(3610), secs(5)));
        // The wall clock was set back. The caller passes a negative difference as zero.
        assert!(jumped(secs(10), Duration::ZERO, secs(5)));
    }
}

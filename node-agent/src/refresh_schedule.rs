//! [`RefreshSchedule`]: decides the agent's next action: request a token (INST-44), test the
//! current token, or check the installed files.
//!
//! Only [`Moment::now`] reads clocks; the other functions get clock readings and random numbers as
//! arguments. Due times are those of the boot clock, which counts time asleep and never jumps. A
//! token's expiry is counted from its arrival by the lifetime that the API server granted, so a
//! node with a wrong wall clock still renews in time.

use std::fmt;
use std::time::{Duration, SystemTime};

use nix::time::{ClockId, clock_gettime};

/// Longest sleep of the agent. An agent that manages the token compares the clocks after each
/// sleep, because somebody may have set the wall clock.
const LONGEST_SLEEP: Duration = Duration::from_secs(10);

/// Tolerated difference between the times that passed on the boot clock and on the wall clock since
/// the last reading. A gradual correction by a time client stays below it.
const TOLERANCE: Duration = Duration::from_secs(5);

/// Shortest interval between two checks of the installed files.
const REPAIR_INTERVAL: Duration = Duration::from_secs(60);

/// The intervals that an operator can set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RefreshPace {
    /// Shortest pause after a successful token request, unless the token's lifetime requires a
    /// shorter one; `None` to derive the pause from the remaining lifetime (INST-44).
    pub refresh_interval: Option<Duration>,
    /// Interval between two tests of the plugins' token.
    pub check_interval: Duration,
}

/// The reason for requesting a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefreshReason {
    /// The agent started.
    Start,
    /// The planned pause after the last attempt is over.
    Due,
    /// The boot clock and the wall clock diverged.
    ClockJump,
    /// The directory of the pod's own token changed, or is watched again. With a new token, the
    /// signing key may have changed, which invalidates the plugins' token, too (INST-45).
    Rotation,
    /// The API server rejects the plugins' token, or the kubeconfig contains no token.
    Rejected,
}

/// The due times of the agent's actions.
#[derive(Debug, Clone)]
pub struct RefreshSchedule {
    pace: RefreshPace,
    last_reading: Moment,
    has_attempted: bool,
    refresh_at: Duration,
    check_at: Duration,
    repair_at: Duration,
}

impl fmt::Display for RefreshReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            RefreshReason::Start => "the agent started",
            RefreshReason::Due => "a refresh was due",
            RefreshReason::ClockJump => "the node's clock was set",
            RefreshReason::Rotation => "this pod's own token or its directory changed",
            RefreshReason::Rejected => {
                "the API server rejected the previous token, or the kubeconfig had none"
            }
        })
    }
}

impl RefreshSchedule {
    /// Creates a schedule on which a token request and a check of the files are due.
    pub fn new(pace: RefreshPace, now: Moment) -> Self {
        RefreshSchedule {
            pace,
            last_reading: now,
            has_attempted: false,
            refresh_at: now.boot,
            check_at: now.boot + pace.check_interval,
            repair_at: now.boot,
        }
    }

    /// Returns the reason for requesting a token now, or `None` if no request is due.
    pub fn refresh_reason(&mut self, now: Moment) -> Option<RefreshReason> {
        let last = std::mem::replace(&mut self.last_reading, now);
        let (boot, calendar) = (
            now.boot.saturating_sub(last.boot),
            now.calendar.saturating_sub(last.calendar),
        );
        let has_jumped = have_diverged(boot, calendar, TOLERANCE);
        if !self.has_attempted {
            return Some(RefreshReason::Start);
        }
        if has_jumped {
            return Some(RefreshReason::ClockJump);
        }
        (now.boot >= self.refresh_at).then_some(RefreshReason::Due)
    }

    /// Records an attempt and returns the pause until the next one.
    pub fn record_attempt(
        &mut self,
        attempt: RefreshAttempt,
        held: Option<HeldToken>,
        random: f64,
    ) -> Duration {
        let pause = pause_after(held, attempt, self.pace.refresh_interval, random);
        self.has_attempted = true;
        self.refresh_at = attempt.at + pause;
        // A token that just arrived need not be tested. After a failed attempt another program may
        // write one.
        if attempt.succeeded {
            self.check_at = attempt.at + self.pace.check_interval;
        }
        pause
    }

    /// Returns true if the plugins' token is to be tested now, and then schedules the next test.
    pub fn is_check_due(&mut self, now: Moment) -> bool {
        let due = self.has_attempted && now.boot >= self.check_at;
        if due {
            self.check_at = now.boot + self.pace.check_interval;
        }
        due
    }

    /// Schedules the next test after a test without a response: soon, as after a failed token
    /// request.
    pub fn record_unanswered_check(&mut self, now: Moment, random: f64) {
        self.check_at = now.boot + stretch(RETRY_PAUSE, random).min(self.pace.check_interval);
    }

    /// Returns true if the installed files are to be checked now, and then schedules the next
    /// check.
    pub fn is_repair_due(&mut self, now: Moment) -> bool {
        let due = now.boot >= self.repair_at;
        if due {
            self.repair_at = now.boot + REPAIR_INTERVAL;
        }
        due
    }

    /// Returns the time until the next action, at most `LONGEST_SLEEP`; zero if an action is due.
    pub fn time_to_next(&self, now: Moment, manages_token: bool) -> Duration {
        let token_at = self.refresh_at.min(self.check_at);
        let next = if manages_token {
            token_at.min(self.repair_at)
        } else {
            self.repair_at
        };
        next.saturating_sub(now.boot).min(LONGEST_SLEEP)
    }
}

/// Shortest pause after a failed attempt, or with a token that is about to expire. The longest one
/// is twice as long.
pub const RETRY_PAUSE: Duration = Duration::from_secs(5);

/// Remaining lifetime below which a token is about to expire.
const NEAR_EXPIRY: Duration = Duration::from_secs(4 * RETRY_PAUSE.as_secs());

/// Divisor for the part of the lifetime that must remain for the agent to be ready (INST-51).
const READY_DIVISOR: u32 = 4;

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
        let calendar = SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default();
        Moment { boot, calendar }
    }
}

/// The validity of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeldToken {
    /// The time of the token's arrival, on the boot clock.
    pub received_at: Duration,
    /// The token's lifetime, counted from its arrival.
    pub lifetime: Duration,
}

/// An attempt to renew the token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RefreshAttempt {
    /// The time of the attempt, on the boot clock.
    pub at: Duration,
    /// True if a token was received and written.
    pub succeeded: bool,
}

impl HeldToken {
    /// Returns the remaining lifetime at the time `now`; zero after the expiry.
    pub fn remaining(&self, now: Duration) -> Duration {
        (self.received_at + self.lifetime).saturating_sub(now)
    }

    /// Returns true if at least a quarter of the lifetime remains.
    pub fn is_fresh(&self, now: Duration) -> bool {
        self.remaining(now) >= self.lifetime / READY_DIVISOR
    }
}

/// Returns the pause between `last` and the next attempt: a base that `random`, from 0 to 1,
/// extends by up to its length, to spread the requests of many nodes. The base is `interval`, by
/// default a quarter of the remaining lifetime, and the pause is at most half of that lifetime. If
/// `last` failed or the token is about to expire, the pause is [`RETRY_PAUSE`] to twice that
/// instead.
pub fn pause_after(
    held: Option<HeldToken>,
    last: RefreshAttempt,
    interval: Option<Duration>,
    random: f64,
) -> Duration {
    let remaining = held
        .filter(|_| last.succeeded)
        .map(|held| held.remaining(last.at));
    let Some(remaining) = remaining.filter(|time| *time >= NEAR_EXPIRY) else {
        return stretch(RETRY_PAUSE, random);
    };
    stretch(interval.unwrap_or(remaining / 4), random).min(remaining / 2)
}

/// Returns `base` for `random` 0, twice `base` for 1, and a proportional pause in between.
fn stretch(base: Duration, random: f64) -> Duration {
    base.mul_f64(1.0 + random.clamp(0.0, 1.0))
}

/// Returns true if `boot` and `calendar`, the times that passed on the boot clock and the wall
/// clock, differ by more than `tolerance`. The expiry computed for the token may then be wrong.
pub fn have_diverged(boot: Duration, calendar: Duration, tolerance: Duration) -> bool {
    boot.abs_diff(calendar) > tolerance
}

#[cfg(test)]
mod tests;

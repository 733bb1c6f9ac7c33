//! [`RefreshSchedule`]: decides the agent's next action: request a token (INST-44), test the current token, or check
//! the installed files.
//!
//! Only [`Moment::now`] reads clocks; the other functions get clock readings and random numbers as arguments. Due times
//! are those of the boot clock, which counts time asleep and never jumps. A token's expiry is counted from its arrival
//! by the lifetime that the API server granted, so a node with a wrong wall clock still renews in time.

use std::fmt;
use std::time::{Duration, SystemTime};

use nix::time::{ClockId, clock_gettime};

/// Longest sleep of the agent. An agent that manages the token compares the clocks after each sleep, because somebody
/// may have set the wall clock.
const LONGEST_SLEEP: Duration = Duration::from_secs(10);

/// Tolerated difference between the times that passed on the boot clock and on the wall clock since the last reading.
/// A gradual correction by a time client stays below it.
const TOLERANCE: Duration = Duration::from_secs(5);

/// Shortest interval between two checks of the installed files.
const REPAIR_INTERVAL: Duration = Duration::from_secs(60);

/// The intervals that an operator can set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RefreshPace {
    /// Shortest pause after a successful token request, unless the token's lifetime requires a shorter one; `None` to
    /// derive the pause from the remaining lifetime (INST-44).
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
    /// The directory of the pod's own token changed, or is watched again. With a new token, the signing key may have
    /// changed, which invalidates the plugins' token, too (INST-45).
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
            RefreshReason::Rejected => "the API server rejected the previous token, or the kubeconfig had none",
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
        let (boot, calendar) = (now.boot.saturating_sub(last.boot), now.calendar.saturating_sub(last.calendar));
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
    pub fn record_attempt(&mut self, attempt: RefreshAttempt, held: Option<HeldToken>, random: f64) -> Duration {
        let pause = pause_after(held, attempt, self.pace.refresh_interval, random);
        self.has_attempted = true;
        self.refresh_at = attempt.at + pause;
        // A token that just arrived need not be tested. After a failed attempt another program may write one.
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

    /// Schedules the next test after a test without a response: soon, as after a failed token request.
    pub fn record_unanswered_check(&mut self, now: Moment, random: f64) {
        self.check_at = now.boot + stretch(RETRY_PAUSE, random).min(self.pace.check_interval);
    }

    /// Returns true if the installed files are to be checked now, and then schedules the next check.
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
        let next = if manages_token { token_at.min(self.repair_at) } else { self.repair_at };
        next.saturating_sub(now.boot).min(LONGEST_SLEEP)
    }
}

/// Shortest pause after a failed attempt, or with a token that is about to expire. The longest one is twice as long.
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
        let calendar = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
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

/// Returns the pause between `last` and the next attempt: a base that `random`, from 0 to 1, extends by up to its
/// length, to spread the requests of many nodes. The base is `interval`, by default a quarter of the remaining
/// lifetime, and the pause is at most half of that lifetime. If `last` failed or the token is about to expire, the
/// pause is [`RETRY_PAUSE`] to twice that instead.
pub fn pause_after(held: Option<HeldToken>, last: RefreshAttempt, interval: Option<Duration>, random: f64) -> Duration {
    let remaining = held.filter(|_| last.succeeded).map(|held| held.remaining(last.at));
    let Some(remaining) = remaining.filter(|time| *time >= NEAR_EXPIRY) else { return stretch(RETRY_PAUSE, random) };
    stretch(interval.unwrap_or(remaining / 4), random).min(remaining / 2)
}

/// Returns `base` for `random` 0, twice `base` for 1, and a proportional pause in between.
fn stretch(base: Duration, random: f64) -> Duration {
    base.mul_f64(1.0 + random.clamp(0.0, 1.0))
}

/// Returns true if `boot` and `calendar`, the times that passed on the boot clock and the wall clock, differ by more
/// than `tolerance`. The expiry computed for the token may then be wrong.
pub fn have_diverged(boot: Duration, calendar: Duration, tolerance: Duration) -> bool {
    boot.abs_diff(calendar) > tolerance
}

#[cfg(test)]
mod tests {
    use super::*;

    const PACE: RefreshPace = RefreshPace { refresh_interval: None, check_interval: Duration::from_secs(30) };
    const TOKEN: Duration = Duration::from_secs(600);

    fn at(seconds: u64) -> Moment {
        Moment { boot: Duration::from_secs(seconds), calendar: Duration::from_secs(1_700_000_000 + seconds) }
    }

    /// Returns a schedule whose first token arrived at second 100 and is renewed at second 250.
    fn schedule_with_token() -> RefreshSchedule {
        let mut schedule = RefreshSchedule::new(PACE, at(100));
        assert_eq!(schedule.refresh_reason(at(100)), Some(RefreshReason::Start));
        let attempt = RefreshAttempt { at: at(100).boot, succeeded: true };
        let pause = schedule.record_attempt(attempt, Some(HeldToken { received_at: attempt.at, lifetime: TOKEN }), 0.0);
        assert_eq!(pause, Duration::from_secs(150));
        schedule
    }

    #[test]
    fn token_refresh_is_due_only_at_the_scheduled_time() {
        let mut schedule = schedule_with_token();
        assert_eq!(schedule.refresh_reason(at(110)), None);
        assert_eq!(schedule.refresh_reason(at(249)), None);
        assert_eq!(schedule.refresh_reason(at(250)), Some(RefreshReason::Due));
    }

    #[test]
    fn failed_attempt_schedules_a_retry_within_seconds() {
        let mut schedule = schedule_with_token();
        let pause = schedule.record_attempt(RefreshAttempt { at: at(250).boot, succeeded: false }, None, 1.0);
        assert_eq!(pause, Duration::from_secs(10));
        assert_eq!(schedule.refresh_reason(at(259)), None);
        assert_eq!(schedule.refresh_reason(at(260)), Some(RefreshReason::Due));
    }

    #[test]
    fn clock_jump_in_either_direction_triggers_a_single_refresh() {
        for calendar in [1_700_003_000, 1_600_000_000] {
            let mut schedule = schedule_with_token();
            let jumped = Moment { boot: at(110).boot, calendar: Duration::from_secs(calendar) };
            assert_eq!(schedule.refresh_reason(jumped), Some(RefreshReason::ClockJump));
            let later = Moment { boot: at(112).boot, calendar: Duration::from_secs(calendar + 2) };
            assert_eq!(schedule.refresh_reason(later), None);
        }
    }

    #[test]
    fn suspended_time_makes_a_refresh_overdue() {
        let mut schedule = schedule_with_token();
        assert_eq!(schedule.refresh_reason(at(9000)), Some(RefreshReason::Due));
    }

    #[test]
    fn token_is_checked_periodically_between_refreshes() {
        let mut schedule = schedule_with_token();
        assert!(!schedule.is_check_due(at(129)));
        assert!(schedule.is_check_due(at(130)) && !schedule.is_check_due(at(131)));
        assert!(schedule.is_check_due(at(160)));
        schedule.record_attempt(RefreshAttempt { at: at(170).boot, succeeded: true }, None, 0.0);
        assert!(!schedule.is_check_due(at(195)) && schedule.is_check_due(at(200)));
    }

    #[test]
    fn unanswered_check_is_repeated_after_five_to_ten_seconds() {
        let mut schedule = schedule_with_token();
        assert!(schedule.is_check_due(at(130)));
        schedule.record_unanswered_check(at(130), 1.0);
        assert!(!schedule.is_check_due(at(139)) && schedule.is_check_due(at(140)));
        schedule.record_unanswered_check(at(140), 0.0);
        assert!(!schedule.is_check_due(at(144)) && schedule.is_check_due(at(145)));
    }

    #[test]
    fn failed_attempt_does_not_postpone_the_next_check() {
        let mut schedule = schedule_with_token();
        assert!(schedule.is_check_due(at(130)));
        for second in [140, 150, 159] {
            let held = Some(HeldToken { received_at: at(100).boot, lifetime: secs(600) });
            schedule.record_attempt(RefreshAttempt { at: at(second).boot, succeeded: false }, held, 1.0);
        }
        assert!(!schedule.is_check_due(at(159)) && schedule.is_check_due(at(160)));
    }

    #[test]
    fn no_check_before_the_first_token() {
        let mut schedule = RefreshSchedule::new(PACE, at(100));
        assert!(!schedule.is_check_due(at(1000)));
    }

    #[test]
    fn installed_files_are_checked_once_a_minute() {
        let mut schedule = schedule_with_token();
        assert!(schedule.is_repair_due(at(100)) && !schedule.is_repair_due(at(159)) && schedule.is_repair_due(at(160)));
    }

    #[test]
    fn agent_sleeps_until_the_next_task_and_at_most_a_tick() {
        let mut schedule = schedule_with_token();
        assert_eq!(schedule.time_to_next(at(100), true), Duration::ZERO, "to look for what was installed");
        schedule.is_repair_due(at(100));
        assert_eq!(schedule.time_to_next(at(101), true), LONGEST_SLEEP);
        assert_eq!(schedule.time_to_next(at(127), true), Duration::from_secs(3));
        assert_eq!(schedule.time_to_next(at(131), true), Duration::ZERO);
    }

    #[test]
    fn agent_without_a_token_to_manage_sleeps_until_the_next_check_of_the_files() {
        let mut schedule = RefreshSchedule::new(PACE, at(100));
        assert!(schedule.is_repair_due(at(100)));
        for seconds in [100, 131, 150] {
            assert_eq!(schedule.time_to_next(at(seconds), false), LONGEST_SLEEP, "{seconds}");
        }
        assert_eq!(schedule.time_to_next(at(157), false), Duration::from_secs(3));
        assert_eq!(schedule.time_to_next(at(160), false), Duration::ZERO);
    }

    const DAY: Duration = Duration::from_secs(86_400);
    const HOUR: Duration = Duration::from_secs(3600);

    fn secs(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn held(lifetime: Duration) -> Option<HeldToken> {
        Some(HeldToken { received_at: secs(1000), lifetime })
    }

    const DONE: RefreshAttempt = RefreshAttempt { at: Duration::from_secs(1000), succeeded: true };
    const FAILED: RefreshAttempt = RefreshAttempt { at: Duration::from_secs(1000), succeeded: false };

    #[test]
    fn day_long_token_is_refreshed_after_six_to_twelve_hours() {
        assert_eq!(pause_after(held(DAY), DONE, None, 0.0), 6 * HOUR);
        assert_eq!(pause_after(held(DAY), DONE, None, 0.5), 9 * HOUR);
        assert_eq!(pause_after(held(DAY), DONE, None, 1.0), 12 * HOUR);
    }

    #[test]
    fn failed_refresh_is_retried_after_five_to_ten_seconds() {
        assert_eq!(pause_after(None, FAILED, None, 0.0), secs(5));
        assert_eq!(pause_after(held(DAY), FAILED, None, 1.0), secs(10));
        assert_eq!(pause_after(held(DAY), FAILED, Some(HOUR), 0.0), secs(5));
    }

    #[test]
    fn expiring_token_is_refreshed_within_seconds() {
        assert_eq!(pause_after(held(secs(19)), DONE, None, 0.0), secs(5));
        assert_eq!(pause_after(held(secs(20)), DONE, None, 0.0), secs(5));
        assert_eq!(pause_after(held(secs(24)), DONE, None, 0.0), secs(6));
    }

    #[test]
    fn refresh_interval_is_shortened_to_the_token_lifetime() {
        assert_eq!(pause_after(held(DAY), DONE, Some(HOUR), 0.0), HOUR);
        assert_eq!(pause_after(held(DAY), DONE, Some(HOUR), 1.0), 2 * HOUR);
        assert_eq!(pause_after(held(secs(600)), DONE, Some(DAY), 0.0), secs(300));
    }

    #[test]
    fn out_of_range_jitter_is_clamped() {
        assert_eq!(pause_after(held(DAY), DONE, None, -3.0), 6 * HOUR);
        assert_eq!(pause_after(held(DAY), DONE, None, 7.0), 12 * HOUR);
    }

    #[test]
    fn token_is_fresh_until_its_last_quarter() {
        let token = HeldToken { received_at: secs(1000), lifetime: secs(600) };
        assert!(token.is_fresh(secs(1000)) && token.is_fresh(secs(1450)));
        assert!(!token.is_fresh(secs(1451)));
        assert_eq!(token.remaining(secs(1600)), Duration::ZERO);
        assert_eq!(token.remaining(secs(99_999)), Duration::ZERO);
    }

    /// At each renewal, at least a quarter of the old token's lifetime remains.
    #[test]
    fn each_successful_refresh_is_before_the_last_quarter_of_the_token() {
        for random in [0.0, 0.3, 1.0] {
            let (mut now, mut token) = (secs(50), HeldToken { received_at: secs(50), lifetime: secs(600) });
            for _ in 0..100 {
                now += pause_after(Some(token), RefreshAttempt { at: now, succeeded: true }, None, random);
                assert!(token.is_fresh(now), "{now:?}");
                token = HeldToken { received_at: now, lifetime: secs(600) };
            }
        }
    }

    #[test]
    fn clock_jump_is_a_difference_between_the_clocks() {
        assert!(!have_diverged(secs(10), secs(10), secs(5)));
        assert!(!have_diverged(secs(10), secs(15), secs(5)));
        assert!(have_diverged(secs(10), secs(3610), secs(5)));
        // The wall clock was set back. `refresh_reason` passes a negative difference as zero.
        assert!(have_diverged(secs(10), Duration::ZERO, secs(5)));
    }
}

//! [`RefreshSchedule`]: decides the agent's next action: request a token, test the current token, or check the
//! installed files.
//!
//! The functions are pure: each takes the current moment as an argument.

use std::fmt;
use std::time::Duration;

use super::refresh_delay::Moment;
use super::refresh_delay::{self, HeldToken, RefreshAttempt};

/// Longest sleep of the agent. No event reports that the wall clock was set, so the agent compares the clocks at least
/// this often.
const TICK: Duration = Duration::from_secs(10);

/// Tolerated divergence of the clocks between two readings. Time servers adjust a clock more slowly than this.
const TOLERANCE: Duration = Duration::from_secs(5);

/// Shortest interval between two checks of the installed files.
const KEEP: Duration = Duration::from_secs(60);

/// The intervals that an operator can set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RefreshPace {
    /// Interval between two tokens; `None` to derive it from the token's lifetime (INST-44).
    pub interval: Option<Duration>,
    /// Interval between two tests of the plugins' token.
    pub trial: Duration,
}

/// The reason for requesting a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefreshReason {
    /// The agent started.
    Start,
    /// The planned pause is over.
    Due,
    /// The clocks diverged.
    ClockJump,
    /// The pod's own token was replaced. The signing key may have changed, which invalidates the plugins' token, too
    /// (INST-45).
    Rotation,
    /// The API server rejects the plugins' token.
    Refused,
}

/// The due times of the agent's actions.
#[derive(Debug, Clone)]
pub struct RefreshSchedule {
    pace: RefreshPace,
    seen: Moment,
    begun: bool,
    attempt_at: Duration,
    trial_at: Duration,
    keep_at: Duration,
}

impl fmt::Display for RefreshReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            RefreshReason::Start => "the agent has begun",
            RefreshReason::Due => "it is time",
            RefreshReason::ClockJump => "the clock was set",
            RefreshReason::Rotation => "this pod's own token was replaced",
            RefreshReason::Refused => "the API server refuses the present one",
        })
    }
}

impl RefreshSchedule {
    /// Creates a schedule on which a token request and a check of the files are due.
    pub fn new(pace: RefreshPace, now: Moment) -> Self {
        RefreshSchedule {
            pace,
            seen: now,
            begun: false,
            attempt_at: now.boot,
            trial_at: now.boot + pace.trial,
            keep_at: now.boot,
        }
    }

    /// Returns the reason for requesting a token now, or `None` if no request is due.
    pub fn refresh_reason(&mut self, now: Moment) -> Option<RefreshReason> {
        let went = |to: Duration, from: Duration| to.saturating_sub(from);
        let jumped =
            refresh_delay::jumped(went(now.boot, self.seen.boot), went(now.calendar, self.seen.calendar), TOLERANCE);
        self.seen = now;
        if !self.begun {
            return Some(RefreshReason::Start);
        }
        if jumped {
            return Some(RefreshReason::ClockJump);
        }
        (now.boot >= self.attempt_at).then_some(RefreshReason::Due)
    }

    /// Records an attempt and returns the pause until the next one.
    pub fn record_attempt(&mut self, attempt: RefreshAttempt, held: Option<HeldToken>, random: f64) -> Duration {
        let pause = refresh_delay::pause(held, attempt, self.pace.interval, random);
        self.begun = true;
        self.attempt_at = attempt.at + pause;
        // A token that just arrived need not be tested.
        self.trial_at = attempt.at + self.pace.trial;
        pause
    }

    /// Returns true if the token is to be tested now, and then schedules the next test.
    pub fn is_check_due(&mut self, now: Moment) -> bool {
        let due = self.begun && now.boot >= self.trial_at;
        if due {
            self.trial_at = now.boot + self.pace.trial;
        }
        due
    }

    /// Returns true if the installed files are to be checked now, and then schedules the next check.
    pub fn is_repair_due(&mut self, now: Moment) -> bool {
        let due = now.boot >= self.keep_at;
        if due {
            self.keep_at = now.boot + KEEP;
        }
        due
    }

    /// Returns the time until the next action, at most `TICK`.
    pub fn time_to_next(&self, now: Moment) -> Duration {
        let next = self.attempt_at.min(self.trial_at).min(self.keep_at);
        next.saturating_sub(now.boot).min(TICK)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PACE: RefreshPace = RefreshPace { interval: None, trial: Duration::from_secs(30) };
    const TOKEN: Duration = Duration::from_secs(600);

    fn at(seconds: u64) -> Moment {
        Moment { boot: Duration::from_secs(seconds), calendar: Duration::from_secs(1_700_000_000 + seconds) }
    }

    /// Returns a schedule whose first token arrived at second 100 and is renewed at second 250.
    fn begun() -> RefreshSchedule {
        let mut schedule = RefreshSchedule::new(PACE, at(100));
        assert_eq!(schedule.refresh_reason(at(100)), Some(RefreshReason::Start));
        let attempt = RefreshAttempt { at: at(100).boot, succeeded: true };
        let pause = schedule.record_attempt(attempt, Some(HeldToken { since: attempt.at, lifetime: TOKEN }), 0.0);
        assert_eq!(pause, Duration::from_secs(150));
        schedule
    }

    #[test]
    fn a_token_is_asked_for_when_it_is_time_and_not_before() {
        let mut schedule = begun();
        assert_eq!(schedule.refresh_reason(at(110)), None);
        assert_eq!(schedule.refresh_reason(at(249)), None);
        assert_eq!(schedule.refresh_reason(at(250)), Some(RefreshReason::Due));
    }

    #[test]
    fn after_a_failure_it_is_seconds() {
        let mut schedule = begun();
        let pause = schedule.record_attempt(RefreshAttempt { at: at(250).boot, succeeded: false }, None, 1.0);
        assert_eq!(pause, Duration::from_secs(10));
        assert_eq!(schedule.refresh_reason(at(259)), None);
        assert_eq!(schedule.refresh_reason(at(260)), Some(RefreshReason::Due));
    }

    #[test]
    fn a_clock_that_was_set_is_a_reason_in_both_directions_and_once() {
        for calendar in [1_700_003_000, 1_600_000_000] {
            let mut schedule = begun();
            let jumped = Moment { boot: at(110).boot, calendar: Duration::from_secs(calendar) };
            assert_eq!(schedule.refresh_reason(jumped), Some(RefreshReason::ClockJump));
            let later = Moment { boot: at(112).boot, calendar: Duration::from_secs(calendar + 2) };
            assert_eq!(schedule.refresh_reason(later), None);
        }
    }

    #[test]
    fn a_machine_that_slept_is_only_late() {
        let mut schedule = begun();
        assert_eq!(schedule.refresh_reason(at(9000)), Some(RefreshReason::Due));
    }

    #[test]
    fn the_token_is_tried_between_renewals() {
        let mut schedule = begun();
        assert!(!schedule.is_check_due(at(129)));
        assert!(schedule.is_check_due(at(130)) && !schedule.is_check_due(at(131)));
        assert!(schedule.is_check_due(at(160)));
        schedule.record_attempt(RefreshAttempt { at: at(170).boot, succeeded: true }, None, 0.0);
        assert!(!schedule.is_check_due(at(195)) && schedule.is_check_due(at(200)));
    }

    #[test]
    fn nothing_is_tried_before_there_was_a_token() {
        let mut schedule = RefreshSchedule::new(PACE, at(100));
        assert!(!schedule.is_check_due(at(1000)));
    }

    #[test]
    fn what_was_installed_is_looked_for_once_a_minute() {
        let mut schedule = begun();
        assert!(schedule.is_repair_due(at(100)) && !schedule.is_repair_due(at(159)) && schedule.is_repair_due(at(160)));
    }

    #[test]
    fn the_agent_sleeps_until_the_next_thing_and_never_long() {
        let mut schedule = begun();
        assert_eq!(schedule.time_to_next(at(100)), Duration::ZERO, "to look for what was installed");
        schedule.is_repair_due(at(100));
        assert_eq!(schedule.time_to_next(at(101)), TICK);
        assert_eq!(schedule.time_to_next(at(127)), Duration::from_secs(3));
        assert_eq!(schedule.time_to_next(at(131)), Duration::ZERO);
    }
}

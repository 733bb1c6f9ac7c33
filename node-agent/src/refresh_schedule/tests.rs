use super::*;

const PACE: RefreshPace = RefreshPace {
    refresh_interval: None,
    check_interval: Duration::from_secs(30),
};
const TOKEN: Duration = Duration::from_secs(600);

fn at(seconds: u64) -> Moment {
    Moment {
        boot: Duration::from_secs(seconds),
        calendar: Duration::from_secs(1_700_000_000 + seconds),
    }
}

/// Returns a schedule whose first token arrived at second 100 and is renewed at second 250.
fn schedule_with_token() -> RefreshSchedule {
    let mut schedule = RefreshSchedule::new(PACE, at(100));
    assert_eq!(schedule.refresh_reason(at(100)), Some(RefreshReason::Start));
    let attempt = RefreshAttempt {
        at: at(100).boot,
        succeeded: true,
    };
    let pause = schedule.record_attempt(
        attempt,
        Some(HeldToken {
            received_at: attempt.at,
            lifetime: TOKEN,
        }),
        0.0,
    );
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
    let pause = schedule.record_attempt(
        RefreshAttempt {
            at: at(250).boot,
            succeeded: false,
        },
        None,
        1.0,
    );
    assert_eq!(pause, Duration::from_secs(10));
    assert_eq!(schedule.refresh_reason(at(259)), None);
    assert_eq!(schedule.refresh_reason(at(260)), Some(RefreshReason::Due));
}

#[test]
fn clock_jump_in_either_direction_triggers_a_single_refresh() {
    for calendar in [1_700_003_000, 1_600_000_000] {
        let mut schedule = schedule_with_token();
        let jumped = Moment {
            boot: at(110).boot,
            calendar: Duration::from_secs(calendar),
        };
        assert_eq!(
            schedule.refresh_reason(jumped),
            Some(RefreshReason::ClockJump)
        );
        let later = Moment {
            boot: at(112).boot,
            calendar: Duration::from_secs(calendar + 2),
        };
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
    schedule.record_attempt(
        RefreshAttempt {
            at: at(170).boot,
            succeeded: true,
        },
        None,
        0.0,
    );
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
        let held = Some(HeldToken {
            received_at: at(100).boot,
            lifetime: secs(600),
        });
        schedule.record_attempt(
            RefreshAttempt {
                at: at(second).boot,
                succeeded: false,
            },
            held,
            1.0,
        );
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
    assert!(
        schedule.is_repair_due(at(100))
            && !schedule.is_repair_due(at(159))
            && schedule.is_repair_due(at(160))
    );
}

#[test]
fn agent_sleeps_until_the_next_task_and_at_most_a_tick() {
    let mut schedule = schedule_with_token();
    assert_eq!(
        schedule.time_to_next(at(100), true),
        Duration::ZERO,
        "to look for what was installed"
    );
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
        assert_eq!(
            schedule.time_to_next(at(seconds), false),
            LONGEST_SLEEP,
            "{seconds}"
        );
    }
    assert_eq!(
        schedule.time_to_next(at(157), false),
        Duration::from_secs(3)
    );
    assert_eq!(schedule.time_to_next(at(160), false), Duration::ZERO);
}

const DAY: Duration = Duration::from_secs(86_400);
const HOUR: Duration = Duration::from_secs(3600);

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn held(lifetime: Duration) -> Option<HeldToken> {
    Some(HeldToken {
        received_at: secs(1000),
        lifetime,
    })
}

const DONE: RefreshAttempt = RefreshAttempt {
    at: Duration::from_secs(1000),
    succeeded: true,
};
const FAILED: RefreshAttempt = RefreshAttempt {
    at: Duration::from_secs(1000),
    succeeded: false,
};

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
    assert_eq!(
        pause_after(held(secs(600)), DONE, Some(DAY), 0.0),
        secs(300)
    );
}

#[test]
fn out_of_range_jitter_is_clamped() {
    assert_eq!(pause_after(held(DAY), DONE, None, -3.0), 6 * HOUR);
    assert_eq!(pause_after(held(DAY), DONE, None, 7.0), 12 * HOUR);
}

#[test]
fn token_is_fresh_until_its_last_quarter() {
    let token = HeldToken {
        received_at: secs(1000),
        lifetime: secs(600),
    };
    assert!(token.is_fresh(secs(1000)) && token.is_fresh(secs(1450)));
    assert!(!token.is_fresh(secs(1451)));
    assert_eq!(token.remaining(secs(1600)), Duration::ZERO);
    assert_eq!(token.remaining(secs(99_999)), Duration::ZERO);
}

/// At each renewal, at least a quarter of the old token's lifetime remains.
#[test]
fn each_successful_refresh_is_before_the_last_quarter_of_the_token() {
    for random in [0.0, 0.3, 1.0] {
        let (mut now, mut token) = (
            secs(50),
            HeldToken {
                received_at: secs(50),
                lifetime: secs(600),
            },
        );
        for _ in 0..100 {
            now += pause_after(
                Some(token),
                RefreshAttempt {
                    at: now,
                    succeeded: true,
                },
                None,
                random,
            );
            assert!(token.is_fresh(now), "{now:?}");
            token = HeldToken {
                received_at: now,
                lifetime: secs(600),
            };
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

//! [`RefusalLog`]: the time for which the role has refused the Lease.

use super::config::Timing;
use super::leadership::Deadline;

/// An uninterrupted series of refusals. Short series mean nothing: an API server that just started, or a binding that
/// is being replaced, refuses requests for a while that another replica is allowed. A replica that renewed the Lease
/// before the role lost the permission also still writes. So only refusals that last longer than a Lease count.
#[derive(Debug, Default)]
pub(super) struct RefusalLog {
    run: Option<Run>,
}

#[derive(Debug, Clone, Copy)]
struct Run {
    first: Deadline,
    last: Deadline,
}

impl RefusalLog {
    /// Records a refusal now. Returns true if the refusals have lasted longer than a Lease and a write. The Lease of
    /// another replica has expired by then, even if that replica's API server learned some seconds later of the change
    /// of the role. A process that was paused for a while starts over, because it missed the responses in between.
    pub(super) fn go_on(&mut self, timing: &Timing) -> bool {
        let now = Deadline::now();
        let run = self.run.filter(|run| !run.last.plus(timing.renew_deadline).has_passed());
        let first = run.map_or(now, |run| run.first);
        self.run = Some(Run { first, last: now });
        first.plus(timing.settling()).has_passed()
    }

    /// Returns true if no refusal is recorded.
    pub(super) fn are_none(&self) -> bool {
        self.run.is_none()
    }

    /// Records any other response, which ends the series.
    pub(super) fn end(&mut self) {
        self.run = None;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::advance;

    use super::*;

    /// Advances the clock by `seconds` and records a refusal. Returns true if the refusals have lasted.
    async fn after(refusals: &mut RefusalLog, seconds: u64) -> bool {
        advance(Duration::from_secs(seconds)).await;
        refusals.go_on(&Timing::default())
    }

    #[tokio::test(start_paused = true)]
    async fn refusals_that_go_on_for_longer_than_a_lease_and_a_write_last() {
        let mut refusals = RefusalLog::default();
        assert!(refusals.are_none());
        assert!(!after(&mut refusals, 0).await);
        for _ in 0..12 {
            assert!(!after(&mut refusals, 2).await);
        }
        assert!(after(&mut refusals, 2).await);
        refusals.end();
        assert!(refusals.are_none());
        assert!(!after(&mut refusals, 2).await, "anew");
    }

    #[tokio::test(start_paused = true)]
    async fn refusals_with_a_long_silence_in_between_begin_anew() {
        let mut refusals = RefusalLog::default();
        assert!(!after(&mut refusals, 0).await);
        assert!(!after(&mut refusals, 60).await);
        assert!(!after(&mut refusals, 9).await);
        assert!(!after(&mut refusals, 9).await);
        assert!(after(&mut refusals, 9).await);
    }
}

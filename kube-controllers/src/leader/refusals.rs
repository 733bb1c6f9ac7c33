//! How long the role has refused the Lease.

use super::Timing;
use crate::runtime::Deadline;

/// Refusals that followed each other. An API server that just started, and a binding that is made anew, refuse for a while
/// what another replica may do, or did a moment ago: one refusal means nothing. Two are clear if the server says in between
/// that it knows all roles; without its word they must go on for longer than a lease.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    run: Option<Run>,
}

#[derive(Debug, Clone, Copy)]
struct Run {
    first: Deadline,
    last: Deadline,
}

impl Refusals {
    /// One was heard now. Whether they go on for longer than a lease: one that another replica held before them is over. A
    /// process that was stopped for a while begins anew; it does not know what it would have heard.
    pub(super) fn go_on(&mut self, timing: &Timing) -> bool {
        let now = Deadline::now();
        let run = self.run.filter(|run| !run.last.plus(timing.renew_deadline).has_passed());
        let first = run.map_or(now, |run| run.first);
        self.run = Some(Run { first, last: now });
        first.plus(timing.lease).has_passed()
    }

    /// Whether none was heard yet.
    pub(super) fn are_none(&self) -> bool {
        self.run.is_none()
    }

    /// Whether the last was not the first.
    pub(super) fn were_repeated(&self) -> bool {
        self.run.is_some_and(|run| run.last.is_after(run.first))
    }

    /// Something else was heard.
    pub(super) fn end(&mut self) {
        self.run = None;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::advance;

    use super::*;

    /// Whether a refusal that comes so many seconds after the one before lasts.
    async fn after(refusals: &mut Refusals, seconds: u64) -> bool {
        advance(Duration::from_secs(seconds)).await;
        refusals.go_on(&Timing::default())
    }

    #[tokio::test(start_paused = true)]
    async fn they_last_when_they_go_on_for_longer_than_a_lease() {
        let mut refusals = Refusals::default();
        assert!(refusals.are_none());
        assert!(!after(&mut refusals, 0).await);
        for _ in 0..7 {
            assert!(!after(&mut refusals, 2).await);
        }
        assert!(after(&mut refusals, 2).await);
        assert!(refusals.were_repeated());
        refusals.end();
        assert!(!refusals.were_repeated());
        assert!(!after(&mut refusals, 2).await, "anew");
        assert!(!refusals.were_repeated());
    }

    #[tokio::test(start_paused = true)]
    async fn two_with_a_long_silence_in_between_are_two_beginnings() {
        let mut refusals = Refusals::default();
        assert!(!after(&mut refusals, 0).await);
        assert!(!after(&mut refusals, 60).await);
        assert!(!after(&mut refusals, 9).await);
        assert!(after(&mut refusals, 9).await);
    }
}

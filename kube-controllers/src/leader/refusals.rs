//! How long the role has refused the Lease.

use super::Timing;
use crate::runtime::Deadline;

/// Refusals that followed each other. An API server that just started, and a binding that is made anew, refuse for a while
/// what another replica may do, and a replica that renewed the Lease before the role lost it still writes by it: refusals mean
/// something only when they go on for longer than a lease.
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
    /// Takes notice of a refusal now. Returns true if the refusals go on for longer than a Lease and a write: the Lease of another
    /// replica is over by then, also where that replica's API server heard some seconds later of the change of the role. A process
    /// that was stopped for a while begins anew; it does not know what it would have heard.
    pub(super) fn go_on(&mut self, timing: &Timing) -> bool {
        let now = Deadline::now();
        let run = self.run.filter(|run| !run.last.plus(timing.renew_deadline).has_passed());
        let first = run.map_or(now, |run| run.first);
        self.run = Some(Run { first, last: now });
        first.plus(timing.settling()).has_passed()
    }

    /// Whether none was heard yet.
    pub(super) fn are_none(&self) -> bool {
        self.run.is_none()
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
    async fn refusals_that_go_on_for_longer_than_a_lease_and_a_write_last() {
        let mut refusals = Refusals::default();
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
        let mut refusals = Refusals::default();
        assert!(!after(&mut refusals, 0).await);
        assert!(!after(&mut refusals, 60).await);
        assert!(!after(&mut refusals, 9).await);
        assert!(!after(&mut refusals, 9).await);
        assert!(after(&mut refusals, 9).await);
    }
}

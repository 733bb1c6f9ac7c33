use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::config::{LeaderElectionConfig, Timing};
use super::election::{Election, ElectionStep};
use super::leadership::{Deadline, LeadershipTerm};
use super::leases::{LeaseError, Leases};

pub(super) struct Elector<L> {
    leases: L,
    config: LeaderElectionConfig,
    election: Election,
    term: watch::Sender<LeadershipTerm>,
    /// True if the present right to write is that of a replica without a Lease.
    without_lease: bool,
    refusals: RefusalLog,
    /// The last warning, which is not repeated.
    last_warning: Option<String>,
}

#[derive(Debug)]
enum Outcome {
    /// This process holds the Lease and may write until the deadline.
    Held(Deadline),
    /// This process holds the Lease, but another replica may still be writing without a Lease. This
    /// process may write from this time on.
    HeldWaiting(Instant),
    /// Another replica holds the Lease until this time.
    HeldByOther(Instant),
}

impl<L: Leases> Elector<L> {
    pub(super) fn new(
        leases: L,
        config: LeaderElectionConfig,
        term: watch::Sender<LeadershipTerm>,
    ) -> Self {
        let (election, refusals) = (
            Election::new(config.identity.clone(), config.timing),
            RefusalLog::default(),
        );
        Elector {
            leases,
            config,
            election,
            term,
            without_lease: false,
            refusals,
            last_warning: None,
        }
    }

    /// Takes part in the election until `stop`, then releases the Lease.
    pub(super) async fn run(mut self, stop: CancellationToken) {
        let attempts = async {
            loop {
                let pause = self.attempt_in_time().await;
                sleep(pause).await;
            }
        };
        stop.run_until_cancelled(attempts).await;
        self.term.send_replace(LeadershipTerm::No);
        self.release_lease().await;
    }

    /// Makes one attempt within the time limit. Returns the delay before the next attempt.
    async fn attempt_in_time(&mut self) -> Duration {
        let Timing {
            renew,
            retry,
            check_interval,
            ..
        } = self.config.timing;
        // Jitter, so that the replicas do not all ask at the same moment.
        let pause = retry.mul_f64(0.5 + fastrand::f64() / 2.0);
        let (begin, sent) = (Instant::now(), Deadline::now());
        let waited = self.election.waits_until(begin).is_some();
        let no_answer = |_| {
            Err(LeaseError::Other(format!(
                "no answer within {check_interval:?}"
            )))
        };
        let outcome = timeout(check_interval, self.attempt())
            .await
            .unwrap_or_else(no_answer);
        if self.ends_refusals(&outcome) {
            self.refusals.clear();
        }
        if matches!(outcome, Err(LeaseError::Forbidden(_))) {
            self.election.refused();
        }
        let now = Instant::now();
        let pause = match outcome {
            Ok(Outcome::Held(until)) => {
                self.last_warning = None;
                self.set_term(LeadershipTerm::Until(until));
                renew.saturating_sub(now.duration_since(begin))
            }
            Ok(Outcome::HeldWaiting(first_write_at)) => {
                let wait = first_write_at.saturating_duration_since(now);
                if !waited {
                    tracing::info!(
                        lease = self.config.name,
                        ?wait,
                        "this replica holds the Lease, and waits before its first write"
                    );
                }
                self.last_warning = None;
                self.set_term(LeadershipTerm::No);
                pause.min(wait)
            }
            Ok(Outcome::HeldByOther(free)) => {
                self.last_warning = None;
                self.set_term(LeadershipTerm::No);
                let holder = self.election.holder();
                tracing::debug!(
                    lease = self.config.name,
                    holder,
                    "another process holds the Lease"
                );
                pause.min(free.saturating_duration_since(now))
            }
            Err(LeaseError::Forbidden(reason)) if self.may_write_without_lease() => {
                self.refused(&reason, sent);
                pause
            }
            // The present right to write stays valid until its deadline.
            Err(error) => {
                self.warn_once(format!(
                    "cannot take or renew the Lease {}, trying again: {error}",
                    self.config.name
                ));
                // An attempt without a response takes longer than the pause, and the right to write
                // may end soon.
                pause.saturating_sub(now.duration_since(begin))
            }
        };
        // The interval begins when the request was sent, as the right to write does.
        if self.writes_without_lease() {
            check_interval.saturating_sub(begin.elapsed())
        } else {
            pause
        }
    }

    /// Takes or renews the Lease if it is free or held by this process.
    async fn attempt(&mut self) -> Result<Outcome, LeaseError> {
        if self.election.is_held_by_self() {
            // Other replicas normally do not write the Lease while this process holds it, so it is
            // not read first.
            match self.write().await {
                Err(LeaseError::Conflict) => {}
                outcome => return outcome,
            }
        }
        let lease = self.leases.get().await?;
        self.election.observe(lease, Instant::now());
        self.write().await
    }

    async fn write(&mut self) -> Result<Outcome, LeaseError> {
        // For other replicas, the duration of the Lease begins when they see this write, which is
        // later.
        let until = Deadline::now().plus(self.config.timing.renew_deadline);
        let leads = !self.without_lease && self.term.borrow().holds();
        let written = match self.election.step(Instant::now(), wall_clock(), leads) {
            ElectionStep::Create(lease) => self.leases.create(*lease).await?,
            ElectionStep::Replace(lease) => self.leases.replace(*lease).await?,
            ElectionStep::Wait(free) => return Ok(Outcome::HeldByOther(free)),
        };
        let now = Instant::now();
        self.election.observe(Some(written), now);
        Ok(self
            .election
            .waits_until(now)
            .map_or(Outcome::Held(until), Outcome::HeldWaiting))
    }

    /// Handles a refusal by the role. If the refusals last, there can be no election, and this
    /// process acts as the only replica until the role allows the Lease. The right to write ends
    /// `renew_deadline` after `sent`, the time at which this request was sent, unless a later
    /// request is refused too.
    fn refused(&mut self, reason: &str, sent: Deadline) {
        let timing = self.config.timing;
        let right = LeadershipTerm::Until(sent.plus(timing.renew_deadline));
        if self.writes_without_lease() {
            self.term.send_replace(right);
            return;
        }
        let first = self.refusals.series.is_none();
        if self.refusals.record(&timing) {
            self.set_term(right);
            self.without_lease = true;
            let LeaderElectionConfig {
                namespace, name, ..
            } = &self.config;
            let warning = format!(
                "the role does not allow writing the Lease {namespace}/{name} ({reason}); this \
                 replica writes without it, so run no second replica"
            );
            self.warn_once(warning);
        } else if first {
            tracing::info!(
                lease = self.config.name,
                reason,
                limit = ?timing.first_write_delay(),
                "the role does not allow the Lease; after the limit, writing without it"
            );
        }
    }

    fn set_term(&mut self, term: LeadershipTerm) {
        self.without_lease = false;
        self.term.send_replace(term);
    }

    fn writes_without_lease(&self) -> bool {
        self.without_lease && self.term.borrow().holds()
    }

    /// Returns true if the outcome ends a series of refusals. A success ends the series, and a
    /// refusal does not. Any other error ends the series, unless this process has the right to
    /// write: while it writes without a Lease, an attempt without a response does not show that the
    /// role allows Leases.
    fn ends_refusals(&self, outcome: &Result<Outcome, LeaseError>) -> bool {
        match outcome {
            Ok(_) => true,
            Err(LeaseError::Forbidden(_)) => false,
            Err(_) => !self.term.borrow().holds(),
        }
    }

    /// Returns true if a refusal means that there is no election. If a replica has held the Lease
    /// before, there is one: another replica may still hold the Lease, or may also act as the only
    /// replica after the Lease was deleted and the role does not allow creating it again.
    fn may_write_without_lease(&self) -> bool {
        !self.config.required && !self.election.was_held
    }

    /// Releases the Lease if [`Election::released`] permits it, so that the next replica starts at
    /// once.
    async fn release_lease(&mut self) {
        let name = self.config.name.clone();
        let outcome = timeout(self.config.timing.retry, self.try_to_release()).await;
        match outcome.unwrap_or_else(|_| Err(LeaseError::Other("no answer".into()))) {
            Ok(true) => tracing::info!(lease = name, "released the Lease"),
            Ok(false) => {}
            Err(error) => {
                tracing::warn!(
                    lease = name,
                    "cannot release the Lease; it may stay held until it expires: {error}"
                )
            }
        }
    }

    async fn try_to_release(&mut self) -> Result<bool, LeaseError> {
        let Some(lease) = self.election.released(Instant::now(), wall_clock()) else {
            return Ok(false);
        };
        match self.leases.replace(lease).await {
            Ok(_) => return Ok(true),
            // The response to the last renewal may have been lost.
            Err(LeaseError::Conflict) => {}
            Err(error) => return Err(error),
        }
        let lease = self.leases.get().await?;
        self.election.observe(lease, Instant::now());
        let Some(lease) = self.election.released(Instant::now(), wall_clock()) else {
            return Ok(false);
        };
        self.leases.replace(lease).await.map(|_| true)
    }

    fn warn_once(&mut self, warning: String) {
        if self.last_warning.as_ref() != Some(&warning) {
            tracing::warn!("{warning}");
            self.last_warning = Some(warning);
        }
    }
}

/// An uninterrupted series of refusals. Short series mean nothing: an API server that just started,
/// or a binding that is being replaced, refuses requests for a while that another replica is
/// allowed. A replica that renewed the Lease before the role lost the permission also still writes.
/// So only refusals that last longer than a Lease and a write count.
#[derive(Debug, Default)]
struct RefusalLog {
    /// `None` if no refusal is recorded.
    series: Option<RefusalSeries>,
}

#[derive(Debug, Clone, Copy)]
struct RefusalSeries {
    first: Deadline,
    last: Deadline,
}

impl RefusalLog {
    /// Records a refusal now. Returns true if the refusals have lasted longer than a Lease and a
    /// write. The Lease of another replica has expired by then, even if that replica's API server
    /// learned some seconds later of the change of the role. A process that was paused for a while
    /// starts over, because it missed the responses in between.
    fn record(&mut self, timing: &Timing) -> bool {
        let now = Deadline::now();
        let series = self
            .series
            .filter(|series| !series.last.plus(timing.renew_deadline).has_passed());
        let first = series.map_or(now, |series| series.first);
        self.series = Some(RefusalSeries { first, last: now });
        first.plus(timing.first_write_delay()).has_passed()
    }

    /// Ends the series.
    fn clear(&mut self) {
        self.series = None;
    }
}

fn wall_clock() -> MicroTime {
    MicroTime(Timestamp::now())
}

#[cfg(test)]
mod tests;

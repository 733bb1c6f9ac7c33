//! Takes the Lease, renews it, and gives it back.

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::election::{Election, Step};
use super::leases::{LeaseError, Leases};
use super::refusals::Refusals;
use super::{Config, Timing};
use crate::runtime::{Deadline, Tenure};

/// One candidate.
pub(super) struct Elector<L> {
    leases: L,
    config: Config,
    election: Election,
    tenure: watch::Sender<Tenure>,
    /// Whether the tenure is that of a replica without a Lease.
    alone: bool,
    refusals: Refusals,
    /// What was last complained about.
    complaint: Option<String>,
}

/// How an attempt ended.
#[derive(Debug)]
enum Outcome {
    /// The Lease is ours; we may write until then.
    Ours(Deadline),
    /// The Lease is ours, but another replica may still write without one; we may write from then on.
    Settling(Instant),
    /// It is another's until then.
    Anothers(Instant),
}

impl<L: Leases> Elector<L> {
    pub(super) fn new(leases: L, config: Config, tenure: watch::Sender<Tenure>) -> Self {
        let election = Election::new(config.identity.clone(), config.timing);
        Elector { leases, config, election, tenure, alone: false, refusals: Refusals::default(), complaint: None }
    }

    /// Stands for election until `stop`.
    pub(super) async fn run(mut self, stop: CancellationToken) {
        let attempts = async {
            loop {
                let pause = self.attempt_in_time().await;
                sleep(pause).await;
            }
        };
        tokio::select! {
            () = stop.cancelled() => {}
            () = attempts => {}
        }
        self.tenure.send_replace(Tenure::No);
        self.give_back().await;
    }

    /// Tries once. Returns how long to wait before the next time.
    async fn attempt_in_time(&mut self) -> Duration {
        let Timing { retry, look, .. } = self.config.timing;
        // Not all at the same moment.
        let pause = retry.mul_f64(0.5 + fastrand::f64() / 2.0);
        let (begin, sent) = (Instant::now(), Deadline::now());
        let waited = self.election.waits_until(begin).is_some();
        let attempted = timeout(look, self.attempt()).await;
        let outcome = attempted.unwrap_or_else(|_| Err(LeaseError::Other(format!("no answer within {look:?}"))));
        if self.contradicts_refusals(&outcome) {
            self.refusals.end();
        }
        if matches!(outcome, Err(LeaseError::Forbidden(_))) {
            self.election.refused();
        }
        let now = Instant::now();
        let pause = match outcome {
            Ok(Outcome::Ours(until)) => {
                self.complaint = None;
                self.set_tenure(Tenure::Until(until));
                pause
            }
            Ok(Outcome::Settling(settled)) => {
                let wait = settled.saturating_duration_since(now);
                if !waited {
                    let lease = &self.config.name;
                    tracing::info!(
                        lease,
                        ?wait,
                        "this replica has the lease; writing begins when no replica can write without it any more"
                    );
                }
                self.complaint = None;
                self.set_tenure(Tenure::No);
                pause.min(wait)
            }
            Ok(Outcome::Anothers(free)) => {
                self.complaint = None;
                self.set_tenure(Tenure::No);
                tracing::debug!(lease = self.config.name, holder = self.election.holder(), "another replica leads");
                pause.min(free.saturating_duration_since(now))
            }
            Err(LeaseError::Forbidden(reason)) if self.may_be_alone() => {
                self.refused(&reason, sent);
                pause
            }
            // What was said before stands until its time is over.
            Err(error) => {
                self.complain(format!("cannot take or renew the lease {}: {error}", self.config.name));
                pause
            }
        };
        // Counted from when the look was sent, as the right to write is.
        if self.is_alone() { look.saturating_sub(begin.elapsed()) } else { pause }
    }

    /// Takes or renews the Lease if it is free or ours.
    async fn attempt(&mut self) -> Result<Outcome, LeaseError> {
        if self.election.is_ours() {
            // Nobody else writes it: it need not be read.
            match self.write().await {
                Err(LeaseError::Race) => {}
                outcome => return outcome,
            }
        }
        let lease = self.leases.get().await?;
        self.election.observe(lease, Instant::now());
        self.write().await
    }

    async fn write(&mut self) -> Result<Outcome, LeaseError> {
        // Others count from when they see this write, which is later.
        let until = Deadline::now().plus(self.config.timing.renew_deadline);
        let leads = !self.alone && self.tenure.borrow().holds();
        let written = match self.election.step(Instant::now(), wall(), leads) {
            Step::Create(lease) => self.leases.create(*lease).await?,
            Step::Replace(lease) => self.leases.replace(*lease).await?,
            Step::Wait(free) => return Ok(Outcome::Anothers(free)),
        };
        let now = Instant::now();
        self.election.observe(Some(written), now);
        Ok(self.election.waits_until(now).map_or(Outcome::Ours(until), Outcome::Settling))
    }

    /// The role refuses the Lease. When that is clear this is the only replica, for there can be no election: until the role
    /// allows one. The right to write ends some time after `sent`, when this look was sent, unless another look is refused.
    fn refused(&mut self, reason: &str, sent: Deadline) {
        let timing = self.config.timing;
        let right = Tenure::Until(sent.plus(timing.renew_deadline));
        if self.is_alone() {
            self.tenure.send_replace(right);
            return;
        }
        let first = self.refusals.are_none();
        if self.refusals.go_on(&timing) {
            self.set_tenure(right);
            self.alone = true;
            let Config { namespace, name, .. } = &self.config;
            let complaint = format!(
                "the role does not allow to write the lease {namespace}/{name} ({reason}), so there must be no second replica"
            );
            self.complain(complaint);
        } else if first {
            tracing::info!(
                lease = self.config.name,
                "the role refuses the lease ({reason}); a replica that is refused for {:?} writes without the lease",
                timing.settling()
            );
        }
    }

    /// What an election says.
    fn set_tenure(&mut self, tenure: Tenure) {
        self.alone = false;
        self.tenure.send_replace(tenure);
    }

    /// Whether it leads without a Lease.
    fn is_alone(&self) -> bool {
        self.alone && self.tenure.borrow().holds()
    }

    /// Whether there is more to it than a role without Leases. To one that leads because of it, no answer says nothing.
    fn contradicts_refusals(&self, outcome: &Result<Outcome, LeaseError>) -> bool {
        match outcome {
            Ok(_) => true,
            Err(LeaseError::Forbidden(_)) => false,
            Err(_) => !self.tenure.borrow().holds(),
        }
    }

    /// Returns true if a role that refuses means that there is no election. There was one if a replica held the Lease before: another
    /// may hold the Lease still, or take itself for the only replica as well when the Lease is deleted and may not be made again.
    fn may_be_alone(&self) -> bool {
        !self.config.required && !self.election.was_held()
    }

    /// Lets the next replica begin at once.
    async fn give_back(&mut self) {
        let name = self.config.name.clone();
        match timeout(self.config.timing.retry, self.try_to_give_back()).await {
            Ok(Ok(true)) => tracing::info!(lease = name, "gave the lease back"),
            Ok(Ok(false)) => {}
            Ok(Err(error)) => tracing::warn!(lease = name, "cannot give the lease back: {error}"),
            Err(_) => tracing::warn!(lease = name, "cannot give the lease back: no answer"),
        }
    }

    async fn try_to_give_back(&mut self) -> Result<bool, LeaseError> {
        let Some(lease) = self.election.given_back(Instant::now(), wall()) else { return Ok(false) };
        match self.leases.replace(lease).await {
            Ok(_) => return Ok(true),
            // A renewal was cut off whose answer was not seen.
            Err(LeaseError::Race) => {}
            Err(error) => return Err(error),
        }
        let lease = self.leases.get().await?;
        self.election.observe(lease, Instant::now());
        let Some(lease) = self.election.given_back(Instant::now(), wall()) else { return Ok(false) };
        self.leases.replace(lease).await.map(|_| true)
    }

    /// Warns, once for the same thing.
    fn complain(&mut self, complaint: String) {
        if self.complaint.as_ref() != Some(&complaint) {
            tracing::warn!("{complaint}");
            self.complaint = Some(complaint);
        }
    }
}

/// The time that people read in the Lease.
fn wall() -> MicroTime {
    MicroTime(Timestamp::now())
}

#[cfg(test)]
mod tests;

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
    refusals: Refusals,
    /// What was last complained about.
    complaint: Option<String>,
}

/// How an attempt ended.
#[derive(Debug)]
enum Outcome {
    /// The Lease is ours; we may write until then.
    Ours(Deadline),
    /// It is another's until then.
    Anothers(Instant),
}

impl<L: Leases> Elector<L> {
    pub(super) fn new(leases: L, config: Config, tenure: watch::Sender<Tenure>) -> Self {
        let election = Election::new(config.identity.clone(), config.timing);
        Elector { leases, config, election, tenure, refusals: Refusals::default(), complaint: None }
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
        let Timing { renew_deadline, retry, .. } = self.config.timing;
        // Not all at the same moment.
        let pause = retry.mul_f64(0.5 + fastrand::f64() / 2.0);
        let limit = renew_deadline / 2;
        let attempted = timeout(limit, self.attempt()).await;
        let outcome = attempted.unwrap_or_else(|_| Err(LeaseError::Other(format!("no answer within {limit:?}"))));
        if self.contradicts_refusals(&outcome) {
            self.refusals.end();
        }
        match outcome {
            Ok(Outcome::Ours(until)) => {
                self.complaint = None;
                self.tenure.send_replace(Tenure::Until(until));
                pause
            }
            Ok(Outcome::Anothers(free)) => {
                self.complaint = None;
                self.tenure.send_replace(Tenure::No);
                tracing::debug!(lease = self.config.name, holder = self.election.holder(), "another replica leads");
                pause.min(free.saturating_duration_since(Instant::now()))
            }
            Err(LeaseError::Forbidden(reason)) if self.may_be_alone() => {
                self.refused(&reason).await;
                if self.is_alone() { self.config.timing.alone } else { pause }
            }
            // What was said before stands until its time is over.
            Err(error) => {
                self.complain(format!("cannot take or renew the lease {}: {error}", self.config.name));
                pause
            }
        }
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
        let written = match self.election.step(Instant::now(), wall()) {
            Step::Create(lease) => self.leases.create(*lease).await?,
            Step::Replace(lease) => self.leases.replace(*lease).await?,
            Step::Wait(free) => return Ok(Outcome::Anothers(free)),
        };
        self.election.observe(Some(written), Instant::now());
        Ok(Outcome::Ours(until))
    }

    /// The role refuses the Lease. When that is clear this is the only replica, for there can be no election: until the role
    /// allows one, which is asked for from time to time.
    async fn refused(&mut self, reason: &str) {
        if self.is_alone() {
            return;
        }
        let first = self.refusals.are_none();
        let is_lasting = self.refusals.go_on(&self.config.timing);
        let is_clear = is_lasting || (self.refusals.were_repeated() && self.server_knows_roles().await);
        let Config { namespace, name, timing, .. } = &self.config;
        if is_clear {
            let complaint = format!(
                "the role does not allow to write the lease {namespace}/{name} ({reason}), so there must be no second replica"
            );
            self.tenure.send_replace(Tenure::Always);
            self.complain(complaint);
        } else if first {
            tracing::info!(
                lease = name,
                "refused ({reason}); if it stays so this is the only replica, at the latest after {:?}",
                timing.lease
            );
        }
    }

    async fn server_knows_roles(&self) -> bool {
        timeout(self.config.timing.retry, self.leases.knows_roles()).await.unwrap_or(false)
    }

    /// Whether it leads without a Lease.
    fn is_alone(&self) -> bool {
        matches!(*self.tenure.borrow(), Tenure::Always)
    }

    /// Whether there is more to it than a role without Leases. To one that leads because of it, no answer says nothing.
    fn contradicts_refusals(&self, outcome: &Result<Outcome, LeaseError>) -> bool {
        match outcome {
            Ok(_) => true,
            Err(LeaseError::Forbidden(_)) => false,
            Err(_) => !self.tenure.borrow().holds(),
        }
    }

    /// Whether a role that refuses means that there is no election: not when there was one before, for another replica may
    /// hold the Lease.
    fn may_be_alone(&self) -> bool {
        !self.config.required && self.election.holder().is_empty()
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
        let Some(lease) = self.election.given_back(wall()) else { return Ok(false) };
        match self.leases.replace(lease).await {
            Ok(_) => return Ok(true),
            // A renewal was cut off whose answer was not seen.
            Err(LeaseError::Race) => {}
            Err(error) => return Err(error),
        }
        let lease = self.leases.get().await?;
        self.election.observe(lease, Instant::now());
        let Some(lease) = self.election.given_back(wall()) else { return Ok(false) };
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

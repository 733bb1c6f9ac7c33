//! The agent's status. The agent writes it, and the HTTP listener derives probes and metrics from
//! it.

mod metrics;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::refresh_schedule::{HeldToken, RefreshAttempt};
use installation::conflist::Selection;

/// Value of [`Status::unanswered`] from which the agent is not ready. A single response may get
/// lost.
const UNANSWERED_LIMIT: u32 = 2;

/// Time by which an attempt to renew the token may be late before the agent is not live: counted
/// from the agent's start for the first attempt, and from the end of twice the planned pause for
/// later ones.
const ATTEMPT_TOLERANCE: Duration = Duration::from_secs(60);

/// The state of the agent.
#[derive(Debug, Clone, Default)]
pub struct Status {
    /// The time of the agent's start, on the boot clock.
    pub started_at: Duration,
    /// True if this agent refreshes the token.
    pub manages_token: bool,
    /// The validity of the last token that this agent wrote for the plugins; `None` before the
    /// first one.
    pub token: Option<HeldToken>,
    /// That token's expiry, in seconds since 1970, as the API server reported it.
    pub expires: Option<i64>,
    /// True after a test found the plugins' token rejected or missing, until a test finds it valid
    /// or this agent writes a token.
    pub is_rejected: bool,
    /// The last attempt to renew the token; `None` before the first attempt.
    pub last_attempt: Option<RefreshAttempt>,
    /// The planned pause after that attempt; zero before the first attempt.
    pub planned_pause: Duration,
    /// The reason for the last failure to renew or test the token; `None` at first, and after a
    /// success that cleared it.
    pub last_failure: Option<String>,
    /// Number of consecutive token requests without a response and tests without a usable response.
    pub unanswered: u32,
    /// The [`problem`](installation::file_check::FileCheck::problem) of the last check of the
    /// installed files.
    pub file_problem: Option<String>,
    /// The reason why this agent does not restore the files, from the last check; `None` if it
    /// restores them, or if no installation is recorded.
    pub suspension: Option<String>,
    /// The configuration that container runtimes use, from the last check of the files.
    pub selection: Selection,
    /// False if kubelet reports that the node has no network, and true if its report does not say
    /// so; `None` if the report is not read or not known.
    pub has_network: Option<bool>,
    /// The reason why kubelet's reports make the agent not ready; `None` if they do not.
    pub node_problem: Option<String>,
    /// The result of the last look at the interfaces; `None` if the agent removes no dead ones.
    pub repair: Option<RepairStatus>,
    /// Counters.
    pub counts: Counts,
}

/// The result of a look at the interfaces of this node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RepairStatus {
    /// Number of interfaces that no container uses, without those removed.
    pub dead: u64,
    /// True if evidence about some interface is missing.
    pub is_unknown: bool,
    /// Number of interfaces removed since the agent's start.
    pub removed: u64,
}

/// The reason for a failed probe.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ProbeFailure(String);

/// Counters for metrics.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Tokens that were received and written.
    pub refreshes: u64,
    /// Failed attempts to renew the token.
    pub failures: u64,
    /// Tests that found a rejected token, or no token in the kubeconfig.
    pub rejected: u64,
    /// Detected clock jumps.
    pub clock_jumps: u64,
    /// Checks of the installed files.
    pub file_checks: u64,
    /// Restored files that were missing or changed.
    pub restored: u64,
}

impl Status {
    /// Returns `Ok` if the last check of the files left no problem and no
    /// [`suspension`](Self::suspension), if runtimes are not known to use a configuration without
    /// Calico's plugin, if kubelet's reports do not make the agent not ready and, if this agent
    /// manages the token, it has written a token that does not count as
    /// [rejected](Self::is_rejected), at least a quarter of the token's lifetime remains, and
    /// [`unanswered`](Self::unanswered) is below `UNANSWERED_LIMIT`. Returns the reason otherwise
    /// (INST-51).
    pub fn readiness(&self, now: Duration) -> Result<(), ProbeFailure> {
        if self.manages_token {
            self.check_token(now)?;
        }
        let reason = self.file_problem.as_ref().or(self.suspension.as_ref());
        let reason = reason
            .or(self.selection.problem())
            .or(self.node_problem.as_ref());
        reason.map_or(Ok(()), |reason| Err(ProbeFailure(reason.clone())))
    }

    fn check_token(&self, now: Duration) -> Result<(), ProbeFailure> {
        let Some(held) = self.token else {
            let reason = self
                .last_failure
                .as_deref()
                .unwrap_or("no token was requested yet");
            return Err(ProbeFailure(format!("the plugins have no token: {reason}")));
        };
        let because = self
            .last_failure
            .as_ref()
            .map(|failure| format!(": {failure}"))
            .unwrap_or_default();
        if self.is_rejected {
            return Err(ProbeFailure(format!(
                "the API server rejects the plugins' token, or the kubeconfig has none{because}"
            )));
        }
        if !held.is_fresh(now) {
            let seconds = held.remaining(now).as_secs();
            return Err(ProbeFailure(format!(
                "the plugins' token is valid for {seconds} s more, less than a quarter of its \
                 lifetime{because}"
            )));
        }
        if self.unanswered >= UNANSWERED_LIMIT {
            let times = self.unanswered;
            return Err(ProbeFailure(format!(
                "the API server did not answer {times} times in a row{because}"
            )));
        }
        Ok(())
    }

    /// Records and logs a failure to renew or test the token: as a warning, or at level debug if
    /// the last failure had the same reason.
    pub fn record_failure(&mut self, reason: String) {
        if self.last_failure.as_ref() == Some(&reason) {
            tracing::debug!(
                "still cannot renew or test the plugins' token, trying again: {reason}"
            );
        } else {
            tracing::warn!("cannot renew or test the plugins' token, trying again: {reason}");
        }
        self.last_failure = Some(reason);
    }

    /// Records a test that found the plugins' token rejected or missing.
    pub fn record_rejection(&mut self) {
        self.counts.rejected += 1;
        self.is_rejected = true;
    }

    /// Records that the API server accepted the token in a test; another program may have written
    /// it. If the previous request got no response, this clears the reason of the last failure.
    /// Otherwise the reason stays until a token request succeeds.
    pub fn record_answer(&mut self) {
        self.is_rejected = false;
        if self.unanswered > 0 {
            tracing::info!("the API server answers again");
            (self.last_failure, self.unanswered) = (None, 0);
        }
    }

    /// Returns `Ok` if the token has not expired and attempts are made in time, or if this agent
    /// does not manage the token (INST-51).
    pub fn liveness(&self, now: Duration) -> Result<(), ProbeFailure> {
        if !self.manages_token {
            return Ok(());
        }
        if self.token.is_some_and(|held| held.remaining(now).is_zero()) {
            return Err(ProbeFailure("the plugins' token has expired".into()));
        }
        let idle = now.saturating_sub(self.last_attempt.map_or(self.started_at, |last| last.at));
        if idle > 2 * self.planned_pause + ATTEMPT_TOLERANCE {
            let (seconds, planned) = (idle.as_secs(), self.planned_pause.as_secs());
            let reason = format!(
                "no token was requested for {seconds} s; the planned interval is {planned} s"
            );
            return Err(ProbeFailure(reason));
        }
        Ok(())
    }

    /// Returns the metrics in Prometheus' text format.
    pub fn metrics(&self) -> String {
        metrics::text(self)
    }
}

/// The status, shared between the agent and its HTTP listener.
#[derive(Debug, Clone, Default)]
pub(super) struct SharedStatus(Arc<Mutex<Status>>);

impl SharedStatus {
    pub(super) fn get(&self) -> MutexGuard<'_, Status> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;

//! The agent's status. The agent writes it, and the HTTP listener derives probes and metrics from
//! it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::refresh_schedule::{HeldToken, RefreshAttempt};
use crate::conflist::Selection;

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
    /// The [`problem`](FileCheck::problem) of the last check of the installed files.
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

/// The result of one check of the installed files.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FileCheck {
    /// Number of files that were missing or changed and have been restored.
    pub restored: u64,
    /// The error or the conflict that prevented the check or the restoration; `None` if there was
    /// none.
    pub problem: Option<String>,
    /// The reason why no file is restored, if the files are those of another installation.
    pub suspension: Option<String>,
    /// The configuration that container runtimes use.
    pub selection: Selection,
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
        let Counts {
            refreshes,
            failures,
            rejected,
            clock_jumps,
            file_checks,
            restored,
        } = self.counts;
        let mut text = String::new();
        let mut metric = |kind: &str, name: &str, help: &str, value: i128| {
            text += &format!("# HELP calico_cni_{name} {help}\n# TYPE calico_cni_{name} {kind}\n");
            text += &format!("calico_cni_{name} {value}\n");
        };
        let help = "Expiry of the plugins' token in seconds since 1970; 0 without a token, or with \
                    a rejected one.";
        let expires = self.expires.filter(|_| !self.is_rejected).unwrap_or(0);
        metric(
            "gauge",
            "token_expiry_timestamp_seconds",
            help,
            expires.into(),
        );
        for (name, help, count) in [
            (
                "token_refreshes_total",
                "Tokens that were requested and written to the kubeconfig.",
                refreshes,
            ),
            (
                "token_refresh_failures_total",
                "Failed attempts to renew the token.",
                failures,
            ),
            (
                "token_refused_total",
                "Tests that found the plugins' token rejected or missing.",
                rejected,
            ),
            (
                "clock_jumps_total",
                "Detected jumps of the node's clock.",
                clock_jumps,
            ),
            (
                "file_checks_total",
                "Checks of the installed files.",
                file_checks,
            ),
            (
                "files_mended_total",
                "Installed files that were missing or changed and have been restored.",
                restored,
            ),
        ] {
            metric("counter", name, help, count.into());
        }
        let help = "1 if this agent renews the plugins' token, else 0.";
        metric("gauge", "token_managed", help, self.manages_token.into());
        let ok = self.file_problem.is_none().into();
        // The series always exists, because the alert `CalicoCniAgentMissing` fires without it.
        let help = "0 if the last check of the installed files left a problem; else 1, also before \
                    the first check and while the agent restores no file.";
        metric("gauge", "install_ok", help, ok);
        let help = "1 if the agent restores no file, because another installation replaced that of \
                    its pod, else 0.";
        metric(
            "gauge",
            "restoration_suspended",
            help,
            self.suspension.is_some().into(),
        );
        let chosen = "1 if container runtimes use the configuration, 0 if another network's sorts \
                      before it.";
        let network = "1 if the node has a network according to its Ready condition, else 0.";
        for (name, help, value) in [
            ("config_chosen", chosen, self.selection.is_calico()),
            ("node_network_ready", network, self.has_network),
        ] {
            if let Some(value) = value {
                metric("gauge", name, help, value.into());
            }
        }
        if let Some(RepairStatus {
            dead,
            is_unknown,
            removed,
        }) = self.repair
        {
            let help = "Interfaces of this node that no container uses, in the last look.";
            metric("gauge", "dead_interfaces", help, dead.into());
            let help = "Removed interfaces that no container used.";
            metric(
                "counter",
                "dead_interfaces_removed_total",
                help,
                removed.into(),
            );
            let help =
                "1 if the last look left it open whether containers use some interfaces, else 0.";
            metric("gauge", "repair_unknown", help, is_unknown.into());
        }
        text
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
mod tests {
    use super::*;

    fn secs(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// Returns a status with a token of 600 s that arrived at second 100; the next attempt is at
    /// second 300.
    fn good() -> Status {
        Status {
            started_at: secs(99),
            manages_token: true,
            token: Some(HeldToken {
                received_at: secs(100),
                lifetime: secs(600),
            }),
            expires: Some(1_700_000_600),
            last_attempt: Some(RefreshAttempt {
                at: secs(100),
                succeeded: true,
            }),
            planned_pause: secs(200),
            ..Status::default()
        }
    }

    #[test]
    fn agent_is_ready_until_the_last_quarter_of_the_token() {
        assert_eq!(good().readiness(secs(550)), Ok(()));
        let failing = Status {
            last_failure: Some("no answer".into()),
            ..good()
        };
        assert_eq!(
            failing.readiness(secs(560)).unwrap_err().to_string(),
            "the plugins' token is valid for 140 s more, less than a quarter of its lifetime: no \
             answer"
        );
    }

    #[test]
    fn agent_is_not_ready_without_a_token_a_response_or_the_files() {
        let begun = Status {
            started_at: secs(99),
            manages_token: true,
            ..Status::default()
        };
        assert!(
            begun
                .readiness(secs(100))
                .unwrap_err()
                .to_string()
                .ends_with("no token was requested yet")
        );
        assert_eq!(
            Status {
                unanswered: 1,
                ..good()
            }
            .readiness(secs(101)),
            Ok(())
        );
        assert!(
            Status {
                unanswered: 2,
                ..good()
            }
            .readiness(secs(101))
            .is_err()
        );
        let missing = Status {
            file_problem: Some("calico is gone".into()),
            ..good()
        };
        assert_eq!(
            missing.readiness(secs(101)).unwrap_err().to_string(),
            "calico is gone"
        );
        let suspended = Status {
            suspension: Some("another installed".into()),
            ..good()
        };
        assert_eq!(
            suspended.readiness(secs(101)).unwrap_err().to_string(),
            "another installed"
        );
    }

    #[test]
    fn agent_is_not_ready_with_a_rejected_token() {
        let mut status = good();
        status.record_rejection();
        let words = "the API server rejects the plugins' token, or the kubeconfig has none";
        assert_eq!(status.readiness(secs(101)).unwrap_err().to_string(), words);
        status.record_failure("no right".into());
        assert_eq!(
            status.readiness(secs(101)).unwrap_err().to_string(),
            format!("{words}: no right")
        );
        assert_eq!(
            status.liveness(secs(101)),
            Ok(()),
            "a restart does not return the right"
        );
        assert!(
            status
                .metrics()
                .contains("\ncalico_cni_token_expiry_timestamp_seconds 0\n")
        );
        assert!(
            status
                .metrics()
                .contains("\ncalico_cni_token_refused_total 1\n")
        );
        status.record_answer();
        assert_eq!(
            status.readiness(secs(101)),
            Ok(()),
            "another program wrote a valid token"
        );
        assert!(
            status
                .metrics()
                .contains("\ncalico_cni_token_expiry_timestamp_seconds 1700000600\n")
        );
    }

    #[test]
    fn response_clears_only_a_no_response_failure() {
        let failing = |unanswered| Status {
            unanswered,
            last_failure: Some("why".into()),
            ..good()
        };
        let answered = |mut status: Status| {
            status.record_answer();
            (status.last_failure, status.unanswered)
        };
        assert_eq!(answered(failing(1)), (None, 0));
        assert_eq!(
            answered(failing(0)),
            (Some("why".into()), 0),
            "it may not make tokens, and is there"
        );
    }

    #[test]
    fn agent_is_live_while_token_attempts_are_on_schedule() {
        let without_token = Status {
            token: None,
            ..good()
        };
        assert_eq!(without_token.liveness(secs(560)), Ok(()));
        assert_eq!(
            without_token.liveness(secs(561)).unwrap_err().to_string(),
            "no token was requested for 461 s; the planned interval is 200 s"
        );
        let begun = Status {
            started_at: secs(100),
            manages_token: true,
            ..Status::default()
        };
        assert!(begun.liveness(secs(160)).is_ok() && begun.liveness(secs(161)).is_err());
    }

    #[test]
    fn expired_token_fails_liveness() {
        let retrying = |at| Status {
            last_attempt: Some(RefreshAttempt {
                at,
                succeeded: false,
            }),
            planned_pause: secs(5),
            ..good()
        };
        assert_eq!(retrying(secs(690)).liveness(secs(699)), Ok(()));
        assert_eq!(
            retrying(secs(695))
                .liveness(secs(700))
                .unwrap_err()
                .to_string(),
            "the plugins' token has expired"
        );
    }

    #[test]
    fn readiness_without_token_management_depends_on_the_files_only() {
        let idle = Status {
            started_at: secs(0),
            ..Status::default()
        };
        assert!(idle.readiness(secs(9999)).is_ok() && idle.liveness(secs(9999)).is_ok());
        assert!(
            Status {
                file_problem: Some("calico is gone".into()),
                ..idle
            }
            .readiness(secs(1))
            .is_err()
        );
    }

    #[test]
    fn agent_is_not_ready_while_runtimes_use_another_network() {
        let shadowed = Status {
            selection: Selection::Other("10-aws.conflist is first".into()),
            ..good()
        };
        assert_eq!(
            shadowed.readiness(secs(101)).unwrap_err().to_string(),
            "10-aws.conflist is first"
        );
        assert!(shadowed.metrics().contains("calico_cni_config_chosen 0\n"));
        assert!(
            shadowed.metrics().contains("calico_cni_install_ok 1\n"),
            "all files are in place"
        );
        let unused = Status {
            has_network: Some(false),
            node_problem: Some("kubelet reports".into()),
            ..good()
        };
        assert_eq!(
            unused.readiness(secs(101)).unwrap_err().to_string(),
            "kubelet reports"
        );
        assert!(
            unused
                .metrics()
                .contains("calico_cni_node_network_ready 0\n")
        );
        assert!(
            !good().metrics().contains("chosen") && !good().metrics().contains("network_ready")
        );
        let chosen = Status {
            selection: Selection::Ours,
            has_network: Some(true),
            ..good()
        };
        assert_eq!(chosen.readiness(secs(101)), Ok(()));
        assert!(chosen.metrics().contains("calico_cni_config_chosen 1\n"));
    }

    #[test]
    fn metrics_of_the_repair_exist_only_if_the_agent_repairs() {
        assert!(
            !good().metrics().contains("dead_interfaces")
                && !good().metrics().contains("repair_unknown")
        );
        let repair = Some(RepairStatus {
            dead: 2,
            is_unknown: true,
            removed: 3,
        });
        let text = Status { repair, ..good() }.metrics();
        for line in [
            "dead_interfaces 2",
            "dead_interfaces_removed_total 3",
            "repair_unknown 1",
        ] {
            assert!(
                text.contains(&format!("\ncalico_cni_{line}\n")),
                "{line} is not in:\n{text}"
            );
        }
    }

    #[test]
    fn agent_metrics_are_prometheus_text() {
        let text = Status {
            counts: Counts {
                failures: 3,
                ..Counts::default()
            },
            ..good()
        }
        .metrics();
        for line in [
            "# TYPE calico_cni_token_expiry_timestamp_seconds gauge",
            "calico_cni_token_expiry_timestamp_seconds 1700000600",
            "calico_cni_token_refresh_failures_total 3",
            "calico_cni_token_managed 1",
            "calico_cni_install_ok 1",
            "calico_cni_restoration_suspended 0",
        ] {
            assert!(
                text.lines().any(|found| found == line),
                "{line} is not in:\n{text}"
            );
        }
        assert_eq!(text.lines().count() % 3, 0);
        let unchecked = Status {
            counts: Counts::default(),
            ..good()
        };
        assert!(
            unchecked.metrics().contains("calico_cni_install_ok 1\n"),
            "no check has found a problem"
        );
        assert!(
            Status {
                file_problem: Some("x".into()),
                ..good()
            }
            .metrics()
            .contains("calico_cni_install_ok 0\n")
        );
        let suspended = Status {
            suspension: Some("x".into()),
            ..good()
        }
        .metrics();
        assert!(
            suspended.contains("calico_cni_restoration_suspended 1\n")
                && suspended.contains("install_ok 1\n")
        );
    }
}

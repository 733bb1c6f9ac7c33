//! `calico refresh-token`: the node agent. It renews the plugins' token, repairs installed files,
//! replays deferred DELs and compresses rotated log files. If configured, it removes dead
//! interfaces. It runs until SIGTERM or SIGINT, until Calico's objects move to another API group,
//! or until a mounted directory is removed on the node.
//!
//! ```text
//! clocks ────────────────┐
//! the pod's own token ───┼▶ schedule ──▶ TokenRequest ─▶ calico-kubeconfig
//! a test of the token ───┘        └────▶ the installed files
//!                     status ◀──────────────┘
//!                       ├◀ the Node's Ready condition, if configured
//!                       └▶ /readiness /liveness /metrics
//! ```
//!
//! [`refresh_schedule`] decides when a token is requested or tested and the files are checked, and
//! [`status`] computes the results of the probes. Neither uses the network. Read them first.

mod api_group;
pub mod deferred_dels;
mod interface_repair;
pub mod log_compression;
mod mounts;
mod node_condition;
mod projected_token;
pub mod refresh_schedule;
mod server;
mod settings;
pub mod status;

pub use api_group::ApiGroupWatch;
pub use deferred_dels::{NodePlugins, ReplayPass};
pub use interface_repair::InterfaceRepair;
pub use node_condition::NodeCondition;
pub use settings::{AgentSettings, DEFAULT_LISTEN, VARIABLES};

use std::future::pending;
use std::path::{Path, PathBuf};
use std::time::Duration;

use libcalico::failure::{Failure, OrFail};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::sleep;

use installation::directory_access::UnwritableDirectory;
use installation::file_check::FileCheck;
use installation::kubeconfig::{self, KubeconfigError};
use installation::service_account::ServiceAccount;
use installation::token::{IssuedToken, TokenCheck, TokenRequest, check_token};
use os::atomic_file::regular_file;
use projected_token::ProjectedToken;
use refresh_schedule::{HeldToken, Moment, RefreshAttempt, RefreshReason, RefreshSchedule};
use status::{SharedStatus, Status};

/// The directories, cluster objects and interfaces that the agent watches, beside the token and the
/// installed files.
#[derive(Debug, Default)]
pub struct Watched<'a> {
    /// The mounted directories of the node. The agent ends when one of them is removed on the node.
    pub directories: Vec<PathBuf>,
    /// The API group of Calico's objects. The agent ends when they move to another group; with
    /// `None`, it does not look for such a move.
    pub group: Option<ApiGroupWatch>,
    /// The Node whose Ready condition is read; `None` to read none.
    pub condition: Option<NodeCondition>,
    /// The node whose dead interfaces the agent removes; `None` to remove none.
    pub repair: Option<InterfaceRepair<'a>>,
}

/// The operation that installs a handler of a signal.
const WAIT: &str = "cannot wait for SIGTERM";

/// Returns the failure of an agent whose configuration of the plugins may name another API group
/// than the one with Calico's objects.
fn moved_group(previous: &str, current: &str) -> Failure {
    Failure::new(format_args!(
        "Calico's objects moved from the API group {previous} to {current}"
    ))
    .way_out(format!(
        "the agent ends, so that its container starts again for {current}"
    ))
}

/// Returns the failure of an agent whose mount at `directory` still leads to a removed directory.
fn removed_directory(directory: &Path) -> Failure {
    Failure::new(format_args!(
        "the directory mounted at {} was removed on the node, so files written there do not reach \
         the node",
        directory.display()
    ))
    .way_out("the agent ends, so that its container starts again with the present directory")
}

/// The agent of one node.
struct Agent<F> {
    /// The source and target of the plugins' token; `None` if `CALICO_MANAGE_CNI` is false, or
    /// outside of a pod.
    token: Option<Refresher>,
    schedule: RefreshSchedule,
    /// The mounted directories of the node.
    directories: Vec<PathBuf>,
    reconcile: F,
    status: SharedStatus,
}

/// The parameters of a token request, and the kubeconfig that receives the token.
struct Refresher {
    pod: ServiceAccount,
    request: TokenRequest,
    file: PathBuf,
    projected: ProjectedToken,
    /// A received token that could not be written to `file`, and the time on the boot clock when it
    /// arrived.
    unwritten: Option<(IssuedToken, Duration)>,
}

/// Runs until SIGTERM or SIGINT and then returns at once. Files on the node stay in place: removing
/// them would break the node on every rollout of the DaemonSet.
///
/// The agent requests the plugins' token with the credentials of `pod` and writes the token to
/// `kubeconfig`. Without a pod, or if `CALICO_MANAGE_CNI` is false, the agent does not renew the
/// token (INST-50). `reconcile` restores the installed files and runs at most once a minute.
/// `replay` replays deferred DELs, `compress` compresses rotated log files, and both never return.
///
/// # Errors
/// Returns an error if the port of the probes and metrics cannot be bound, for another reason than
/// that a program uses it, if no handler of a signal can be installed, if Calico's objects move to
/// another API group, or if a mounted directory is removed on the node.
pub async fn run(
    settings: &AgentSettings,
    pod: Option<ServiceAccount>,
    kubeconfig: PathBuf,
    watched: Watched<'_>,
    reconcile: impl FnMut() -> FileCheck,
    replay: impl Future<Output = ()>,
    compress: impl Future<Output = ()>,
) -> Result<(), Failure> {
    let Watched {
        directories,
        group,
        condition,
        repair,
    } = watched;
    let (mut terminate, mut interrupt) = (
        signal(SignalKind::terminate()).or_fail(WAIT)?,
        signal(SignalKind::interrupt()).or_fail(WAIT)?,
    );
    let now = Moment::now();
    let status = SharedStatus::default();
    let token = pod
        .filter(|_| settings.manages_token)
        .map(|pod| Refresher::new(settings, pod, kubeconfig));
    if token.is_none() {
        tracing::info!(
            reason = "CALICO_MANAGE_CNI is false, or this process is not in a pod",
            "not managing the plugins' token"
        );
    }
    *status.get() = Status {
        started_at: now.boot,
        manages_token: token.is_some(),
        ..Status::default()
    };
    let listener = server::listen(settings.listen).await?;
    let serving = server::serve(settings.listen, listener, status.clone());
    let reported = status.clone();
    let watching = async {
        let Some(condition) = condition else {
            return pending().await;
        };
        condition.watch(reported).await
    };
    let repaired = status.clone();
    let repairing = async {
        let Some(repair) = repair else {
            return pending().await;
        };
        repair.watch(repaired).await
    };
    let schedule = RefreshSchedule::new(settings.pace, now);
    let mut agent = Agent {
        token,
        schedule,
        directories: directories.clone(),
        reconcile,
        status,
    };
    let moved = async {
        let Some(group) = group else {
            return pending().await;
        };
        group.wait_for_move().await
    };
    tokio::select! {
        () = agent.run_tasks() => {}
        () = replay => {}
        () = compress => {}
        () = serving => {}
        () = watching => {}
        () = repairing => {}
        (previous, current) = moved => {
            return Err(moved_group(previous.api_version(), current.api_version()));
        }
        removed = mounts::wait_for_removal(&directories) => {
            return Err(removed_directory(&removed));
        }
        _ = terminate.recv() => tracing::info!("received SIGTERM; the agent ends"),
        _ = interrupt.recv() => tracing::info!("received SIGINT; the agent ends"),
    }
    Ok(())
}

impl<F: FnMut() -> FileCheck> Agent<F> {
    /// Checks the files, and tests and renews the plugins' token, each when due. Never returns.
    async fn run_tasks(&mut self) {
        loop {
            let now = Moment::now();
            self.refresh_if_due(now).await;
            // The files come after the kubeconfig, because runtimes report the network as ready
            // once the configuration exists (INST-7).
            if self.schedule.is_repair_due(now) {
                self.check_files();
            }
            let idle = self
                .schedule
                .time_to_next(Moment::now(), self.token.is_some());
            let Some(token) = &mut self.token else {
                sleep(idle).await;
                continue;
            };
            tokio::select! {
                () = token.projected.changed() => self.renew(RefreshReason::Rotation).await,
                () = sleep(idle) => {}
            }
        }
    }

    fn check_files(&mut self) {
        let FileCheck {
            restored,
            problem,
            suspension,
            selection,
        } = (self.reconcile)();
        let mut status = self.status.get();
        status.counts.file_checks += 1;
        status.counts.restored += restored;
        if let Some(problem) = problem.as_ref().filter(|_| problem != status.file_problem) {
            tracing::error!("{problem}");
        }
        if let Some(reason) = suspension
            .as_ref()
            .filter(|_| suspension != status.suspension)
        {
            tracing::warn!("{reason}");
        }
        if let Some(problem) = selection
            .problem()
            .filter(|_| selection != status.selection)
        {
            tracing::error!("{problem}");
        }
        (status.file_problem, status.suspension, status.selection) =
            (problem, suspension, selection);
    }

    async fn refresh_if_due(&mut self, now: Moment) {
        let Some(token) = &self.token else { return };
        if let Some(reason) = self.schedule.refresh_reason(now) {
            return self.renew(reason).await;
        }
        if !self.schedule.is_check_due(now) {
            return;
        }
        match token.check().await {
            TokenCheck::Valid => self.status.get().record_answer(),
            TokenCheck::Rejected => {
                self.status.get().record_rejection();
                self.renew(RefreshReason::Rejected).await;
            }
            TokenCheck::Unanswered(reason) => {
                self.schedule.record_unanswered_check(now, fastrand::f64());
                let mut status = self.status.get();
                status.unanswered += 1;
                status.record_failure(reason);
            }
        }
    }

    /// Writes a new token to the kubeconfig, and records the success or failure of this attempt.
    /// Does nothing if this agent does not manage the token, or if a mounted directory is removed
    /// on the node.
    async fn renew(&mut self, reason: RefreshReason) {
        let Some(token) = &mut self.token else { return };
        // The kubeconfig would not reach the node. The agent ends within this pause, and the next
        // container's agent requests a token.
        if mounts::removed(&self.directories).is_some() {
            return sleep(mounts::INTERVAL).await;
        }
        // The pause before the next attempt is counted from the beginning of this one, which may
        // wait long for the response.
        let begun = Moment::now().boot;
        let outcome = token.renew(reason).await;
        let attempt = RefreshAttempt {
            at: begun,
            succeeded: outcome.is_ok(),
        };
        let mut status = self.status.get();
        status.counts.clock_jumps += u64::from(reason == RefreshReason::ClockJump);
        match outcome {
            Ok((
                IssuedToken {
                    lifetime, expires, ..
                },
                received_at,
            )) => {
                tracing::info!(
                    lifetime_seconds = lifetime.as_secs(),
                    %reason,
                    "the plugins have a new token"
                );
                status.token = Some(HeldToken {
                    received_at,
                    lifetime,
                });
                status.expires = Some(expires);
                status.is_rejected = false;
                status.counts.refreshes += 1;
                (status.last_failure, status.unanswered) = (None, 0);
            }
            Err(failure) => {
                status.counts.failures += 1;
                // An API server that rejects the request is reachable.
                status.unanswered = if failure.is_unreachable() {
                    status.unanswered + 1
                } else {
                    0
                };
                let denied = token.file.parent().and_then(UnwritableDirectory::denied);
                status.record_failure(match denied {
                    Some(directory) if matches!(failure, KubeconfigError::File(_)) => {
                        format!("{failure}; {directory}")
                    }
                    _ => failure.to_string(),
                });
            }
        }
        status.last_attempt = Some(attempt);
        status.planned_pause = self
            .schedule
            .record_attempt(attempt, status.token, fastrand::f64());
    }
}

impl Refresher {
    fn new(settings: &AgentSettings, pod: ServiceAccount, file: PathBuf) -> Self {
        let directory = pod
            .token_file
            .parent()
            .map(PathBuf::from)
            .unwrap_or_default();
        let AgentSettings {
            account,
            lifetime,
            node,
            ..
        } = settings;
        let request = TokenRequest {
            lifetime: *lifetime,
            node: node.clone(),
            ..TokenRequest::for_account(account)
        };
        Refresher {
            projected: ProjectedToken::new(directory),
            pod,
            request,
            file,
            unwritten: None,
        }
    }

    /// Writes a new token to the kubeconfig. Returns the token and the time of its arrival on the
    /// boot clock. A token that cannot be written, for example because the disk is full, is kept
    /// for the next call.
    async fn renew(
        &mut self,
        reason: RefreshReason,
    ) -> Result<(IssuedToken, Duration), KubeconfigError> {
        let kept = self.unwritten.take().filter(|(token, received_at)| {
            let held = HeldToken {
                received_at: *received_at,
                lifetime: token.lifetime,
            };
            // The pod's own token may have been replaced because of a new signing key, with which
            // the kept token is invalid.
            reason != RefreshReason::Rotation && held.is_fresh(Moment::now().boot)
        });
        let (token, received_at) = match kept {
            Some(kept) => kept,
            None => (self.request.send(&self.pod).await?, Moment::now().boot),
        };
        match kubeconfig::write(&self.file, &self.pod, token.token.reveal()) {
            Ok(_) => Ok((token, received_at)),
            Err(error) => {
                self.unwritten = Some((token, received_at));
                Err(error)
            }
        }
    }

    /// Tests the token in the plugins' kubeconfig. A missing token or an unreadable kubeconfig
    /// counts as rejected.
    async fn check(&self) -> TokenCheck {
        let text = regular_file::text(&self.file).unwrap_or_default();
        let Some(token) = kubeconfig::token(&text) else {
            return TokenCheck::Rejected;
        };
        check_token(&self.pod, token).await
    }
}

#[cfg(test)]
mod tests;

//! `calico refresh-token`: the node agent. It renews the plugins' token, repairs installed files and replays deferred
//! DELs until SIGTERM or SIGINT, or until Calico's objects move to another API group.
//!
//! ```text
//! clocks ────────────────┐
//! the pod's own token ───┼▶ schedule ──▶ TokenRequest ─▶ calico-kubeconfig
//! a test of the token ───┘        └────▶ the installed files
//!                     status ◀──────────────┘
//!                       └▶ /readiness /liveness /metrics
//! ```
//!
//! [`refresh_schedule`] decides when each action is due, and [`status`] computes the results of the probes. Neither
//! uses the network. Read them first.

mod api_group;
pub(crate) mod deferred_dels;
mod projected_token;
pub mod refresh_schedule;
mod server;
mod settings;
pub mod status;

pub use api_group::ApiGroupWatch;
pub use deferred_dels::{NodePlugins, ReplayError, ReplayPass};
pub use server::ListenError;
pub use settings::{AgentSettings, AgentSettingsError, DEFAULT_LISTEN, VARIABLES};

use std::future::pending;
use std::path::PathBuf;

use tokio::signal::unix::{SignalKind, signal};
use tokio::time::sleep;

use crate::kubeconfig;
use crate::service_account::ServiceAccount;
use crate::token::{IssuedToken, TokenCheck, TokenRequest, check_token};
use os::atomic_file::regular_file;
use projected_token::ProjectedToken;
use refresh_schedule::{HeldToken, Moment, RefreshAttempt, RefreshReason, RefreshSchedule};
pub use status::FileCheck;
use status::{SharedStatus, Status};

/// Reasons for the agent to stop, or not to start.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// The port of the probes and metrics is not available.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// Calico's objects moved to another API group, so the plugins' configuration may name the previous group.
    #[error(
        "Calico's objects moved from the API group {previous} to {current}; the agent ends, so that its container \
         starts again for {current}"
    )]
    Moved {
        /// The group when the agent started.
        previous: &'static str,
        /// The group that contains the objects now.
        current: &'static str,
    },
    /// No handler for SIGTERM or SIGINT can be installed.
    #[error("cannot wait for SIGTERM: {0}")]
    Signal(#[from] std::io::Error),
}

/// The agent of one node.
struct Agent<F> {
    /// The source and target of the plugins' token; `None` if `CALICO_MANAGE_CNI` is false, or outside of a pod.
    token: Option<Refresher>,
    schedule: RefreshSchedule,
    reconcile: F,
    status: SharedStatus,
}

/// The parameters of a token request, and the kubeconfig that receives the token.
struct Refresher {
    pod: ServiceAccount,
    request: TokenRequest,
    file: PathBuf,
    projected: ProjectedToken,
}

/// Runs until SIGTERM or SIGINT and then returns at once. Files on the node stay in place: removing them would break
/// the node on every rollout of the DaemonSet.
///
/// The agent requests the plugins' token with the credentials of `pod` and writes the token to `kubeconfig`. Without a
/// pod, or if `CALICO_MANAGE_CNI` is false, the agent does not renew the token (INST-50). `reconcile` restores the
/// installed files and runs at most once a minute. `replay` replays deferred DELs and never returns. When Calico's
/// objects move to another API group, the agent returns an error; with `group` `None`, it does not look for such a
/// move.
pub async fn run(
    settings: &AgentSettings,
    pod: Option<ServiceAccount>,
    kubeconfig: PathBuf,
    group: Option<ApiGroupWatch>,
    reconcile: impl FnMut() -> FileCheck,
    replay: impl Future<Output = ()>,
) -> Result<(), AgentError> {
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let now = Moment::now();
    let status = SharedStatus::default();
    let token = pod.filter(|_| settings.manages_token).map(|pod| Refresher::new(settings, pod, kubeconfig));
    if token.is_none() {
        tracing::info!("not managing the plugins' token: CALICO_MANAGE_CNI is false or this process is not in a pod");
    }
    *status.get() = Status { started_at: now.boot, manages_token: token.is_some(), ..Status::default() };
    let listener = server::listen(settings.listen).await?;
    let serving = server::serve(listener, status.clone());
    let mut agent = Agent { token, schedule: RefreshSchedule::new(settings.pace, now), reconcile, status };
    let moved = async {
        match group {
            Some(group) => group.wait_for_move().await,
            None => pending().await,
        }
    };
    tokio::select! {
        () = agent.run_tasks() => {}
        () = replay => {}
        () = serving => {}
        (previous, current) = moved => {
            return Err(AgentError::Moved { previous: previous.api_version(), current: current.api_version() });
        }
        _ = terminate.recv() => tracing::info!("received SIGTERM; the agent ends"),
        _ = interrupt.recv() => tracing::info!("received SIGINT; the agent ends"),
    }
    Ok(())
}

impl<F: FnMut() -> FileCheck> Agent<F> {
    /// Checks the files, tests the plugins' token and renews it, each when due. Renews the token also when the pod's
    /// own token changes. Never returns.
    async fn run_tasks(&mut self) {
        loop {
            let now = Moment::now();
            if self.schedule.is_repair_due(now) {
                self.check_files();
            }
            self.refresh_if_due(now).await;
            let idle = self.schedule.time_to_next(Moment::now(), self.token.is_some());
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
        let FileCheck { restored, problem } = (self.reconcile)();
        let mut status = self.status.get();
        status.counts.restored += restored;
        if let Some(problem) = problem.as_ref().filter(|_| problem != status.file_problem) {
            tracing::error!("{problem}");
        }
        status.file_problem = problem;
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
                self.status.get().counts.rejected += 1;
                self.renew(RefreshReason::Rejected).await;
            }
            TokenCheck::Unanswered(reason) => {
                let mut status = self.status.get();
                status.unanswered += 1;
                status.record_failure(reason);
            }
        }
    }

    /// Requests a token, writes it to the kubeconfig, and records the success or failure of this attempt. Does nothing
    /// if this agent does not manage the token.
    async fn renew(&mut self, reason: RefreshReason) {
        let Some(token) = &self.token else { return };
        let outcome = kubeconfig::renew(&token.file, &token.pod, &token.request).await;
        let now = Moment::now().boot;
        let attempt = RefreshAttempt { at: now, succeeded: outcome.is_ok() };
        let mut status = self.status.get();
        status.counts.clock_jumps += u64::from(reason == RefreshReason::ClockJump);
        match outcome {
            Ok((IssuedToken { lifetime, expires, .. }, _)) => {
                tracing::info!("the plugins have a new token, valid for {} s: {reason}", lifetime.as_secs());
                status.token = Some(HeldToken { received_at: now, lifetime });
                status.expires = Some(expires);
                status.counts.refreshes += 1;
                (status.last_failure, status.unanswered) = (None, 0);
            }
            Err(failure) => {
                status.counts.failures += 1;
                // An API server that rejects the request is reachable.
                status.unanswered = if failure.is_unreachable() { status.unanswered + 1 } else { 0 };
                status.record_failure(failure.to_string());
            }
        }
        status.last_attempt = Some(attempt);
        status.planned_pause = self.schedule.record_attempt(attempt, status.token, fastrand::f64());
    }
}

impl Refresher {
    fn new(settings: &AgentSettings, pod: ServiceAccount, file: PathBuf) -> Self {
        let directory = pod.token_file.parent().map(PathBuf::from).unwrap_or_default();
        let request = TokenRequest { lifetime: settings.lifetime, ..TokenRequest::for_account(&settings.account) };
        Refresher { projected: ProjectedToken::new(directory), pod, request, file }
    }

    /// Tests the token in the plugins' kubeconfig. A missing token or an unreadable kubeconfig counts as rejected.
    async fn check(&self) -> TokenCheck {
        let text = regular_file::text(&self.file).unwrap_or_default();
        let Some(token) = kubeconfig::token(&text) else { return TokenCheck::Rejected };
        check_token(&self.pod, token).await
    }
}

#[cfg(test)]
mod tests;

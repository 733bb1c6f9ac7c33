//! [`Watchdog`]: detects work that is stuck.
//!
//! Work makes progress when an event wakes it: a response, the deadline of a request, or the end of
//! a pause. Each of these arrives within minutes, even during an outage. Work that has not been
//! woken for longer is spinning, blocks its thread, or waits for an event that never comes.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use futures::task::AtomicWaker;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::{Component, Status};
use crate::in_progress::InProgress;

/// Time without progress after which work counts as stuck. Longer than any deadline, and longer
/// than garbage collection waits for its turn at one request per second.
const STUCK_AFTER: Duration = Duration::from_secs(900);
const CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// The work in progress. All clones share it.
#[derive(Clone, Default)]
pub struct Watchdog(InProgress<Arc<Progress>>);

struct Progress {
    description: String,
    last: Mutex<Instant>,
    task: AtomicWaker,
}

impl Watchdog {
    /// Runs `work` under observation, with a description for the log. Only wakeups of `work` itself
    /// count as progress, not wakeups of other futures in the same task.
    pub async fn observe<F: Future>(&self, description: String, work: F) -> F::Output {
        let progress = Arc::new(Progress {
            description,
            last: Mutex::new(Instant::now()),
            task: AtomicWaker::new(),
        });
        let waker = Waker::from(progress.clone());
        let _observed = self.0.begin(progress.clone());
        let mut work = pin!(work);
        poll_fn(|context| {
            progress.task.register(context.waker());
            work.as_mut().poll(&mut Context::from_waker(&waker))
        })
        .await
    }

    /// Keeps [`Component::Work`] of `status`, and with it liveness, up to date until `stop`.
    pub(crate) async fn watch(self, status: Status, stop: CancellationToken) {
        let checks = async {
            loop {
                match self.stuck_work() {
                    Some(description) => {
                        let reason = format!(
                            "{description} has made no progress for {STUCK_AFTER:?}; liveness \
                             fails until the work continues or the process is restarted"
                        );
                        if status.not_ready(Component::Work, &*reason) {
                            tracing::error!("{reason}");
                        }
                    }
                    None => status.remove(Component::Work),
                }
                sleep(CHECK_INTERVAL).await;
            }
        };
        stop.run_until_cancelled(checks).await;
    }

    /// Returns the description of work that is stuck, if there is any.
    pub(crate) fn stuck_work(&self) -> Option<String> {
        let mut all = self.0.values().into_iter();
        let stuck = all.find(|progress| progress.last().elapsed() > STUCK_AFTER)?;
        Some(stuck.description.clone())
    }
}

impl Progress {
    fn last(&self) -> MutexGuard<'_, Instant> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Wake for Progress {
    fn wake(self: Arc<Self>) {
        *self.last() = Instant::now();
        self.task.wake();
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    /// Returns the liveness at intervals of 100 s for an hour, while `work` runs.
    async fn liveness(work: impl Future<Output = ()>) -> Vec<bool> {
        let directory = tempfile::tempdir().expect("a directory");
        let status = Status::new(directory.path().join("status.json"));
        let watchdog = Watchdog::default();
        let mut live = Vec::new();
        tokio::select! {
            () = watchdog.clone().watch(status.clone(), CancellationToken::new()) => {}
            // A future beside the work wakes the same task again and again.
            () = async { loop { sleep(CHECK_INTERVAL).await } } => {}
            () = async {
                watchdog.observe("garbage collection".into(), work).await;
                pending().await
            } => {}
            () = async {
                for _ in 0..36 {
                    sleep(Duration::from_secs(100)).await;
                    live.push(status.is_live());
                }
            } => {}
        }
        live
    }

    #[tokio::test(start_paused = true)]
    async fn stalled_work_fails_liveness_after_its_limit() {
        let live = liveness(pending()).await;
        assert_eq!(live.iter().filter(|live| **live).count(), 9, "{live:?}");
        assert_eq!(live.last(), Some(&false));
    }

    #[tokio::test(start_paused = true)]
    async fn timeouts_and_pauses_count_as_progress() {
        let outage = async {
            loop {
                let _ = tokio::time::timeout(MINUTE, pending::<()>()).await;
                sleep(MINUTE / 2).await;
            }
        };
        assert!(liveness(outage).await.iter().all(|live| *live));
    }

    #[tokio::test(start_paused = true)]
    async fn ended_work_does_not_fail_liveness() {
        assert!(liveness(async {}).await.iter().all(|live| *live));
    }

    #[tokio::test(start_paused = true)]
    async fn resumed_work_restores_liveness() {
        let live = liveness(async {
            sleep(STUCK_AFTER * 2).await;
            sleep(MINUTE).await;
        })
        .await;
        assert!(
            live.contains(&false) && live.last() == Some(&true),
            "{live:?}"
        );
    }
}

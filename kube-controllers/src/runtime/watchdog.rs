//! [`Watchdog`]: notices work that neither ends nor waits for anything that comes.
//!
//! Work moves when something that it waits for wakes it: an answer, the deadline of a request, the end of a pause. Each
//! of these comes within minutes, whatever servers do. Work that was not woken for longer spins, blocks its thread, or
//! waits for what never comes.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use futures::task::AtomicWaker;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::status::{Component, Status};

/// Longer than any deadline, and than garbage collection waits for its turn at one request per second.
const LIMIT: Duration = Duration::from_secs(900);
/// How often the work is looked at.
const PERIOD: Duration = Duration::from_secs(5);

/// The work that is under way. Clones are the same.
#[derive(Clone, Default)]
pub struct Watchdog(Arc<Mutex<UnderWay>>);

#[derive(Default)]
struct UnderWay {
    next: u64,
    moves: BTreeMap<u64, Arc<Moves>>,
}

/// When one piece of work moved.
struct Moves {
    what: String,
    last: Mutex<Instant>,
    task: AtomicWaker,
}

impl Watchdog {
    /// Does `work`, which is `what` in words, under observation. What wakes others of the task beside it is no move of
    /// it.
    pub async fn observe<F: Future>(&self, what: String, work: F) -> F::Output {
        let moves = Arc::new(Moves { what, last: Mutex::new(Instant::now()), task: AtomicWaker::new() });
        let waker = Waker::from(moves.clone());
        let _observed = self.enter(moves.clone());
        let mut work = pin!(work);
        poll_fn(|context| {
            moves.task.register(context.waker());
            work.as_mut().poll(&mut Context::from_waker(&waker))
        })
        .await
    }

    /// Keeps [`Component::Work`] of `status`, and with it liveness, until `stop`.
    pub(crate) async fn watch(self, status: Status, stop: CancellationToken) {
        let looking = async {
            loop {
                match self.stuck() {
                    Some(what) => {
                        let reason = format!("{what} has not moved for {LIMIT:?}: the process is to be restarted");
                        if status.not_ready(Component::Work, &*reason) {
                            tracing::error!("{reason}");
                        }
                    }
                    None => status.forget(Component::Work),
                }
                sleep(PERIOD).await;
            }
        };
        stop.run_until_cancelled(looking).await;
    }

    /// What has not moved for too long, if there is such.
    pub(super) fn stuck(&self) -> Option<String> {
        let under_way = self.under_way();
        let stuck = under_way.moves.values().find(|moves| moves.last().elapsed() > LIMIT);
        stuck.map(|moves| moves.what.clone())
    }

    fn enter(&self, moves: Arc<Moves>) -> impl Drop + use<> {
        let mut under_way = self.under_way();
        let number = under_way.next;
        under_way.next += 1;
        under_way.moves.insert(number, moves);
        Observed { watchdog: self.clone(), number }
    }

    fn under_way(&self) -> MutexGuard<'_, UnderWay> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Takes work off the list when it has ended or was dropped.
struct Observed {
    watchdog: Watchdog,
    number: u64,
}

impl Drop for Observed {
    fn drop(&mut self) {
        self.watchdog.under_way().moves.remove(&self.number);
    }
}

impl Moves {
    fn last(&self) -> MutexGuard<'_, Instant> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Wake for Moves {
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

    /// Whether it is live, each 100 s of an hour, while `work` is under way.
    async fn liveness(work: impl Future<Output = ()>) -> Vec<bool> {
        let directory = tempfile::tempdir().expect("a directory");
        let status = Status::new(directory.path().join("status.json"));
        let watchdog = Watchdog::default();
        let mut live = Vec::new();
        tokio::select! {
            () = watchdog.clone().watch(status.clone(), CancellationToken::new()) => {}
            // Something beside it wakes the task again and again.
            () = async { loop { sleep(PERIOD).await } } => {}
            () = async { watchdog.observe("garbage collection".into(), work).await; pending().await } => {}
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
    async fn work_that_waits_for_what_never_comes_fails_liveness_after_its_limit() {
        let live = liveness(pending()).await;
        assert_eq!(live.iter().filter(|live| **live).count(), 9, "{live:?}");
        assert_eq!(live.last(), Some(&false));
    }

    #[tokio::test(start_paused = true)]
    async fn answers_deadlines_and_pauses_keep_work_alive_for_ever() {
        let outage = async {
            loop {
                let _ = tokio::time::timeout(MINUTE, pending::<()>()).await;
                sleep(MINUTE / 2).await;
            }
        };
        assert!(liveness(outage).await.iter().all(|live| *live));
    }

    #[tokio::test(start_paused = true)]
    async fn work_that_has_ended_is_not_observed() {
        assert!(liveness(async {}).await.iter().all(|live| *live));
    }

    #[tokio::test(start_paused = true)]
    async fn work_that_moves_again_is_live_again() {
        let live = liveness(async {
            sleep(LIMIT * 2).await;
            sleep(MINUTE).await;
        })
        .await;
        assert!(live.contains(&false) && live.last() == Some(&true), "{live:?}");
    }
}

//! Workers, which take keys from a queue and put failed keys back with a growing delay.

use std::any::Any;
use std::fmt::{Debug, Display};
use std::hash::Hash;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use datastore::watch::WatchFailure;
use futures::FutureExt;
use futures::future::join_all;
use libcalico::store::StoreError;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::backoff::Backoff;
use super::queue::Taken;
use super::{Leadership, Queue, Watchdog};
use crate::context::Context;
use crate::telemetry::Work;

/// Time limit for the current keys after `context.stop`. Every write that was sent has its response by
/// then.
const DRAIN: Duration = Duration::from_secs(5);
/// Number of failures in a row that are normal and not worth a warning, such as a conflict or a restarted server.
const EXPECTED_FAILURES: u32 = 5;

/// The work of a controller on one key. Level-triggered: read the current state, and write the objects that differ from
/// the desired state. The future may be dropped at any await.
pub trait Reconcile: Send + Sync + 'static {
    /// The controller's name in logs and metrics.
    const NAME: &'static str;
    /// Identifier of one unit of work.
    type Key: Clone + Eq + Hash + Display + Debug + Send + Sync + 'static;

    /// Brings the objects of `key` to the desired state. A panic counts as a failure that may succeed later.
    fn reconcile(&self, key: &Self::Key) -> impl Future<Output = Result<Next, Failure>> + Send;
}

/// The time at which a key that succeeded is processed again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// At the next event.
    Done,
    /// After this time, or earlier at an event.
    After(Duration),
}

/// The reason why a key failed.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// A failure that may go away, such as a conflict or an unreachable server. Retried with a growing delay.
    #[error("{0}")]
    Retry(String),
    /// A failure that lasts until an object changes, such as an invalid object. Not retried; the next event or full
    /// pass adds the key again.
    #[error("{0}")]
    Permanent(String),
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Failure::Retry(error.to_string())
    }
}

impl From<WatchFailure> for Failure {
    fn from(failure: WatchFailure) -> Self {
        Failure::Retry(failure.to_string())
    }
}

/// Processes `queue` with `workers` tasks, at least one, while this replica is the leader, until `context.stop`.
///
/// While this replica is not the leader, keys accumulate in the queue. When leadership is lost, current work stops at
/// its next await ([`Leadership::while_held`]), and its key returns to the queue. After `context.stop` no key is taken,
/// and the current keys have 5 s to finish.
pub async fn run<R: Reconcile>(reconciler: Arc<R>, queue: Queue<R::Key>, workers: usize, context: Context) {
    let (work, watchdog) = (context.metrics.work(R::NAME), context.metrics.watchdog().clone());
    let crew = Crew { reconciler, queue, backoff: Mutex::default(), work, watchdog };
    crew.run(workers, context.leadership, context.stop).await;
}

/// The state that the workers of one controller share.
struct Crew<R: Reconcile> {
    reconciler: Arc<R>,
    queue: Queue<R::Key>,
    backoff: Mutex<Backoff<R::Key>>,
    work: Work,
    watchdog: Watchdog,
}

impl<R: Reconcile> Crew<R> {
    async fn run(self, workers: usize, leadership: Leadership, stop: CancellationToken) {
        self.queue.show_depth(self.work.depth.clone());
        let crew = Arc::new(self);
        let tasks: Vec<_> = (0..workers.max(1))
            // Each worker is a task of its own, so that the workers use several cores. The tasks are aborted when this
            // future is dropped.
            .map(|_| AbortOnDropHandle::new(tokio::spawn(crew.clone().worker(leadership.clone(), stop.clone()))))
            .collect();
        join_all(tasks).await;
    }

    async fn worker(self: Arc<Self>, mut leadership: Leadership, stop: CancellationToken) {
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                () = leadership.gained() => {}
            }
            let taken = tokio::select! {
                biased;
                () = stop.cancelled() => return,
                () = leadership.lost() => continue,
                taken = self.queue.take_next() => taken,
            };
            self.handle(taken, &leadership, &stop).await;
        }
    }

    /// Processes one key, and returns it to the queue even if this future is dropped.
    async fn handle(&self, taken: Taken<R::Key>, leadership: &Leadership, stop: &CancellationToken) {
        let mut held = Held { queue: &self.queue, key: taken.key, concluded: false };
        self.work.waited.observe(taken.waited.as_secs_f64());
        let begin = Instant::now();
        let work = self.watchdog.observe(format!("{} {}", R::NAME, held.key), self.reconcile(&held.key));
        let outcome = tokio::select! {
            biased;
            outcome = leadership.while_held(work) => outcome,
            () = drained(stop) => None,
        };
        let Some(outcome) = outcome else {
            tracing::info!(controller = R::NAME, key = %held.key, "dropped: not allowed to write any more");
            return;
        };
        self.work.duration.observe(begin.elapsed().as_secs_f64());
        self.conclude(&held.key, outcome);
        held.concluded = true;
    }

    async fn reconcile(&self, key: &R::Key) -> Result<Next, Failure> {
        // Safe: state that a reconciler shares is behind locks, which record the panic by their poisoning.
        match AssertUnwindSafe(async { self.reconciler.reconcile(key).await }).catch_unwind().await {
            Ok(outcome) => outcome,
            Err(panic) => {
                self.work.panics.inc();
                Err(Failure::Retry(format!("panicked: {}", words(&*panic))))
            }
        }
    }

    fn conclude(&self, key: &R::Key, outcome: Result<Next, Failure>) {
        let mut backoff = self.backoff.lock().unwrap_or_else(PoisonError::into_inner);
        match outcome {
            Ok(next) => {
                backoff.forget(key);
                if let Next::After(delay) = next {
                    self.queue.add_after(key.clone(), delay);
                }
            }
            Err(Failure::Permanent(reason)) => {
                backoff.forget(key);
                self.work.permanent_failures.inc();
                tracing::warn!(controller = R::NAME, %key, "cannot be done until something changes: {reason}");
            }
            Err(Failure::Retry(reason)) => {
                let failed = backoff.failed(key, fastrand::f64());
                self.work.retries.inc();
                if failed.times > EXPECTED_FAILURES {
                    tracing::warn!(controller = R::NAME, %key, times = failed.times, "failed, trying again in {:?}: {reason}", failed.delay);
                } else {
                    tracing::debug!(controller = R::NAME, %key, times = failed.times, "failed, trying again in {:?}: {reason}", failed.delay);
                }
                self.queue.add_after(key.clone(), failed.delay);
            }
        }
    }
}

/// A key that a worker is processing. Dropping the value marks the key as done, and adds it to the queue again if its
/// processing was not concluded. So a canceled worker loses no key.
struct Held<'a, K: Clone + Eq + Hash + Send + 'static> {
    queue: &'a Queue<K>,
    key: K,
    concluded: bool,
}

impl<K: Clone + Eq + Hash + Send + 'static> Drop for Held<'_, K> {
    fn drop(&mut self) {
        if !self.concluded {
            self.queue.add(self.key.clone());
        }
        self.queue.done(&self.key);
    }
}

/// Waits for `stop`, then for [`DRAIN`].
async fn drained(stop: &CancellationToken) {
    stop.cancelled().await;
    sleep(DRAIN).await;
}

/// Returns the message of a panic.
fn words(panic: &(dyn Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("something that is no text")
}

#[cfg(test)]
mod tests;

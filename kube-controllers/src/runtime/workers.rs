//! Workers: they take keys from a queue, and put those that failed back with growing delay.

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

/// How long the key under way may take after the process was told to stop: a write that was sent has its answer by
/// then.
const DRAIN: Duration = Duration::from_secs(5);
/// Failures in a row that are no news: two writers met, a server was restarted.
const EXPECTED_FAILURES: u32 = 5;

/// What a controller does with one key. Level-triggered: look at what is, write what is not yet as it should be, and
/// nothing else. It may be cut off at any await.
pub trait Reconcile: Send + Sync + 'static {
    /// As it is named in logs and metrics.
    const NAME: &'static str;
    /// What names one piece of work.
    type Key: Clone + Eq + Hash + Display + Debug + Send + Sync + 'static;

    /// Brings `key` in order. A panic counts as a failure that may succeed later.
    fn reconcile(&self, key: &Self::Key) -> impl Future<Output = Result<Next, Failure>> + Send;
}

/// When a key that succeeded is to be looked at again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// When something happens.
    Done,
    /// Then, at the latest.
    After(Duration),
}

/// Why a key failed.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// May succeed later: a conflict, a server that is away. Retried with growing delay.
    #[error("{0}")]
    Retry(String),
    /// Will not succeed before something changes: an invalid object. Not retried; the next event or full pass brings it
    /// again.
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

/// Works on `queue` with `workers` tasks, at least one, while this replica leads, until `context.stop`.
///
/// While it does not lead nothing is taken, and keys gather. When the leadership is lost, work under way goes no
/// further than its next await ([`Leadership::while_held`]), and its key waits again. After `context.stop` nothing more
/// is taken, and the keys under way have 5 s.
pub async fn run<R: Reconcile>(reconciler: Arc<R>, queue: Queue<R::Key>, workers: usize, context: Context) {
    let (work, watchdog) = (context.metrics.work(R::NAME), context.metrics.watchdog().clone());
    let crew = Crew { reconciler, queue, backoff: Mutex::default(), work, watchdog };
    crew.run(workers, context.leadership, context.stop).await;
}

/// What the workers of one controller share.
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
            // A task of its own for each: they use as many cores. They end with this future.
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

    /// Works on one key and gives it back, whatever happens to this future.
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
        // What a reconciler shares with others is behind locks, which say by themselves that a panic happened.
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

/// A key in a worker's hands. Given back when dropped: a worker that is cut off does not keep it, and what it did not
/// conclude waits again.
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

/// Ends [`DRAIN`] after `stop`.
async fn drained(stop: &CancellationToken) {
    stop.cancelled().await;
    sleep(DRAIN).await;
}

/// What a panic said.
fn words(panic: &(dyn Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("something that is no text")
}

#[cfg(test)]
mod tests;

//! Workers, which take keys from a queue and put failed keys back with a growing delay.

use std::collections::HashMap;
use std::hash::Hash;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::FutureExt;
use futures::future::join_all;
use libcalico::backoff::{Backoff, Jitter};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::queue::{Queue, TakenKey};
use super::{NextReconcile, Reconcile, ReconcileError};
use crate::context::Context;
use crate::in_progress::{InProgress, UnitInProgress};
use crate::leader::Leadership;
use crate::logging::panic_message;
use crate::status::Watchdog;
use crate::telemetry::{ReconcileMetrics, ReconcileResult, WorkerMetrics};

/// Time limit for the current keys after `context.stop`. Most writes that were sent have their
/// responses by then.
const STOP_DEADLINE: Duration = Duration::from_secs(5);
/// Number of failures in a row that are normal and not worth a warning, such as a conflict or a
/// restarted server.
const EXPECTED_FAILURES: u32 = 5;
/// Delay after the first failure, as in client-go. Most conflicts are resolved by then.
const FIRST_DELAY: Duration = Duration::from_millis(5);
/// Longest delay. client-go waits up to 1000 s, which would delay keys long after an outage of some
/// minutes has ended. An attempt every half a minute costs little.
const LONGEST_DELAY: Duration = Duration::from_secs(30);
const RETRY_BACKOFF: Backoff = Backoff {
    first: FIRST_DELAY,
    longest: LONGEST_DELAY,
    jitter: Jitter::Half,
};

/// Processes `queue` with `workers` tasks, at least one, while this replica may write, until
/// `context.stop`.
///
/// While this replica may not write, keys accumulate in the queue, and the metrics show an empty
/// queue. When the right to write is lost, current work stops at its next await
/// ([`Leadership::while_held`]), and its key returns to the queue. After `context.stop` no key is
/// taken, and the current keys have 5 s to finish.
pub async fn run<R: Reconcile>(
    reconciler: Arc<R>,
    queue: Queue<R::Key>,
    workers: usize,
    context: Context,
) {
    let (metrics, reconciles) = (
        context.metrics.worker(R::NAME),
        context.metrics.reconciles(R::NAME),
    );
    let watchdog = context.watchdog;
    let pool = WorkerPool {
        reconciler,
        queue,
        backoff: Mutex::default(),
        metrics,
        in_progress: context.metrics.in_progress(R::NAME),
        reconciles,
        watchdog,
    };
    pool.run(workers, context.leadership, context.stop).await;
}

struct WorkerPool<R: Reconcile> {
    reconciler: Arc<R>,
    queue: Queue<R::Key>,
    backoff: Mutex<KeyBackoff<R::Key>>,
    metrics: WorkerMetrics,
    in_progress: InProgress<Instant>,
    reconciles: ReconcileMetrics,
    watchdog: Watchdog,
}

impl<R: Reconcile> WorkerPool<R> {
    async fn run(self, workers: usize, leadership: Leadership, stop: CancellationToken) {
        self.queue.publish(self.metrics.clone());
        let pool = Arc::new(self);
        let tasks: Vec<_> = (0..workers.max(1))
            // Each worker is a task of its own, so that the workers use several cores. The tasks
            // are aborted when this future is dropped.
            .map(|_| {
                AbortOnDropHandle::new(tokio::spawn(
                    pool.clone().worker(leadership.clone(), stop.clone()),
                ))
            })
            .collect();
        join_all(tasks).await;
        // The metrics outlive the queue.
        pool.queue.stand_by();
    }

    async fn worker(self: Arc<Self>, mut leadership: Leadership, stop: CancellationToken) {
        loop {
            if !leadership.holds() {
                self.queue.stand_by();
            }
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                () = leadership.gained() => self.queue.lead(),
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

    /// Processes one key. If the work is canceled, also because this future is dropped, the key
    /// returns to the queue.
    async fn handle(
        &self,
        taken: TakenKey<R::Key>,
        leadership: &Leadership,
        stop: &CancellationToken,
    ) {
        let unit = self.in_progress.begin(Instant::now());
        let mut in_progress = KeyInProgress {
            queue: &self.queue,
            key: taken.key,
            is_recorded: false,
            _unit: unit,
        };
        self.metrics.waited.observe(taken.waited.as_secs_f64());
        let begin = Instant::now();
        let work = self.watchdog.observe(
            format!("{} {}", R::NAME, in_progress.key),
            self.reconcile(&in_progress.key),
        );
        let outcome = tokio::select! {
            biased;
            outcome = leadership.while_held(work) => outcome,
            () = stop_deadline_passed(stop) => None,
        };
        let Some(outcome) = outcome else {
            tracing::info!(
                controller = R::NAME, key = %in_progress.key,
                reason = "this replica may not write, or is stopping",
                "canceled the work on a key, which returns to the queue"
            );
            return;
        };
        let took = begin.elapsed();
        self.metrics.duration.observe(took.as_secs_f64());
        self.reconciles.record(result_of(&outcome), took);
        self.record_outcome(&in_progress.key, outcome);
        in_progress.is_recorded = true;
    }

    async fn reconcile(&self, key: &R::Key) -> Result<NextReconcile, ReconcileError> {
        // Unwind-safe, because the state that a reconciler shares is behind locks, which stay
        // usable after a panic.
        match AssertUnwindSafe(async { self.reconciler.reconcile(key).await })
            .catch_unwind()
            .await
        {
            Ok(outcome) => outcome,
            Err(panic) => {
                self.metrics.panics.inc();
                let message = panic_message(&*panic).unwrap_or("a value that is not a text");
                Err(ReconcileError::Retry(format!("panicked: {message}")))
            }
        }
    }

    fn record_outcome(&self, key: &R::Key, outcome: Result<NextReconcile, ReconcileError>) {
        let mut backoff = self.backoff.lock().unwrap_or_else(PoisonError::into_inner);
        match outcome {
            Ok(next) => {
                backoff.reset(key);
                if let NextReconcile::After(delay) = next {
                    self.queue.add_after(key.clone(), delay);
                }
            }
            Err(ReconcileError::Permanent(reason)) => {
                backoff.reset(key);
                self.metrics.permanent_failures.inc();
                tracing::warn!(
                    controller = R::NAME, %key, %reason,
                    "failed; trying again when all keys are queued, or after a change"
                );
            }
            Err(ReconcileError::Retry(reason)) => {
                let KeyFailure { times, delay } = backoff.failed(key, fastrand::f64());
                self.metrics.retries.inc();
                if times > EXPECTED_FAILURES {
                    tracing::warn!(
                        controller = R::NAME, %key, times,
                        "failed, trying again in {delay:?}: {reason}",
                    );
                } else {
                    tracing::debug!(
                        controller = R::NAME, %key, times,
                        "failed, trying again in {delay:?}: {reason}",
                    );
                }
                self.queue.add_after(key.clone(), delay);
            }
        }
    }
}

/// A key that a worker is processing. Dropping the value marks the key as done, or returns it to
/// the queue if its processing was not concluded. So a canceled worker loses no key.
struct KeyInProgress<'a, K: Clone + Eq + Hash + Send + 'static> {
    queue: &'a Queue<K>,
    key: K,
    is_recorded: bool,
    _unit: UnitInProgress<Instant>,
}

impl<K: Clone + Eq + Hash + Send + 'static> Drop for KeyInProgress<'_, K> {
    fn drop(&mut self) {
        if self.is_recorded {
            self.queue.done(&self.key);
        } else {
            self.queue.put_back(&self.key);
        }
    }
}

#[derive(Debug)]
struct KeyBackoff<K> {
    failures: HashMap<K, u32>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct KeyFailure {
    /// Number of failures in a row, including this failure.
    times: u32,
    delay: Duration,
}

impl<K> Default for KeyBackoff<K> {
    fn default() -> Self {
        KeyBackoff {
            failures: HashMap::new(),
        }
    }
}

impl<K: Clone + Eq + Hash> KeyBackoff<K> {
    /// Records a failure of the key. `random` is uniform over 0..1 and spreads the delays, so that
    /// keys that failed together are not retried together.
    fn failed(&mut self, key: &K, random: f64) -> KeyFailure {
        let times = self.failures.entry(key.clone()).or_insert(0);
        *times = times.saturating_add(1);
        KeyFailure {
            times: *times,
            delay: RETRY_BACKOFF.pause(*times, random),
        }
    }

    /// Resets the key: it succeeded or is not retried.
    fn reset(&mut self, key: &K) {
        self.failures.remove(key);
    }
}

fn result_of(outcome: &Result<NextReconcile, ReconcileError>) -> ReconcileResult {
    match outcome {
        Ok(NextReconcile::AwaitChange) => ReconcileResult::Success,
        Ok(NextReconcile::After(_)) => ReconcileResult::RequeueAfter,
        Err(ReconcileError::Retry(_)) => ReconcileResult::Error,
        Err(ReconcileError::Permanent(_)) => ReconcileResult::TerminalError,
    }
}

/// Waits for `stop`, then for [`STOP_DEADLINE`].
async fn stop_deadline_passed(stop: &CancellationToken) {
    stop.cancelled().await;
    sleep(STOP_DEADLINE).await;
}

#[cfg(test)]
mod tests;

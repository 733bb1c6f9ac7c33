use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::{Semaphore, watch};
use tokio::task::JoinHandle;
use tokio::time::advance;

use super::*;
use crate::leader::{Deadline, LeadershipTerm};
use crate::telemetry::Metrics;

/// A reconciler that treats each key as the key's name says, and counts its calls.
struct Scripted {
    calls: Mutex<Vec<(&'static str, Duration)>>,
    begin: Instant,
    busy: AtomicUsize,
    most_busy: AtomicUsize,
    finished: AtomicUsize,
    /// Each permit lets one key named `slow` finish.
    gate: Semaphore,
}

impl Reconcile for Scripted {
    const NAME: &'static str = "scripted";
    type Key = &'static str;

    async fn reconcile(&self, key: &&'static str) -> Result<NextReconcile, ReconcileError> {
        let count = {
            let mut calls = self.calls.lock().expect("no panic under the lock");
            calls.push((key, self.begin.elapsed()));
            calls.iter().filter(|(other, _)| other == key).count()
        };
        let busy = self.busy.fetch_add(1, Ordering::SeqCst) + 1;
        let _left = scopeguard(&self.busy);
        self.most_busy.fetch_max(busy, Ordering::SeqCst);
        match *key {
            "fails three times" if count <= 3 => return Err(ReconcileError::Retry("busy".into())),
            "invalid" => return Err(ReconcileError::Permanent("no such thing".into())),
            "panics once" if count == 1 => panic!("out of range"),
            "every minute" => return Ok(NextReconcile::After(Duration::from_secs(60))),
            key if key.starts_with("slow") => self.gate.acquire().await.expect("open").forget(),
            _ => {}
        }
        self.finished.fetch_add(1, Ordering::SeqCst);
        Ok(NextReconcile::AwaitChange)
    }
}

/// Returns a guard that decrements `busy` when dropped, so that a canceled future no longer counts
/// as busy.
fn scopeguard(busy: &AtomicUsize) -> impl Drop + '_ {
    struct Leaves<'a>(&'a AtomicUsize);
    impl Drop for Leaves<'_> {
        fn drop(&mut self) {
            self.0.fetch_sub(1, Ordering::SeqCst);
        }
    }
    Leaves(busy)
}

struct Bench {
    scripted: Arc<Scripted>,
    queue: Queue<&'static str>,
    term: watch::Sender<LeadershipTerm>,
    stop: CancellationToken,
    metrics: WorkerMetrics,
    /// The metrics of the process, of which `metrics` is a part.
    process: Metrics,
    watchdog: Watchdog,
    run: JoinHandle<()>,
}

impl Bench {
    fn new(workers: usize, term: LeadershipTerm) -> Self {
        let scripted = Arc::new(Scripted {
            calls: Mutex::default(),
            begin: Instant::now(),
            busy: AtomicUsize::new(0),
            most_busy: AtomicUsize::new(0),
            finished: AtomicUsize::new(0),
            gate: Semaphore::new(0),
        });
        let (term, leadership) = watch::channel(term);
        let (queue, stop, process) = (Queue::default(), CancellationToken::new(), Metrics::new());
        let metrics = process.worker("scripted");
        let watchdog = Watchdog::default();
        let (reconciler, queued) = (scripted.clone(), queue.clone());
        let pool = WorkerPool {
            reconciler,
            queue: queued,
            backoff: Mutex::default(),
            metrics: metrics.clone(),
            in_progress: process.in_progress("scripted"),
            reconciles: process.reconciles("scripted"),
            watchdog: watchdog.clone(),
        };
        let run = tokio::spawn(pool.run(workers, Leadership::new(leadership), stop.clone()));
        Bench {
            scripted,
            queue,
            term,
            stop,
            metrics,
            process,
            watchdog,
            run,
        }
    }

    /// Returns the times at which `key` was processed, in milliseconds.
    fn calls(&self, key: &str) -> Vec<u128> {
        let calls = self.scripted.calls.lock().expect("no panic under the lock");
        calls
            .iter()
            .filter(|(other, _)| *other == key)
            .map(|(_, at)| at.as_millis())
            .collect()
    }

    fn finished(&self) -> usize {
        self.scripted.finished.load(Ordering::SeqCst)
    }

    /// Returns the value of a series of the controller in a scrape.
    fn scraped(&self, name: &str, more_labels: &str) -> f64 {
        let text = self.process.text().expect("encodes");
        let label = if name.starts_with("workqueue_") {
            "name"
        } else {
            "controller"
        };
        let begin = format!("{name}{{{label}=\"scripted\"{more_labels}}} ");
        let value = text.lines().find_map(|line| line.strip_prefix(&begin));
        value.expect("a sample").parse().expect("a number")
    }

    fn reconciles(&self, result: &str) -> f64 {
        self.scraped(
            "controller_runtime_reconcile_total",
            &format!(",result=\"{result}\""),
        )
    }

    fn busy(&self) -> usize {
        self.scripted.busy.load(Ordering::SeqCst)
    }
}

async fn seconds(count: u64) {
    sleep(Duration::from_secs(count)).await;
}

#[tokio::test(start_paused = true)]
async fn failed_key_is_retried_with_growing_delay_without_blocking_other_keys() {
    let bench = Bench::new(1, LeadershipTerm::Always);
    bench.queue.add("fails three times");
    bench.queue.add("fine");
    seconds(10).await;
    let calls = bench.calls("fails three times");
    assert_eq!(calls.len(), 4, "{calls:?}");
    let delays: Vec<_> = calls.windows(2).map(|pair| pair[1] - pair[0]).collect();
    // Jitter removes at most half of a delay; the clock has steps of a millisecond.
    assert!(
        delays[0] <= 6 && (5..=11).contains(&delays[1]) && (10..=21).contains(&delays[2]),
        "{delays:?}"
    );
    assert_eq!(bench.calls("fine").len(), 1);
    assert_eq!(bench.metrics.retries.get(), 3);
    assert_eq!(bench.finished(), 2);
}

#[tokio::test(start_paused = true)]
async fn invalid_object_is_retried_only_after_a_new_add() {
    let bench = Bench::new(1, LeadershipTerm::Always);
    bench.queue.add("invalid");
    seconds(3600).await;
    assert_eq!(bench.calls("invalid").len(), 1);
    bench.queue.add("invalid");
    seconds(1).await;
    assert_eq!(bench.calls("invalid").len(), 2);
    assert_eq!(
        (
            bench.metrics.permanent_failures.get(),
            bench.metrics.retries.get()
        ),
        (2, 0)
    );
}

#[tokio::test(start_paused = true)]
async fn panic_is_caught_counted_and_retried() {
    let bench = Bench::new(1, LeadershipTerm::Always);
    bench.queue.add("panics once");
    bench.queue.add("fine");
    seconds(1).await;
    assert_eq!(bench.calls("panics once").len(), 2);
    assert_eq!(bench.finished(), 2);
    assert_eq!(
        (bench.metrics.panics.get(), bench.metrics.retries.get()),
        (1, 1)
    );
}

#[tokio::test(start_paused = true)]
async fn key_is_requeued_after_the_requested_delay() {
    let bench = Bench::new(2, LeadershipTerm::Always);
    bench.queue.add("every minute");
    seconds(150).await;
    let calls: Vec<_> = bench
        .calls("every minute")
        .iter()
        .map(|at| at / 1000)
        .collect();
    assert_eq!(calls, [0, 60, 120]);
}

#[tokio::test(start_paused = true)]
async fn concurrent_keys_are_limited_to_the_workers_and_never_duplicated() {
    let bench = Bench::new(2, LeadershipTerm::Always);
    for key in ["slow 1", "slow 2", "slow 3"] {
        bench.queue.add(key);
    }
    seconds(1).await;
    assert_eq!(bench.busy(), 2);
    bench.queue.add("slow 1");
    bench.scripted.gate.add_permits(4);
    seconds(1).await;
    assert_eq!(bench.scripted.most_busy.load(Ordering::SeqCst), 2);
    assert_eq!(
        (
            bench.calls("slow 1").len(),
            bench.calls("slow 3").len(),
            bench.finished()
        ),
        (2, 1, 4)
    );
}

#[tokio::test(start_paused = true)]
async fn workers_idle_until_the_replica_is_leader() {
    let bench = Bench::new(2, LeadershipTerm::No);
    bench.queue.add("fine");
    seconds(60).await;
    assert_eq!(bench.finished(), 0);
    assert_eq!(
        (bench.queue.len(), bench.metrics.depth.get()),
        (1, 0),
        "keys gather, and the metrics do not show them"
    );
    assert_eq!(bench.metrics.adds.get(), 0);
    bench.term.send_replace(LeadershipTerm::Always);
    seconds(1).await;
    assert_eq!(
        (
            bench.finished(),
            bench.metrics.depth.get(),
            bench.metrics.adds.get()
        ),
        (1, 0, 1)
    );
    assert_eq!(
        bench.metrics.waited.get_sample_sum(),
        0.0,
        "the key did not wait for a worker"
    );
}

#[tokio::test(start_paused = true)]
async fn canceled_work_is_not_in_the_metrics_of_a_standby() {
    let bench = Bench::new(2, LeadershipTerm::Always);
    bench.queue.add("slow");
    seconds(10).await;
    let running = |bench: &Bench| {
        [
            "workqueue_unfinished_work_seconds",
            "workqueue_longest_running_processor_seconds",
        ]
        .map(|name| bench.scraped(name, "").round())
    };
    assert_eq!(running(&bench), [10.0, 10.0]);
    bench.term.send_replace(LeadershipTerm::No);
    seconds(10).await;
    bench.queue.add("fine");
    assert_eq!(running(&bench), [0.0, 0.0]);
    assert_eq!(
        (
            bench.queue.len(),
            bench.metrics.depth.get(),
            bench.metrics.adds.get()
        ),
        (2, 0, 1)
    );
    assert_eq!(
        bench.scraped("controller_runtime_reconcile_time_seconds_count", ""),
        0.0
    );
    bench.scripted.gate.add_permits(1);
    bench.term.send_replace(LeadershipTerm::Always);
    seconds(1).await;
    assert_eq!((bench.finished(), bench.metrics.adds.get()), (2, 3));
    assert_eq!(bench.reconciles("success"), 2.0);
}

#[tokio::test(start_paused = true)]
async fn reconciles_are_counted_by_their_result() {
    let bench = Bench::new(1, LeadershipTerm::Always);
    for key in [
        "fine",
        "every minute",
        "fails three times",
        "invalid",
        "panics once",
    ] {
        bench.queue.add(key);
    }
    seconds(10).await;
    let counts = ["success", "requeue_after", "error"].map(|result| bench.reconciles(result));
    // Three keys succeed in the end; the failures are three, one that lasts, and a panic.
    assert_eq!(counts, [3.0, 1.0, 5.0]);
    assert_eq!(
        bench.scraped("controller_runtime_reconcile_errors_total", ""),
        5.0
    );
    assert_eq!(
        bench.scraped("controller_runtime_terminal_reconcile_errors_total", ""),
        1.0
    );
    assert_eq!(
        bench.scraped("controller_runtime_reconcile_time_seconds_count", ""),
        9.0
    );
}

#[tokio::test(start_paused = true)]
async fn queue_of_stopped_workers_is_empty_in_the_metrics() {
    let bench = Bench::new(1, LeadershipTerm::Always);
    bench.queue.add("slow");
    bench.queue.add("fine");
    seconds(1).await;
    assert_eq!(bench.metrics.depth.get(), 1);
    bench.stop.cancel();
    seconds(10).await;
    assert!(bench.run.is_finished());
    assert_eq!((bench.queue.len(), bench.metrics.depth.get()), (2, 0));
}

#[tokio::test(start_paused = true)]
async fn work_is_dropped_when_leadership_ends_and_redone_when_regained() {
    let bench = Bench::new(1, LeadershipTerm::Always);
    bench.queue.add("slow");
    seconds(1).await;
    assert_eq!(bench.busy(), 1);
    bench.term.send_replace(LeadershipTerm::No);
    seconds(1).await;
    assert_eq!((bench.busy(), bench.finished()), (0, 0));
    bench.scripted.gate.add_permits(1);
    seconds(60).await;
    assert_eq!(bench.finished(), 0);
    bench.term.send_replace(LeadershipTerm::Always);
    seconds(1).await;
    assert_eq!(bench.finished(), 1);
}

#[tokio::test(start_paused = true)]
async fn work_stops_at_the_end_of_the_term_without_a_notification() {
    let bench = Bench::new(
        1,
        LeadershipTerm::Until(Deadline::now().plus(Duration::from_secs(60))),
    );
    bench.queue.add("slow");
    seconds(1).await;
    assert_eq!(bench.busy(), 1);
    bench.term.send_if_modified(|term| {
        *term = LeadershipTerm::No;
        false
    });
    bench.scripted.gate.add_permits(1);
    seconds(5).await;
    assert_eq!(
        (bench.busy(), bench.finished(), bench.queue.len()),
        (0, 0, 1)
    );
}

#[tokio::test(start_paused = true)]
async fn stop_finishes_the_key_in_progress_and_starts_no_other() {
    let bench = Bench::new(1, LeadershipTerm::Always);
    bench.queue.add("slow");
    bench.queue.add("fine");
    seconds(1).await;
    bench.stop.cancel();
    seconds(1).await;
    assert!(!bench.run.is_finished(), "it waits for the key under way");
    bench.scripted.gate.add_permits(1);
    seconds(1).await;
    assert!(bench.run.is_finished());
    assert_eq!(
        (
            bench.calls("slow").len(),
            bench.calls("fine").len(),
            bench.finished()
        ),
        (1, 0, 1)
    );
}

#[tokio::test(start_paused = true)]
async fn stop_abandons_the_key_in_progress_after_a_timeout() {
    let bench = Bench::new(1, LeadershipTerm::Always);
    bench.queue.add("slow");
    seconds(1).await;
    bench.stop.cancel();
    seconds(4).await;
    assert!(!bench.run.is_finished());
    seconds(2).await;
    assert!(bench.run.is_finished());
    assert_eq!(bench.busy(), 0);
}

#[tokio::test(start_paused = true)]
async fn aborted_workers_return_their_keys_to_the_queue() {
    let bench = Bench::new(1, LeadershipTerm::Always);
    bench.queue.add("slow");
    seconds(1).await;
    bench.run.abort();
    // Aborted tasks are dropped at the runtime's next turn.
    advance(Duration::from_secs(1)).await;
    seconds(1).await;
    assert_eq!((bench.busy(), bench.queue.len()), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn endless_reconcile_is_reported_as_stuck_and_periodic_work_is_not() {
    // The wait for the end of the term wakes the worker's task each second.
    let bench = Bench::new(
        2,
        LeadershipTerm::Until(Deadline::now().plus(Duration::from_secs(86_400))),
    );
    bench.queue.add("every minute");
    sleep(Duration::from_secs(3600)).await;
    assert_eq!(bench.watchdog.stuck_work(), None);
    bench.queue.add("slow");
    sleep(Duration::from_secs(60)).await;
    assert_eq!(bench.watchdog.stuck_work(), None);
    sleep(Duration::from_secs(3600)).await;
    assert_eq!(
        bench.watchdog.stuck_work().as_deref(),
        Some("scripted slow")
    );
    bench.scripted.gate.add_permits(1);
    sleep(Duration::from_secs(1)).await;
    assert_eq!(bench.watchdog.stuck_work(), None);
}

mod backoff {
    use super::super::*;

    fn delays(count: usize) -> Vec<u128> {
        let mut backoff = KeyBackoff::default();
        (0..count)
            .map(|_| backoff.failed(&"a", 1.0).delay.as_millis())
            .collect()
    }

    #[test]
    fn delays_double_from_five_milliseconds_to_thirty_seconds() {
        let delays = delays(40);
        assert_eq!(delays[..5], [5, 10, 20, 40, 80]);
        assert_eq!(delays[12..15], [20_480, 30_000, 30_000]);
        assert_eq!(delays[39], 30_000, "the shift does not overflow");
    }

    #[test]
    fn jitter_reduces_the_delay_by_at_most_half() {
        let delay = |random| KeyBackoff::default().failed(&"a", random).delay;
        assert_eq!(delay(0.0), Duration::from_micros(2500));
        assert_eq!(delay(0.5), Duration::from_micros(3750));
        assert_eq!(delay(1.0), Duration::from_millis(5));
    }

    #[test]
    fn success_resets_the_backoff_of_a_single_key() {
        let mut backoff = KeyBackoff::default();
        assert_eq!(backoff.failed(&"a", 1.0).times, 1);
        assert_eq!(backoff.failed(&"a", 1.0).times, 2);
        assert_eq!(backoff.failed(&"b", 1.0).times, 1);
        backoff.reset(&"a");
        assert_eq!(
            backoff.failed(&"a", 1.0),
            KeyFailure {
                times: 1,
                delay: FIRST_DELAY
            }
        );
    }
}

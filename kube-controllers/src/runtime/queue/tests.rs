use std::collections::BTreeMap;

use proptest::prelude::*;
use tokio::time::timeout;

use super::*;
use crate::telemetry::Metrics;

impl<K: Clone + Eq + Hash + Send + 'static> Queue<K> {
    /// Waits for the next key and takes it.
    pub(crate) async fn next(&self) -> K {
        self.take_next().await.key
    }

    /// Returns the number of waiting keys, without keys whose delay has not ended.
    pub(crate) fn len(&self) -> usize {
        let mut state = self.state();
        state.add_due(Instant::now());
        state.waiting.len()
    }

    /// Returns the earliest deadline of a delayed key.
    pub(crate) fn first_deadline(&self) -> Option<Instant> {
        self.state().timers.first_deadline()
    }

    /// Returns true if no key is waiting.
    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Returns the key that can be taken within a millisecond, if any.
async fn soon<K: Clone + Eq + Hash + Send + 'static>(queue: &Queue<K>) -> Option<K> {
    timeout(Duration::from_millis(1), queue.next()).await.ok()
}

#[tokio::test(start_paused = true)]
async fn queued_key_is_returned_once_and_in_order() {
    let queue = Queue::default();
    for key in ["a", "b", "a", "c", "b"] {
        queue.add(key);
    }
    assert_eq!(queue.len(), 3);
    assert_eq!(
        (queue.next().await, queue.next().await, queue.next().await),
        ("a", "b", "c")
    );
    assert_eq!(soon(&queue).await, None);
}

#[tokio::test(start_paused = true)]
async fn groups_of_keys_take_turns() {
    fn first_letter<'k>(key: &'k &'static str) -> &'k str {
        &key[..1]
    }
    let queue = Queue::grouped(first_letter);
    for key in ["a1", "a2", "a3", "b1", "c1", "b2"] {
        queue.add(key);
    }
    let mut taken = Vec::new();
    for _ in 0..4 {
        taken.push(queue.next().await);
    }
    queue.add("c2");
    queue.add("a4");
    while let Some(key) = soon(&queue).await {
        taken.push(key);
    }
    assert_eq!(taken, ["a1", "b1", "c1", "a2", "b2", "c2", "a3", "a4"]);
    // The turn continues after the queue was empty.
    queue.add("a5");
    queue.add("b3");
    assert_eq!(
        (queue.len(), queue.next().await, queue.next().await),
        (2, "b3", "a5")
    );
}

#[tokio::test(start_paused = true)]
async fn key_added_while_in_progress_is_returned_after_done() {
    let queue = Queue::default();
    queue.add("a");
    let key = queue.next().await;
    queue.add("a");
    queue.add("a");
    assert_eq!(soon(&queue).await, None, "one worker holds it");
    queue.done(&key);
    assert_eq!(soon(&queue).await, Some("a"));
    queue.done(&key);
    assert_eq!(
        soon(&queue).await,
        None,
        "two additions while it was held are one"
    );
}

#[tokio::test(start_paused = true)]
async fn key_with_several_deadlines_is_returned_once_at_the_earliest() {
    let queue = Queue::default();
    let begin = Instant::now();
    queue.add_after("a", Duration::from_secs(9));
    queue.add_after("a", Duration::from_secs(3));
    queue.add_after("a", Duration::from_secs(6));
    assert_eq!(queue.len(), 0);
    let key = queue.next().await;
    assert_eq!(begin.elapsed().as_secs(), 3);
    queue.done(&key);
    assert!(
        timeout(Duration::from_secs(60), queue.next())
            .await
            .is_err()
    );
}

#[tokio::test(start_paused = true)]
async fn key_added_now_cancels_its_delayed_addition() {
    let queue = Queue::default();
    queue.add_after("a", Duration::from_secs(3));
    queue.add("a");
    let key = soon(&queue).await.expect("added");
    queue.done(&key);
    assert!(
        timeout(Duration::from_secs(60), queue.next())
            .await
            .is_err()
    );
}

#[tokio::test(start_paused = true)]
async fn delayed_key_due_while_in_progress_is_returned_after_done() {
    let queue = Queue::default();
    queue.add("a");
    let key = queue.next().await;
    queue.add_after("a", Duration::from_secs(1));
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(soon(&queue).await, None);
    queue.done(&key);
    assert_eq!(soon(&queue).await, Some("a"));
}

#[tokio::test(start_paused = true)]
async fn earlier_deadline_wakes_a_waiting_worker() {
    let queue = Queue::default();
    queue.add_after("late", Duration::from_secs(100));
    let waiter = tokio::spawn({
        let queue = queue.clone();
        async move { queue.next().await }
    });
    tokio::time::sleep(Duration::from_secs(1)).await;
    let begin = Instant::now();
    queue.add_after("early", Duration::from_secs(2));
    assert_eq!(waiter.await.expect("no panic"), "early");
    assert_eq!(begin.elapsed().as_secs(), 2);
}

#[tokio::test(start_paused = true)]
async fn each_waiter_gets_a_key_when_enough_are_added() {
    let queue = Queue::default();
    let waiters: Vec<_> = (0..3)
        .map(|_| {
            tokio::spawn({
                let queue = queue.clone();
                async move { queue.next().await }
            })
        })
        .collect();
    tokio::task::yield_now().await;
    (0..3).for_each(|key| queue.add(key));
    let mut keys = Vec::new();
    for waiter in waiters {
        keys.push(
            timeout(Duration::from_secs(1), waiter)
                .await
                .expect("in time")
                .expect("no panic"),
        );
    }
    keys.sort();
    assert_eq!(keys, [0, 1, 2]);
}

#[tokio::test(start_paused = true)]
async fn dropped_next_call_consumes_no_key() {
    let queue = Queue::default();
    {
        let next = queue.next();
        tokio::pin!(next);
        assert!(timeout(Duration::from_secs(1), &mut next).await.is_err());
        queue.add("a");
    }
    assert_eq!(soon(&queue).await, Some("a"));
}

/// Returns a queue that publishes its metrics.
fn published() -> (Queue<u8>, WorkerMetrics) {
    let (queue, metrics) = (Queue::default(), Metrics::new().worker("of a test"));
    queue.publish(metrics.clone());
    (queue, metrics)
}

#[tokio::test(start_paused = true)]
async fn queue_depth_gauge_counts_due_keys_only() {
    let (queue, metrics) = published();
    queue.lead();
    queue.add(1);
    queue.add_after(2, Duration::from_secs(1));
    assert_eq!(metrics.depth.get(), 1);
    let key = queue.next().await;
    assert_eq!((key, metrics.depth.get()), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn key_counts_as_added_once_until_a_worker_takes_it() {
    let (queue, metrics) = published();
    queue.lead();
    queue.add(1);
    queue.add(1);
    assert_eq!(metrics.adds.get(), 1);
    let key = queue.next().await;
    // Both additions during the work are one.
    queue.add(1);
    queue.add(1);
    assert_eq!(metrics.adds.get(), 2);
    queue.done(&key);
    assert_eq!((queue.next().await, metrics.adds.get()), (1, 2));
    queue.done(&key);
    queue.add_after(1, Duration::from_secs(3));
    assert_eq!(metrics.adds.get(), 2, "the key is not due");
    assert_eq!((queue.next().await, metrics.adds.get()), (1, 3));
}

#[tokio::test(start_paused = true)]
async fn adds_of_a_standby_do_not_count() {
    let (queue, metrics) = published();
    (1..=3).for_each(|key| queue.add(key));
    queue.add(1);
    assert_eq!(
        (queue.len(), metrics.depth.get(), metrics.adds.get()),
        (3, 0, 0)
    );
    queue.lead();
    assert_eq!(
        (metrics.depth.get(), metrics.adds.get()),
        (3, 3),
        "the keys that wait at the takeover count once"
    );
    queue.lead();
    queue.add(4);
    assert_eq!((metrics.depth.get(), metrics.adds.get()), (4, 4));
    let key = queue.next().await;
    queue.stand_by();
    queue.put_back(&key);
    queue.add(5);
    assert_eq!(
        (queue.len(), metrics.depth.get(), metrics.adds.get()),
        (5, 0, 4)
    );
    queue.lead();
    assert_eq!(
        (metrics.depth.get(), metrics.adds.get()),
        (5, 9),
        "the keys wait at another takeover"
    );
}

#[tokio::test(start_paused = true)]
async fn key_that_returns_unfinished_does_not_count_as_added() {
    let (queue, metrics) = published();
    queue.lead();
    queue.add(1);
    let key = queue.next().await;
    queue.put_back(&key);
    assert_eq!((metrics.depth.get(), metrics.adds.get()), (1, 1));
    assert_eq!(queue.next().await, 1);
}

#[tokio::test(start_paused = true)]
async fn wait_begins_at_the_takeover() {
    let (queue, _) = published();
    queue.add(1);
    tokio::time::advance(Duration::from_secs(7200)).await;
    queue.lead();
    tokio::time::advance(Duration::from_secs(2)).await;
    queue.add(2);
    tokio::time::advance(Duration::from_secs(1)).await;
    let waited = [queue.take_next().await, queue.take_next().await]
        .map(|taken| (taken.key, taken.waited.as_secs()));
    assert_eq!(waited, [(1, 3), (2, 1)]);
}

#[derive(Debug, Clone)]
enum Act {
    Add(u8),
    AddAfter(u8, u64),
    Take,
    Done(usize),
    Pass(u64),
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        (0..5u8).prop_map(Act::Add),
        (0..5u8, 0..20u64).prop_map(|(key, seconds)| Act::AddAfter(key, seconds)),
        Just(Act::Take),
        (0..5usize).prop_map(Act::Done),
        (0..10u64).prop_map(Act::Pass),
    ]
}

proptest! {
    /// After random operations, at most one worker holds each key, and no key is lost that was
    /// added after it was last taken.
    #[test]
    fn queue_loses_no_key_and_hands_no_key_to_two_workers(acts in prop::collection::vec(act(), 0..60)) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build();
        let runtime = runtime.expect("runtime");
        runtime.block_on(async {
            let queue = Queue::default();
            let mut held: Vec<u8> = Vec::new();
            // The keys that were added since they were last taken, with their deadlines.
            let mut wanted: BTreeMap<u8, Instant> = BTreeMap::new();
            for act in acts {
                match act {
                    Act::Add(key) => {
                        queue.add(key);
                        wanted.insert(key, Instant::now());
                    }
                    Act::AddAfter(key, seconds) => {
                        let delay = Duration::from_secs(seconds);
                        queue.add_after(key, delay);
                        let due = Instant::now() + delay;
                        wanted
                            .entry(key)
                            .and_modify(|earlier| *earlier = due.min(*earlier))
                            .or_insert(due);
                    }
                    Act::Take => {
                        if let Ok(TakenKey { key, .. }) = queue.take() {
                            assert!(!held.contains(&key), "{key} is held twice");
                            assert!(
                                wanted.remove(&key).is_some_and(|due| due <= Instant::now()),
                                "{key} came unasked",
                            );
                            held.push(key);
                        }
                    }
                    Act::Done(index) if index < held.len() => queue.done(&held.swap_remove(index)),
                    Act::Done(_) => {}
                    Act::Pass(seconds) => tokio::time::advance(Duration::from_secs(seconds)).await,
                }
            }
            held.iter().for_each(|key| queue.done(key));
            tokio::time::advance(Duration::from_secs(60)).await;
            while let Ok(TakenKey { key, .. }) = queue.take() {
                assert!(wanted.remove(&key).is_some(), "{key} came unasked");
                queue.done(&key);
            }
            assert!(wanted.is_empty(), "{wanted:?} never came");
        });
    }
}

//! [`InProgress`]: the work that a controller is doing, of which a scrape computes the age.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use node_process::metrics;
use prometheus::GaugeVec;
use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use tokio::time::Instant;

/// The work in progress of one controller. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct InProgress(Arc<Mutex<Begun>>);

/// The times at which the units of work in progress began.
#[derive(Debug, Default)]
struct Begun {
    next: u64,
    times: BTreeMap<u64, Instant>,
}

/// One unit of work in progress, which ends when the value is dropped.
#[derive(Debug)]
#[must_use]
pub struct UnitInProgress {
    all: InProgress,
    number: u64,
}

impl InProgress {
    /// Begins a unit of work.
    pub fn begin(&self) -> UnitInProgress {
        let mut begun = self.begun();
        let number = begun.next;
        begun.next += 1;
        begun.times.insert(number, Instant::now());
        UnitInProgress {
            all: self.clone(),
            number,
        }
    }

    /// Returns the sum of the ages of all units, and the age of the oldest one, in seconds.
    fn ages(&self) -> (f64, f64) {
        let begun = self.begun();
        let ages = begun
            .times
            .values()
            .map(|time| time.elapsed().as_secs_f64());
        ages.fold((0.0, 0.0), |(sum, longest), age| {
            (sum + age, age.max(longest))
        })
    }

    fn begun(&self) -> MutexGuard<'_, Begun> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for UnitInProgress {
    fn drop(&mut self) {
        self.all.begun().times.remove(&self.number);
    }
}

metrics! {
    struct AgeGauges {
        /// Sum of the times since workers took the keys that they are processing, in seconds.
        unfinished: GaugeVec = "workqueue_unfinished_work_seconds"["name"],
        /// Time since a worker took the key that has been in progress for the longest time, in
        /// seconds.
        longest: GaugeVec = "workqueue_longest_running_processor_seconds"["name"],
    }
}

/// The work in progress of all controllers, as metrics with one label.
#[derive(Clone)]
pub(super) struct InProgressVec {
    controllers: Arc<Mutex<BTreeMap<String, InProgress>>>,
    ages: AgeGauges,
}

impl InProgressVec {
    pub(super) fn new() -> Self {
        InProgressVec {
            controllers: Arc::default(),
            ages: AgeGauges::new(),
        }
    }

    /// Returns the work in progress of one controller, also if the controller has started again.
    pub(super) fn in_progress(&self, controller: &str) -> InProgress {
        self.controllers()
            .entry(controller.to_owned())
            .or_default()
            .clone()
    }

    fn controllers(&self) -> MutexGuard<'_, BTreeMap<String, InProgress>> {
        self.controllers
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl Collector for InProgressVec {
    fn desc(&self) -> Vec<&Desc> {
        self.ages.desc()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        for (controller, in_progress) in &*self.controllers() {
            let ((sum, longest), label) = (in_progress.ages(), &[controller]);
            self.ages.unfinished.with_label_values(label).set(sum);
            self.ages.longest.with_label_values(label).set(longest);
        }
        self.ages.collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::advance;

    use super::super::Metrics;

    /// Returns the sum and the maximum that a scrape shows for the controller `policy`.
    fn scraped(metrics: &Metrics) -> [f64; 2] {
        let text = metrics.text().expect("encodes");
        [
            "unfinished_work_seconds",
            "longest_running_processor_seconds",
        ]
        .map(|name| {
            let begin = format!("workqueue_{name}{{name=\"policy\"}} ");
            let value = text.lines().find_map(|line| line.strip_prefix(&begin));
            value.expect("a sample").parse().expect("a number")
        })
    }

    #[tokio::test(start_paused = true)]
    async fn unfinished_work_grows_until_the_key_is_done() {
        let metrics = Metrics::new();
        let in_progress = metrics.in_progress("policy");
        assert_eq!(scraped(&metrics), [0.0, 0.0]);
        let first = in_progress.begin();
        advance(Duration::from_secs(10)).await;
        // Another set of controllers in the same process has the same metrics.
        let second = metrics.in_progress("policy").begin();
        advance(Duration::from_secs(5)).await;
        assert_eq!(scraped(&metrics), [20.0, 15.0]);
        drop(first);
        assert_eq!(scraped(&metrics), [5.0, 5.0]);
        drop(second);
        assert_eq!(scraped(&metrics), [0.0, 0.0]);
    }
}

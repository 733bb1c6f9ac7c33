//! [`UnfinishedWork`]: the ages of the work that controllers are doing, computed by a scrape.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use node_process::metrics;
use prometheus::GaugeVec;
use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use tokio::time::Instant;

use crate::in_progress::InProgress;

metrics! {
    struct AgeGauges {
        /// Sum of the times since workers took the keys that they are processing, in seconds.
        unfinished: GaugeVec = "workqueue_unfinished_work_seconds"["name"],
        /// Time since a worker took the key that has been in progress for the longest time, in
        /// seconds.
        longest: GaugeVec = "workqueue_longest_running_processor_seconds"["name"],
    }
}

/// The work in progress of all controllers, as metrics with one label. The value of a unit of work
/// is the time at which it began.
#[derive(Clone)]
pub(super) struct UnfinishedWork {
    controllers: Arc<Mutex<BTreeMap<String, InProgress<Instant>>>>,
    ages: AgeGauges,
}

impl UnfinishedWork {
    pub(super) fn new() -> Self {
        UnfinishedWork {
            controllers: Arc::default(),
            ages: AgeGauges::new(),
        }
    }

    /// Returns the work in progress of one controller, also if the controller has started again.
    pub(super) fn of(&self, controller: &str) -> InProgress<Instant> {
        self.controllers()
            .entry(controller.to_owned())
            .or_default()
            .clone()
    }

    fn controllers(&self) -> MutexGuard<'_, BTreeMap<String, InProgress<Instant>>> {
        self.controllers
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl Collector for UnfinishedWork {
    fn desc(&self) -> Vec<&Desc> {
        self.ages.desc()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        for (controller, in_progress) in &*self.controllers() {
            let begun = in_progress.values();
            let ages = begun.iter().map(|time| time.elapsed().as_secs_f64());
            let (sum, longest) = ages.fold((0.0, 0.0), |(sum, longest): (f64, f64), age| {
                (sum + age, longest.max(age))
            });
            let label = &[controller];
            self.ages.unfinished.with_label_values(label).set(sum);
            self.ages.longest.with_label_values(label).set(longest);
        }
        self.ages.collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::{Instant, advance};

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
        let first = in_progress.begin(Instant::now());
        advance(Duration::from_secs(10)).await;
        // Another set of controllers in the same process has the same metrics.
        let second = metrics.in_progress("policy").begin(Instant::now());
        advance(Duration::from_secs(5)).await;
        assert_eq!(scraped(&metrics), [20.0, 15.0]);
        drop(first);
        assert_eq!(scraped(&metrics), [5.0, 5.0]);
        drop(second);
        assert_eq!(scraped(&metrics), [0.0, 0.0]);
    }
}

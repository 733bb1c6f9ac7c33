//! [`RunningWatches`]: the watches that have been started.

use std::convert::Infallible;
use std::pin::pin;
use std::time::Duration;

use datastore::watch::{StatsHandle, WatchEvent, WatchStats};
use futures::{Stream, StreamExt};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::{Event, Subscribers};
use crate::status::{Component, Status};
use crate::telemetry::{Metrics, WatchMetrics};
use crate::watched::Watched;

/// Interval at which the metrics of a watch are updated.
const GLANCE: Duration = Duration::from_secs(1);

/// The started watches.
#[derive(Default)]
pub struct RunningWatches {
    tasks: JoinSet<()>,
    health: Vec<WatchHealth>,
}

/// The health of one watch. Clones report on the same watch.
#[derive(Debug, Clone)]
pub struct WatchHealth {
    /// The kind of the watched objects.
    pub kind: &'static str,
    meter: StatsHandle,
}

impl WatchHealth {
    /// Returns the present state of the watch.
    pub fn watch(&self) -> WatchStats {
        self.meter.read()
    }
}

impl RunningWatches {
    /// Returns the health of each watch, for metrics and probes.
    pub fn health(&self) -> &[WatchHealth] {
        &self.health
    }

    /// Removes [`Component::Lists`] from `status` when each kind has been listed, or its list is forbidden, which the
    /// watch logs. Until then, the probes name the missing kinds. Never returns.
    pub(crate) async fn await_lists(&self, status: &Status) -> Infallible {
        loop {
            let awaited = self
                .health
                .iter()
                .filter(|subscribers| subscribers.watch().is_awaited())
                .map(|subscribers| subscribers.kind);
            let awaited: Vec<&str> = awaited.collect();
            if awaited.is_empty() {
                status.forget(Component::Lists);
                return std::future::pending().await;
            }
            status.not_ready(Component::Lists, format!("not listed yet: {}", awaited.join(", ")));
            tokio::time::sleep(GLANCE / 10).await;
        }
    }

    /// Waits until all watches have ended, which they do when `context.stop` is canceled.
    pub async fn stopped(mut self) {
        while self.tasks.join_next().await.is_some() {}
    }

    pub(super) fn add<T: Watched>(
        &mut self,
        subscribers: Subscribers<T>,
        meter: StatsHandle,
        events: impl Stream<Item = WatchEvent<T, T::Key>> + Send + 'static,
        metrics: &Metrics,
        stop: &CancellationToken,
    ) {
        self.health.push(WatchHealth { kind: T::KIND, meter: meter.clone() });
        let gauge = Gauge { metrics: metrics.watch(T::KIND), meter, shown: WatchStats::default() };
        self.tasks.spawn(follow(events, subscribers, gauge, stop.clone()));
    }
}

/// Passes the events of the watch to the `subscribers`, and updates the metrics, until `stop`.
async fn follow<T: Watched>(
    events: impl Stream<Item = WatchEvent<T, T::Key>>,
    subscribers: Subscribers<T>,
    gauge: Gauge,
    stop: CancellationToken,
) {
    // The futures run concurrently, so that an update of the metrics never cancels a request of the watch.
    tokio::select! {
        () = stop.cancelled() => {}
        () = tell(events, subscribers) => {}
        () = gauge.show() => {}
    }
}

async fn tell<T: Watched>(events: impl Stream<Item = WatchEvent<T, T::Key>>, mut subscribers: Subscribers<T>) {
    let mut events = pin!(events);
    while let Some(event) = events.next().await {
        subscribers.dispatch(&match &event {
            WatchEvent::ListStart => Event::ListStart,
            WatchEvent::Upsert(object) => Event::Upsert(object),
            WatchEvent::Delete(key) => Event::Delete(key),
            WatchEvent::ListEnd => Event::ListEnd,
        });
    }
}

/// Copies the reports of a watch into its metrics.
struct Gauge {
    metrics: WatchMetrics,
    meter: StatsHandle,
    shown: WatchStats,
}

impl Gauge {
    async fn show(mut self) {
        loop {
            let (now, shown) = (self.meter.read(), self.shown);
            let again = |report: &WatchStats| report.watches.saturating_sub(1);
            self.metrics.restarts.inc_by(again(&now) - again(&shown));
            self.metrics.lists.inc_by(now.lists - shown.lists);
            self.metrics.events.inc_by(now.changes - shown.changes);
            self.metrics.unreadable.inc_by(now.unreadable - shown.unreadable);
            self.metrics.synced.set(i64::from(now.synced));
            self.shown = now;
            tokio::time::sleep(GLANCE).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use datastore::watch::{NextPage, ObjectChange, Page, WatchFailure, WatchSource, WatchStep, Watcher};
    use futures::stream::unfold;
    use libcalico::api::ObjectKey;
    use tokio::time::sleep;

    use super::*;
    use crate::watched::Node;

    /// Returns an empty list or an error for each list, in the given order. The last outcome repeats.
    struct Scripted(Vec<Result<(), WatchFailure>>);

    impl WatchSource for Scripted {
        type Value = Node;
        type Key = ObjectKey;
        type Token = ();
        type Position = ();

        const LONGEST_SILENCE: Duration = Duration::from_secs(3600);

        fn kind(&self) -> &'static str {
            "Node"
        }

        async fn list(&mut self, _: Option<()>) -> Result<Page<Self>, WatchFailure> {
            let outcome = if self.0.len() > 1 { self.0.remove(0) } else { self.0[0].clone() };
            outcome.map(|()| Page { objects: Vec::<ObjectChange<Node, ObjectKey>>::new(), next: NextPage::Watch(()) })
        }

        async fn open(&mut self, _: &()) -> Result<(), WatchFailure> {
            Ok(())
        }

        async fn next(&mut self) -> Result<Option<WatchStep<Self>>, WatchFailure> {
            std::future::pending().await
        }
    }

    /// Returns the message of the probes at the start, and after a minute.
    async fn told(script: Vec<Result<(), WatchFailure>>) -> (Option<String>, Option<String>) {
        let directory = tempfile::tempdir().expect("a directory");
        let status = Status::new(directory.path().join("status.json"));
        status.require([Component::Lists]);
        let watch = Watcher::new(Scripted(script));
        let mut running = RunningWatches::default();
        let meter = watch.stats();
        let events = unfold(watch, async |mut watch| Some((watch.next().await, watch)));
        running.add(Subscribers::<Node>::default(), meter, events, &Metrics::new(), &CancellationToken::new());
        let reason = || status.readiness().remove("Lists").map(|condition| condition.reason);
        tokio::select! {
            never = running.await_lists(&status) => match never {},
            told = async {
                sleep(GLANCE / 2).await;
                let first = reason();
                sleep(Duration::from_secs(60)).await;
                (first, reason())
            } => told,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn readiness_waits_for_the_first_list_except_of_forbidden_kinds() {
        let awaited = || Some("not listed yet: Node".to_owned());
        let away = || Err(WatchFailure::lost("away"));
        assert_eq!(told(vec![Ok(())]).await, (None, None));
        assert_eq!(told(vec![away(), away(), away(), away(), Ok(())]).await, (awaited(), None));
        assert_eq!(told(vec![away()]).await, (awaited(), awaited()));
        assert_eq!(told(vec![Err(WatchFailure::Refused("forbidden".into()))]).await, (None, None));
        assert_eq!(told(vec![Err(WatchFailure::Missing("no such kind".into()))]).await, (None, None));
    }
}

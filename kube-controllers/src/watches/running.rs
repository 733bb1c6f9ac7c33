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

const METRICS_INTERVAL: Duration = Duration::from_secs(1);

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
    stats: StatsHandle,
}

impl WatchHealth {
    /// Returns the present state of the watch.
    pub fn stats(&self) -> WatchStats {
        self.stats.read()
    }
}

impl RunningWatches {
    /// Returns the health of each watch, for metrics and probes.
    pub fn health(&self) -> &[WatchHealth] {
        &self.health
    }

    /// Removes [`Component::Lists`] from `status` when each kind has been listed, except kinds
    /// whose list the role forbids or that the API server does not serve. Never returns.
    pub(crate) async fn await_lists(&self, status: &Status) -> Infallible {
        loop {
            let awaited = self
                .health
                .iter()
                .filter(|health| health.stats().is_awaited())
                .map(|health| health.kind);
            let awaited: Vec<&str> = awaited.collect();
            if awaited.is_empty() {
                status.remove(Component::Lists);
                return std::future::pending().await;
            }
            status.not_ready(
                Component::Lists,
                format!("not listed yet: {}", awaited.join(", ")),
            );
            tokio::time::sleep(METRICS_INTERVAL / 10).await;
        }
    }

    /// Waits until all watches have ended, which they do when `context.stop` is canceled.
    pub async fn stopped(mut self) {
        while self.tasks.join_next().await.is_some() {}
    }

    pub(super) fn add<T: Watched>(
        &mut self,
        subscribers: Subscribers<T>,
        stats: StatsHandle,
        events: impl Stream<Item = WatchEvent<T, T::Key>> + Send + 'static,
        metrics: &Metrics,
        stop: &CancellationToken,
    ) {
        self.health.push(WatchHealth {
            kind: T::KIND,
            stats: stats.clone(),
        });
        let updater = MetricsUpdater {
            metrics: metrics.watch(T::KIND),
            stats,
            published: WatchStats::default(),
        };
        self.tasks
            .spawn(run_watch(events, subscribers, updater, stop.clone()));
    }
}

/// Passes the events of the watch to the `subscribers`, and updates the metrics, until `stop`.
async fn run_watch<T: Watched>(
    events: impl Stream<Item = WatchEvent<T, T::Key>>,
    subscribers: Subscribers<T>,
    updater: MetricsUpdater,
    stop: CancellationToken,
) {
    // The futures run concurrently, so that an update of the metrics never cancels a request of the
    // watch.
    tokio::select! {
        () = stop.cancelled() => {}
        () = dispatch(events, subscribers) => {}
        () = updater.run() => {}
    }
}

async fn dispatch<T: Watched>(
    events: impl Stream<Item = WatchEvent<T, T::Key>>,
    mut subscribers: Subscribers<T>,
) {
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

/// A task that copies the statistics of a watch into the metrics of the watch.
struct MetricsUpdater {
    metrics: WatchMetrics,
    stats: StatsHandle,
    published: WatchStats,
}

impl MetricsUpdater {
    async fn run(mut self) {
        loop {
            let (now, published) = (self.stats.read(), self.published);
            let again = |report: &WatchStats| report.watches.saturating_sub(1);
            self.metrics
                .restarts
                .inc_by(again(&now) - again(&published));
            self.metrics.lists.inc_by(now.lists - published.lists);
            self.metrics.events.inc_by(now.changes - published.changes);
            self.metrics
                .unreadable
                .inc_by(now.unreadable - published.unreadable);
            self.metrics.synced.set(i64::from(now.is_synced));
            self.published = now;
            tokio::time::sleep(METRICS_INTERVAL).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use datastore::watch::{
        NextPage, ObjectChange, Page, WatchFailure, WatchSource, WatchStep, Watcher,
    };
    use futures::stream::unfold;
    use libcalico::api::ObjectKey;
    use tokio::time::sleep;

    use super::*;
    use crate::watched::Node;

    /// A source that answers each list with an empty list or an error, in the given order. The last
    /// outcome repeats.
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
            let outcome = if self.0.len() > 1 {
                self.0.remove(0)
            } else {
                self.0[0].clone()
            };
            outcome.map(|()| Page {
                objects: Vec::<ObjectChange<Node, ObjectKey>>::new(),
                next: NextPage::Watch(()),
            })
        }

        async fn open(&mut self, _: &()) -> Result<(), WatchFailure> {
            Ok(())
        }

        async fn next(&mut self) -> Result<Option<WatchStep<Self>>, WatchFailure> {
            std::future::pending().await
        }
    }

    /// Returns the message of the probes at the start, and after a minute.
    async fn reported_reasons(
        script: Vec<Result<(), WatchFailure>>,
    ) -> (Option<String>, Option<String>) {
        let directory = tempfile::tempdir().expect("a directory");
        let status = Status::new(directory.path().join("status.json"));
        status.require([Component::Lists]);
        let watch = Watcher::new(Scripted(script));
        let mut running = RunningWatches::default();
        let stats = watch.stats();
        let events = unfold(watch, async |mut watch| Some((watch.next().await, watch)));
        running.add(
            Subscribers::<Node>::default(),
            stats,
            events,
            &Metrics::new(),
            &CancellationToken::new(),
        );
        let reason = || {
            status
                .readiness()
                .remove("Lists")
                .map(|condition| condition.reason)
        };
        tokio::select! {
            never = running.await_lists(&status) => match never {},
            reasons = async {
                sleep(METRICS_INTERVAL / 2).await;
                let first = reason();
                sleep(Duration::from_secs(60)).await;
                (first, reason())
            } => reasons,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn readiness_waits_for_the_first_list_except_of_forbidden_kinds() {
        let awaited = || Some("not listed yet: Node".to_owned());
        let away = || Err(WatchFailure::lost("away"));
        assert_eq!(reported_reasons(vec![Ok(())]).await, (None, None));
        assert_eq!(
            reported_reasons(vec![away(), away(), away(), away(), Ok(())]).await,
            (awaited(), None)
        );
        assert_eq!(reported_reasons(vec![away()]).await, (awaited(), awaited()));
        assert_eq!(
            reported_reasons(vec![Err(WatchFailure::Refused("forbidden".into()))]).await,
            (None, None)
        );
        assert_eq!(
            reported_reasons(vec![Err(WatchFailure::Missing("no such kind".into()))]).await,
            (None, None)
        );
    }
}

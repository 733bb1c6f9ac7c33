//! Garbage collection by kube-controllers: leaders with an index of their own, whose passes run
//! the shipped code while their watches lag.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures::future::{Either, select};
use kube_controllers::gc::{ClusterCache, GcPass, PassInputs, PassMetrics};
use kube_controllers::settings::{Environment, Mode, default_configuration, merge};
use kube_controllers::status::Watchdog;
use kube_controllers::telemetry::Metrics;
use kube_controllers::watches::Watches;
use libcalico::ipam::gc::{GcSettings, Index, Scope};
use libcalico::variables::Variables;
use tokio::sync::watch;

use crate::cluster::Cluster;
use crate::collection_world::{Beside, Collecting, LeaderClock, OpenTerm, SimulatedApi};
use crate::datastore::NodeStore;
use crate::drawn_cluster::COOLDOWN;
use crate::schedule::Wait;
use crate::watch_feed::WatchFeed;

/// The grace period of leaks.
const GRACE: Duration = Duration::from_secs(150);

/// The longest duration of an operation, such as an ADD. It is shorter than the grace period.
const LONGEST_OPERATION: Duration = Duration::from_secs(100);

/// A part of the time between two passes.
const PAUSE: Duration = Duration::from_secs(50);

/// The number of pauses before a pass at most, which together exceed each grace period.
const MOST_PAUSES: usize = 9;

/// The longest life of a leader, in steps.
const LONGEST_TERM: usize = 1000;

/// The number of leaders of a schedule at most.
const MOST_LEADERS: usize = 3;

/// The passes after the end of all pods. The time between two of them is shorter than the grace
/// period, and together they take longer than each object needs to become unused and be deleted.
const LAST_PASSES: usize = 20;

/// A leader, with its index and its watches.
struct Leader {
    pass: GcPass<Collecting>,
    feed: WatchFeed,
    beside: Beside,
}

/// Starts the leaders of a schedule, if it has any. Their terms may overlap.
pub fn start(cluster: &Cluster) {
    let leaders = match cluster.schedule.one_in(2) {
        true => cluster.schedule.below(MOST_LEADERS) + 1,
        false => 0,
    };
    if leaders > 0 {
        cluster.datastore.keep_all();
    }
    for number in 1..=leaders {
        let name = format!("kube-controllers {number}");
        cluster.tasks.start_actor(&name, lead(cluster.clone()));
    }
}

/// Leads until the end of the term, which may come at any await.
async fn lead(cluster: Cluster) {
    cluster.schedule.later(200).await;
    let end = cluster.schedule.later(LONGEST_TERM);
    let term = async {
        let mut leader = Leader::new(&cluster);
        for _ in 0..=cluster.schedule.below(6) {
            leader.wait(&cluster).await;
            leader.run(&cluster).await;
        }
    };
    match select(pin!(end), pin!(term)).await {
        Either::Left(_) | Either::Right(_) => {}
    }
}

/// Collects garbage until nothing is left to collect.
pub async fn clean_up(cluster: &Cluster) {
    let mut leader = Leader::new(cluster);
    for _ in 0..LAST_PASSES {
        cluster
            .schedule
            .pass_long_time(LONGEST_OPERATION, LONGEST_OPERATION);
        let next = cluster.schedule.now() + COOLDOWN;
        cluster.schedule.wait(Wait::Until(next)).await;
        leader.feed.deliver_all();
        leader.pass.run(Scope::Everything).await;
        poll_fn(|context| match leader.beside.poll(context) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        })
        .await;
    }
}

impl Leader {
    fn new(cluster: &Cluster) -> Self {
        let (mut watches, beside) = (Watches::default(), Beside::default());
        let cache = ClusterCache::new(Mode::Etcd, Index::new(GcSettings::default()), &mut watches);
        let environment = Environment::read(Variables::NONE).expect("no variable is set");
        let merged = merge(&environment, &default_configuration(), Mode::Etcd);
        let mut settings = merged.settings;
        settings.leak_grace_period = Some(GRACE);
        let inputs = PassInputs {
            calico: Arc::new(NodeStore::new(
                &cluster.schedule,
                &cluster.datastore,
                cluster.plant,
            )),
            api: SimulatedApi {
                schedule: cluster.schedule.clone(),
                objects: cluster.kubernetes.clone(),
                plant: cluster.plant,
            },
            cache,
            clock: LeaderClock::new(&cluster.schedule),
            gate: Arc::new(OpenTerm),
            background: beside.clone(),
            settings: watch::channel(Arc::new(settings)).1,
            mode: Mode::Etcd,
            metrics: PassMetrics::new(&Metrics::new()).expect("the metrics are new"),
            watchdog: Watchdog::default(),
        };
        Leader {
            pass: GcPass::new(inputs),
            feed: WatchFeed::new(cluster, watches),
            beside,
        }
    }

    /// Waits some time before the next pass, which may be longer than the grace period.
    async fn wait(&mut self, cluster: &Cluster) {
        let beside = &self.beside;
        for _ in 0..cluster.schedule.below(MOST_PAUSES) {
            let mut later = pin!(cluster.schedule.later(20));
            poll_fn(|context| {
                beside.poll(context);
                later.as_mut().poll(context)
            })
            .await;
            cluster.schedule.pass_long_time(PAUSE, LONGEST_OPERATION);
        }
    }

    /// Runs a pass, while the watches deliver events.
    async fn run(&mut self, cluster: &Cluster) {
        let Leader { pass, feed, beside } = self;
        feed.deliver_some();
        let scope = match cluster.schedule.one_in(2) {
            true => Scope::Everything,
            false => Scope::Changed,
        };
        let mut deliveries = pin!(async {
            for _ in 0..cluster.schedule.below(4) {
                cluster.schedule.later(60).await;
                feed.deliver_some();
            }
        });
        let (mut run, mut has_delivered) = (pin!(pass.run(scope)), false);
        poll_fn(|context| {
            beside.poll(context);
            has_delivered = has_delivered || deliveries.as_mut().poll(context).is_ready();
            run.as_mut().poll(context)
        })
        .await;
    }
}

//! [`ThisReplica`]: the servers, the time and the tasks of this process.

use std::sync::Arc;

use datastore::Datastore;
use datastore::watch::WatchEvent;
use futures::Stream;
use futures::stream::unfold;
use libcalico::store::{Entry, Kind};
use tokio::task::JoinSet;

use super::cache::ClusterCache;
use super::clock::Clock;
use super::gate::LeaderGate;
use super::owners_api::OwnersApi;
use super::pass_inputs::PassInputs;
use super::pass_metrics::PassMetrics;
use super::world::{Background, ListedStore, World};
use crate::context::Context;

/// The servers, the time and the tasks of this process.
#[derive(Debug)]
pub struct ThisReplica;

impl World for ThisReplica {
    type Store = Datastore;
    type Api = OwnersApi;
    type Clock = Clock;
    type Gate = LeaderGate;
    type Background = SpawnedWork;
}

impl PassInputs<ThisReplica> {
    /// Returns the inputs of the passes of this process.
    pub(super) fn of(
        context: &Context,
        cache: ClusterCache,
        clock: Clock,
        metrics: PassMetrics,
    ) -> Self {
        let limits = context.settings.borrow().gc_limits;
        let gate = LeaderGate::new(
            context.leadership.clone(),
            context.stop.clone(),
            limits.requests_per_second,
        );
        PassInputs {
            calico: context.calico.clone(),
            api: OwnersApi::new(context.kubernetes.clone()),
            cache,
            clock,
            gate: Arc::new(gate.of_same_cluster(context)),
            background: SpawnedWork::default(),
            settings: context.settings.clone(),
            mode: context.mode,
            metrics,
            watchdog: context.watchdog.clone(),
        }
    }
}

impl ListedStore for Datastore {
    fn events<K: Kind>(
        &self,
        select: &K::Select,
    ) -> Option<impl Stream<Item = WatchEvent<Entry<K>, K::Key>> + Send> {
        let watch = self.watch::<K>(select)?;
        Some(unfold(watch, async |mut watch| {
            Some((watch.next().await, watch))
        }))
    }
}

/// Work on a task of its own, which ends with this value.
#[derive(Debug, Default)]
pub struct SpawnedWork(JoinSet<()>);

impl Background for SpawnedWork {
    fn start_if_idle(&mut self, work: impl Future<Output = ()> + Send + 'static) {
        while let Some(ended) = self.0.try_join_next() {
            if ended.is_err() {
                tracing::error!("listing handles and affinities panicked; listing them again");
            }
        }
        if self.0.is_empty() {
            self.0.spawn(work);
        }
    }
}

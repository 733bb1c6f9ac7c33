//! Repairs handles that count addresses which no block holds, or miss addresses which a block
//! holds. Upstream never deletes such handles (IPAM-230).
//!
//! There is no watch, because a wrong handle blocks no address: all handles are listed
//! periodically.

use std::collections::HashSet;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use allocation::release::handle_repair::repair_handles;
use datastore::watch::WatchEvent;
use futures::StreamExt;
use libcalico::ipam::gc::OrphanHandles;
use libcalico::ipam::{Handle, HandleId};
use libcalico::store::Store;
use os::clock::{Clock, run_until};

use super::affinities::AffinityAudit;
use super::cache::ClusterCache;
use super::world::{Background, ListedStore, PassGate};
use crate::settings::GcMode;

/// Shortest interval between two lists of all handles.
const MIN_LIST_INTERVAL: Duration = Duration::from_secs(1);
const MAX_LIST_INTERVAL: Duration = Duration::from_secs(450);
const LIST_DEADLINE: Duration = Duration::from_secs(300);
/// Number of handles repaired together. A block that several handles share is written once per such
/// batch.
const BATCH_SIZE: usize = 1000;

#[derive(Debug, Default)]
pub(super) struct HandleAudit {
    wrong_handles: WrongHandles,
    last_list_at: Option<Duration>,
    reported: HashSet<HandleId>,
}

/// The wrong handles, shared between the list that finds them and the passes that repair them.
#[derive(Debug, Default, Clone)]
pub(super) struct WrongHandles(Arc<Mutex<OrphanHandles>>);

impl WrongHandles {
    fn get(&self) -> MutexGuard<'_, OrphanHandles> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct RepairedHandles {
    pub(super) deleted: usize,
    pub(super) corrected: usize,
    pub(super) failed: usize,
}

impl HandleAudit {
    /// Starts `list` beside the passes if the next list is due and no list is in progress: a list
    /// may take minutes. `now` is the time by the clock of grace periods.
    pub(super) fn list_if_due<L>(
        &mut self,
        now: Duration,
        grace: Duration,
        background: &mut impl Background,
        list: impl FnOnce(WrongHandles) -> L,
    ) where
        L: Future<Output = ()> + Send + 'static,
    {
        if now < self.next_list(grace) {
            return;
        }
        self.last_list_at = Some(now);
        background.start_if_idle(list(self.wrong_handles.clone()));
    }

    /// Returns the time of the next list, by the present grace period, so that a shortened period
    /// takes effect at once.
    fn next_list(&self, grace: Duration) -> Duration {
        self.last_list_at.map_or(Duration::ZERO, |last| {
            last + (grace / 2).clamp(MIN_LIST_INTERVAL, MAX_LIST_INTERVAL)
        })
    }

    pub(super) fn wrong_count(&self) -> usize {
        self.wrong_handles.get().len()
    }

    pub(super) fn next_deadline(&self, now: Duration, grace: Duration) -> Duration {
        let next_list = self.next_list(grace);
        self.wrong_handles
            .get()
            .next_deadline(now, grace)
            .map_or(next_list, |due| due.min(next_list))
    }

    /// Repairs the handles that have been wrong for `grace`. In the mode `report`, only logs each
    /// handle once.
    pub(super) async fn repair(
        &mut self,
        calico: &impl Store,
        gate: &impl PassGate,
        mode: GcMode,
        now: Duration,
        grace: Duration,
    ) -> RepairedHandles {
        let mut repaired = RepairedHandles::default();
        let due = self.wrong_handles.get().due(now, grace);
        if mode == GcMode::Report {
            self.reported
                .retain(|id| self.wrong_handles.get().is_suspect(id));
            for suspect in due
                .iter()
                .filter(|suspect| self.reported.insert(suspect.id.clone()))
            {
                tracing::info!(
                    handle = %suspect.id,
                    "would repair a handle with a wrong count; GC_MODE=report repairs nothing"
                );
            }
            return repaired;
        }
        for part in due.chunks(BATCH_SIZE) {
            if !gate.is_open() {
                break;
            }
            for suspect in part {
                let reason = "its blocks hold another count";
                tracing::info!(
                    handle = %suspect.id, reason,
                    "releasing a handle that no block names, or correcting its count"
                );
            }
            let outcome = match repair_handles(calico, gate, part).await {
                Ok(outcome) => outcome,
                Err(error) => {
                    tracing::warn!(
                        %error, "cannot repair handles with wrong counts; trying again later",
                    );
                    part.iter()
                        .for_each(|suspect| self.wrong_handles.get().postpone(&suspect.id, now));
                    repaired.failed += part.len();
                    break;
                }
            };
            repaired.deleted += outcome.deleted.len();
            repaired.corrected += outcome.corrected.len();
            repaired.failed += outcome.failed.len();
            for id in &outcome.deleted {
                tracing::info!(handle = %id, "deleted a handle that no block names");
            }
            for id in &outcome.corrected {
                tracing::info!(handle = %id, "corrected the count of a handle");
            }
            let done = outcome
                .deleted
                .iter()
                .chain(&outcome.corrected)
                .chain(&outcome.unchanged);
            done.for_each(|id| self.wrong_handles.get().done(id));
            for (id, error) in &outcome.failed {
                tracing::warn!(handle = %id, %error, "cannot repair a handle; trying again later");
                self.wrong_handles.get().postpone(id, now);
            }
        }
        repaired
    }
}

/// Lists handles and affinities. The grace period of a wrong handle or an unfinished affinity
/// begins at the time of `clock` at which the list finds it.
pub(super) async fn list_all(
    calico: Arc<impl ListedStore>,
    cache: ClusterCache,
    wrong_handles: WrongHandles,
    affinities: AffinityAudit,
    clock: impl Clock,
) {
    let all = async {
        list_handles(&*calico, &cache, &wrong_handles, &clock).await;
        affinities.list(&*calico, &cache, &clock).await;
    };
    let in_time = run_until(&clock.restarted(), LIST_DEADLINE, all).await;
    if in_time.is_none() {
        tracing::warn!("cannot list all handles and affinities in time; trying again later");
    }
    // The time of the next pass depends on the result.
    cache.wake();
}

async fn list_handles(
    calico: &impl ListedStore,
    cache: &ClusterCache,
    wrong_handles: &WrongHandles,
    clock: &impl Clock,
) {
    let Some(events) = calico.events::<Handle>(&()) else {
        return;
    };
    let mut events = pin!(events);
    while let Some(event) = events.next().await {
        match event {
            WatchEvent::ListStart => wrong_handles.get().begin_list(),
            WatchEvent::Upsert(entry) => {
                wrong_handles
                    .get()
                    .listed(&entry, &cache.index(), clock.elapsed())
            }
            WatchEvent::Delete(_) => {}
            WatchEvent::ListEnd => break,
        }
    }
    wrong_handles
        .get()
        .end_list(&cache.index(), clock.elapsed());
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::sync::Notify;
    use tokio::task::yield_now;

    use super::*;
    use crate::gc::this_replica::SpawnedWork;

    #[tokio::test]
    async fn handle_list_runs_in_the_background_and_never_twice_at_once() {
        let (begun, end) = (Arc::new(AtomicUsize::new(0)), Arc::new(Notify::new()));
        let list = |_: WrongHandles| {
            let (begun, end) = (begun.clone(), end.clone());
            async move {
                begun.fetch_add(1, Ordering::Relaxed);
                end.notified().await;
            }
        };
        let (mut audit, grace) = (HandleAudit::default(), Duration::from_secs(20));
        let mut beside = SpawnedWork::default();
        let at = Duration::from_secs;
        for (now, expected) in [(0, 1), (9, 1), (10, 1), (25, 1)] {
            audit.list_if_due(at(now), grace, &mut beside, list);
            yield_now().await;
            assert_eq!(begun.load(Ordering::Relaxed), expected, "at {now} s");
            assert!(
                audit.next_deadline(at(now), grace) > at(now),
                "a list that takes long is not waited for in a loop"
            );
        }
        end.notify_one();
        yield_now().await;
        audit.list_if_due(at(30), grace, &mut beside, list);
        yield_now().await;
        assert_eq!(begun.load(Ordering::Relaxed), 1, "not due");
        audit.list_if_due(at(35), grace, &mut beside, list);
        yield_now().await;
        assert_eq!(begun.load(Ordering::Relaxed), 2);
        // The grace period changes, and takes effect at once.
        assert_eq!(audit.next_deadline(at(36), at(4)), at(37));
        assert_eq!(audit.next_deadline(at(36), at(40)), at(55));
    }
}

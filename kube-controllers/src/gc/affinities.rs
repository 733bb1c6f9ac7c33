//! Unfinished affinities of existing nodes and of Services: affinities that stayed pending or
//! pending deletion (IPAM-121), or that name no block of the node. They are confirmed, released or
//! deleted here.

use std::collections::HashSet;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use allocation::affinity::{FinishedAffinity, finish_affinity};
use allocation::error::IpamError;
use datastore::watch::WatchEvent;
use futures::StreamExt;
use libcalico::ipam::gc::UnfinishedAffinities;
use libcalico::ipam::{AffinityKey, AffinityOwner, AffinitySelect, BlockAffinity};
use libcalico::store::Store;
use os::clock::Clock;

use super::cache::ClusterCache;
use super::world::{ListedStore, PassGate};
use crate::settings::GcMode;

/// The unfinished affinities, shared between the list that finds them and the passes that finish
/// them.
#[derive(Debug, Default, Clone)]
pub(super) struct AffinityAudit(Arc<Mutex<UnfinishedAffinities>>);

impl AffinityAudit {
    fn get(&self) -> MutexGuard<'_, UnfinishedAffinities> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lists affinities and records the unfinished ones. Also records in the index which nodes have
    /// affinities, because a deleted node without blocks may still have some.
    pub(super) async fn list(
        &self,
        calico: &impl ListedStore,
        cache: &ClusterCache,
        clock: &impl Clock,
    ) {
        let mut nodes = HashSet::new();
        self.get().begin_list();
        // The list of all affinities lacks those of Services (IPAM-80).
        let of_services = AffinitySelect::of(AffinityOwner::of_services());
        match calico.list::<BlockAffinity>(&of_services).await {
            Ok(entries) => entries
                .iter()
                .for_each(|entry| self.get().listed(entry, &cache.index(), clock.elapsed())),
            Err(error) => {
                tracing::warn!(
                    %error,
                    "cannot list the affinities of Services; trying again at the next interval",
                )
            }
        }
        let all = AffinitySelect::default();
        let Some(events) = calico.events::<BlockAffinity>(&all) else {
            return;
        };
        let mut events = pin!(events);
        while let Some(event) = events.next().await {
            match event {
                WatchEvent::ListStart => nodes.clear(),
                WatchEvent::Upsert(entry) => {
                    self.get().listed(&entry, &cache.index(), clock.elapsed());
                    match entry.key.owner {
                        AffinityOwner::Host(node) if !entry.value.deleted => _ = nodes.insert(node),
                        AffinityOwner::Host(_) | AffinityOwner::Virtual(_) => {}
                    }
                }
                WatchEvent::Delete(_) => {}
                WatchEvent::ListEnd => break,
            }
        }
        self.get().end_list();
        nodes
            .iter()
            .for_each(|node| cache.index().add_affinity(node));
    }

    /// Returns the time after `now` at which the next unfinished affinity is due; `None` if none
    /// becomes due after `now`.
    pub(super) fn next_deadline(&self, now: Duration, grace: Duration) -> Option<Duration> {
        self.get().next_deadline(now, grace)
    }

    /// Finishes or deletes the affinities that have been unfinished for `grace`, and for at least
    /// five minutes. In the mode `report`, only logs each affinity once; `reported` contains those
    /// that were logged.
    pub(super) async fn finish(
        &self,
        calico: &impl Store,
        gate: &impl PassGate,
        mode: GcMode,
        now: Duration,
        grace: Duration,
        reported: &mut HashSet<AffinityKey>,
    ) -> usize {
        let due = self.get().due(now, grace);
        reported.retain(|key| self.get().is_suspect(key));
        let mut failed = 0;
        for (key, revision) in due {
            let AffinityKey { owner, cidr: block } = &key;
            if mode == GcMode::Report {
                if reported.insert(key.clone()) {
                    tracing::info!(
                        %block, %owner,
                        "would complete or delete an unfinished affinity; GC_MODE=report keeps it"
                    );
                }
                continue;
            }
            match finish_affinity(calico, gate, &key, &revision).await {
                Ok(FinishedAffinity::Confirmed) => {
                    tracing::info!(
                        %block, %owner,
                        "confirmed an unfinished affinity, or restored a deleted one",
                    )
                }
                Ok(FinishedAffinity::Released) => {
                    tracing::info!(
                        %block, %owner,
                        "released an empty block after an interrupted release or an overlap"
                    )
                }
                Ok(FinishedAffinity::Deleted) => {
                    tracing::info!(
                        %block, %owner,
                        "deleted an affinity for a block that its owner does not have",
                    )
                }
                Ok(FinishedAffinity::Unchanged) => {
                    tracing::debug!(
                        %block, %owner,
                        "kept an affinity: it changed, or the block is inconsistent or overlaps"
                    )
                }
                Err(IpamError::Stopped) => break,
                Err(error) => {
                    tracing::warn!(
                        %block, %owner, %error,
                        "cannot complete an unfinished affinity; trying again later"
                    );
                    self.get().postpone(&key, now);
                    failed += 1;
                    continue;
                }
            }
            self.get().done(&key);
        }
        failed
    }
}

#[cfg(test)]
mod tests;

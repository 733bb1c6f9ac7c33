//! Handles against blocks: those that count what no block holds, or do not count what one holds (IPAM-230).
//!
//! No watch is kept: an orphan costs nobody an address. All handles are listed from time to time, page by page, and only
//! what is wrong is remembered.

use std::collections::HashSet;
use std::time::Duration;

use datastore::Datastore;
use datastore::watch::WatchEvent;
use ipam_plugin::mend_handles::mend_handles;
use libcalico::ipam::gc::OrphanHandles;
use libcalico::ipam::{AffinitySelect, BlockAffinity, Handle, HandleId, Owner};
use tokio::time::timeout;

use super::gate::Gate;
use super::listen::Known;
use crate::settings::Gc;

/// How often handles are listed, at the least and at the most.
const OFTEN: Duration = Duration::from_secs(1);
const SELDOM: Duration = Duration::from_secs(450);
/// A list that takes longer is given up, and tried again at the next time.
const LIST_DEADLINE: Duration = Duration::from_secs(300);
/// As many are mended in one go: a block that they share is written once for each such part.
const AT_ONCE: usize = 1000;

/// What is known to be wrong with handles.
#[derive(Debug, Default)]
pub(super) struct HandleAudit {
    orphans: OrphanHandles,
    /// When the next list is due.
    next_list: Duration,
    told: HashSet<HandleId>,
}

/// What became of wrong handles.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Mended {
    pub(super) deleted: usize,
    pub(super) corrected: usize,
    pub(super) failed: usize,
}

impl HandleAudit {
    /// Lists handles if it is time to. `now` is the index's time.
    pub(super) async fn list_if_due(&mut self, calico: &Datastore, known: &Known, now: Duration, grace: Duration) {
        if now < self.next_list {
            return;
        }
        self.next_list = now + (grace / 2).clamp(OFTEN, SELDOM);
        if timeout(LIST_DEADLINE, self.list(calico, known, now)).await.is_err() {
            tracing::warn!("handles could not be listed in time; they are looked at the next time");
        }
    }

    async fn list(&mut self, calico: &Datastore, known: &Known, now: Duration) {
        let Some(mut handles) = calico.watch::<Handle>(&()) else { return };
        loop {
            match handles.next().await {
                WatchEvent::Restarted => self.orphans.list_begins(),
                WatchEvent::Put(entry) => self.orphans.listed(&entry, &known.index(), now),
                WatchEvent::Gone(_) => {}
                WatchEvent::Synced => break,
            }
        }
        self.orphans.list_ends(&known.index(), now);
        self.told.retain(|id| self.orphans.is_wrong(id));
        for node in claimants(calico).await {
            known.index().affinity_names(&node);
        }
    }

    /// How many are wrong.
    pub(super) fn wrong(&self) -> usize {
        self.orphans.len()
    }

    /// When something is to be done.
    pub(super) fn next_deadline(&self, now: Duration, grace: Duration) -> Duration {
        self.orphans.next_deadline(now, grace).map_or(self.next_list, |due| due.min(self.next_list))
    }

    /// Mends what has been wrong for `grace`.
    pub(super) async fn mend(
        &mut self,
        calico: &Datastore,
        gate: &Gate,
        mode: Gc,
        now: Duration,
        grace: Duration,
    ) -> Mended {
        let mut mended = Mended::default();
        let due = self.orphans.due(now, grace);
        if mode == Gc::Report {
            for suspect in due.iter().filter(|suspect| self.told.insert(suspect.id.clone())) {
                tracing::info!(handle = %suspect.id, "would mend a handle that counts wrongly");
            }
            return mended;
        }
        for part in due.chunks(AT_ONCE) {
            if !gate.is_open() {
                break;
            }
            let outcome = match mend_handles(calico, gate, part).await {
                Ok(outcome) => outcome,
                Err(error) => {
                    tracing::warn!(%error, "wrong handles cannot be looked at again");
                    part.iter().for_each(|suspect| self.orphans.failed(&suspect.id, now));
                    mended.failed += part.len();
                    break;
                }
            };
            mended.deleted += outcome.deleted.len();
            mended.corrected += outcome.corrected.len();
            mended.failed += outcome.failed.len();
            for id in &outcome.deleted {
                tracing::info!(handle = %id, "deleted a handle that held nothing");
            }
            for id in &outcome.corrected {
                tracing::info!(handle = %id, "corrected what a handle counts");
            }
            outcome.deleted.iter().chain(&outcome.corrected).chain(&outcome.left).for_each(|id| self.orphans.done(id));
            for (id, error) in &outcome.failed {
                tracing::warn!(handle = %id, %error, "cannot mend a handle");
                self.orphans.failed(id, now);
            }
        }
        mended
    }
}

/// The nodes that have affinities, with or without blocks.
async fn claimants(calico: &Datastore) -> HashSet<String> {
    let mut nodes = HashSet::new();
    let Some(mut affinities) = calico.watch::<BlockAffinity>(&AffinitySelect::default()) else { return nodes };
    loop {
        match affinities.next().await {
            WatchEvent::Restarted => nodes.clear(),
            WatchEvent::Put(entry) => match entry.key.owner {
                Owner::Host(node) if !entry.value.deleted => _ = nodes.insert(node),
                Owner::Host(_) | Owner::Virtual(_) => {}
            },
            WatchEvent::Gone(_) => {}
            WatchEvent::Synced => return nodes,
        }
    }
}

//! Determines the reads that a note of an earlier search saves, and the outcome of a search for the
//! next note.

use std::collections::BTreeMap;

use libcalico::ipam::{AffinityState, PoolRejection, RejectedPool};
use libcalico::net::Cidr;

use super::FamilyPlanner;
use super::own_blocks::BlockSize;
use crate::alloc::snapshot::{BlockRead, MissingReads, Snapshot};
use crate::error::{Exhaustion, Shortfall};
use crate::exhausted::{FullBlock, Note, SearchOutcome, SearchedPool};

impl FamilyPlanner<'_> {
    /// Returns the note of an earlier equal search, if the note is valid and this plan has not
    /// searched itself.
    pub(super) fn valid_note(&self, snapshot: &Snapshot) -> Option<&Note> {
        self.request
            .notes
            .note_of(&self.search)
            .filter(|_| !snapshot.has_all_blocks(self.version))
    }

    /// For blocks that are full by the note, only their revisions are read.
    pub(super) fn reads_of_own_blocks(
        &self,
        snapshot: &Snapshot,
        unread: Vec<Cidr>,
    ) -> MissingReads {
        let mut missing = MissingReads::default();
        for cidr in unread {
            match self.full_by_note(snapshot, &cidr) {
                Some(full) => _ = missing.full.insert(cidr, full.clone()),
                None => _ = missing.blocks.insert(cidr),
            }
        }
        missing
    }

    /// Returns the note's entry for an own block that was full, if no read contradicts the entry
    /// and the affinity is confirmed.
    pub(super) fn full_by_note(&self, snapshot: &Snapshot, cidr: &Cidr) -> Option<&FullBlock> {
        let full = self.valid_note(snapshot)?.own.get(cidr)?;
        (!snapshot.changed.contains(cidr) && self.is_confirmed(snapshot, cidr)).then_some(full)
    }

    pub(super) fn is_confirmed(&self, snapshot: &Snapshot, cidr: &Cidr) -> bool {
        let mut affinities = snapshot
            .own_affinities(self.version)
            .filter(|entry| entry.key.cidr == *cidr);
        affinities.any(|entry| {
            matches!(
                entry.value.state,
                AffinityState::Confirmed | AffinityState::Unset
            )
        })
    }

    pub(crate) fn unused_own_blocks<'k>(
        &'k self,
        snapshot: &'k Snapshot,
    ) -> impl Iterator<Item = (Cidr, &'static str)> + 'k {
        snapshot.own_affinities(self.version).map(|affinity| {
            let cidr = affinity.key.cidr;
            let reason = self.exclusion_reason(snapshot, &cidr);
            let reason_as_read = || match snapshot.block(&cidr) {
                _ if self.size_of(&cidr) == BlockSize::Former => "its pool has another block size",
                Some(BlockRead::Corrupt) => "it cannot be read",
                Some(BlockRead::Absent) => "it overlaps with a block of another size",
                Some(_)
                    if !self.is_confirmed(snapshot, &cidr)
                        && snapshot.overlapping(&cidr).is_some() =>
                {
                    "it overlaps with a block of another size, and its affinity is not confirmed"
                }
                Some(BlockRead::Present(_) | BlockRead::Surveyed(_)) | None => {
                    "it has no free address"
                }
            };
            (cidr, reason.unwrap_or_else(reason_as_read))
        })
    }

    pub(super) fn exhaustion(&self, snapshot: &Snapshot) -> Exhaustion {
        if snapshot.inputs.config.strict_affinity {
            return Exhaustion::StrictAffinity;
        }
        Exhaustion::PoolsFull {
            pools: self.pools().iter().map(|pool| pool.cidr).collect(),
        }
    }

    /// Returns the outcome of a search of all blocks for the node's notes, or `None` if later
    /// searches cannot rely on it. `release` is the number of this node's last release when the
    /// search began.
    pub(crate) fn outcome(
        &self,
        snapshot: &Snapshot,
        exhausted: Option<&Exhaustion>,
        release: Option<u64>,
    ) -> Option<SearchOutcome> {
        let is_exhausted = match exhausted {
            // A block that was skipped because its affinity could not be repaired may give an
            // address soon.
            Some(_) if !self.excluded.is_empty() => return None,
            Some(Exhaustion::StrictAffinity | Exhaustion::PoolsFull { .. }) => true,
            Some(Exhaustion::BlockLimit { .. } | Exhaustion::AutoAllocateOff) => return None,
            None => false,
        };
        let search = self.search.clone();
        if !snapshot.has_all_blocks(self.version) {
            let note = self.valid_note(snapshot).filter(|_| is_exhausted)?;
            return Some(SearchOutcome::Noted(
                note.clone(),
                self.full_blocks(snapshot),
            ));
        }
        if !is_exhausted {
            return Some(SearchOutcome::Found(search));
        }
        let pools = self
            .pools()
            .iter()
            .map(|pool| snapshot.pool_use(&pool.cidr))
            .collect();
        Some(SearchOutcome::Exhausted {
            search,
            release,
            pools,
            own: self.full_blocks(snapshot),
        })
    }

    /// Returns the own blocks that stay full until they are written. A cooling-down address becomes
    /// free without a write.
    fn full_blocks(&self, snapshot: &Snapshot) -> BTreeMap<Cidr, FullBlock> {
        let note = self.valid_note(snapshot);
        let full = |cidr: Cidr| match snapshot.readable_block(&cidr) {
            Some(block) => {
                let is_full = block.value.unallocated.is_empty();
                let has_cooling = block.value.allocated().any(|held| held.is_cooling());
                (is_full && !has_cooling).then(|| {
                    let revision = block.revision.resource_version().to_owned();
                    (
                        cidr,
                        FullBlock {
                            revision,
                            in_use: snapshot.in_use(&cidr),
                        },
                    )
                })
            }
            None => note.and_then(|note| Some((cidr, note.own.get(&cidr)?.clone()))),
        };
        self.blocks_to_read_first(snapshot)
            .filter_map(full)
            .collect()
    }
}

impl FamilyPlanner<'_> {
    pub(crate) fn shortfall(
        &self,
        snapshot: &Snapshot,
        assigned: usize,
        cause: Exhaustion,
    ) -> Shortfall {
        let note = self.valid_note(snapshot);
        let chosen = self.pools().iter().map(|pool| {
            let noted = note
                .and_then(|note| note.pools.iter().find(|noted| noted.cidr == pool.cidr))
                .cloned();
            let refusal = refusal_of(
                snapshot,
                &noted.unwrap_or_else(|| snapshot.pool_use(&pool.cidr)),
                &cause,
            );
            RejectedPool {
                pool: pool.name.clone(),
                cidr: Some(pool.cidr),
                refusal,
            }
        });
        let same_family =
            |refused: &&RejectedPool| !matches!(refused.refusal, PoolRejection::OtherFamily { .. });
        let refused = chosen
            .chain(self.choice.refused.iter().filter(same_family).cloned())
            .collect();
        Shortfall {
            version: self.version,
            wanted: self.request.wanted(self.version),
            assigned,
            cause,
            refused,
        }
    }
}

fn refusal_of(snapshot: &Snapshot, searched: &SearchedPool, cause: &Exhaustion) -> PoolRejection {
    let pool = &searched.cidr;
    if snapshot.reservations.covers(pool) {
        return PoolRejection::Reserved;
    }
    match cause {
        Exhaustion::BlockLimit { limit } => PoolRejection::BlockLimit { limit: *limit },
        Exhaustion::AutoAllocateOff => PoolRejection::AutoAllocateOff,
        Exhaustion::StrictAffinity if searched.has_room => PoolRejection::StrictAffinity,
        Exhaustion::PoolsFull { .. } | Exhaustion::StrictAffinity => {
            let in_use = u128::from(searched.in_use)
                .saturating_add(snapshot.reservations.within(pool))
                .min(pool.size());
            PoolRejection::Full {
                in_use: saturating(in_use),
                capacity: saturating(pool.size()),
            }
        }
    }
}

fn saturating(n: u128) -> u64 {
    u64::try_from(n).unwrap_or(u64::MAX)
}

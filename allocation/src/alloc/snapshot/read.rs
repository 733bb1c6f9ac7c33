//! [`MissingReads`]: the objects that a plan needs next. Reads them into the [`Snapshot`].

use std::collections::{BTreeMap, BTreeSet};

use futures::future::{try_join, try_join3};
use libcalico::ipam::{AffinityKey, AffinitySelect, Block, BlockAffinity, Handle, Room};
use libcalico::net::{Cidr, IpVersion};
use libcalico::store::{Answers, ReadBatch, Store, StoreError};
use time::OffsetDateTime;

use super::survey::{add_range_reads, survey_ranges};
use super::{BlockRead, Snapshot};
use crate::alloc::inputs::AllocationInputs;
use crate::exhausted::FullBlock;

impl Snapshot {
    pub(crate) async fn read<S: Store>(
        &mut self,
        store: &S,
        missing: &MissingReads,
    ) -> Result<(), StoreError> {
        let mut batch = ReadBatch::new();
        let blocks: Vec<_> = missing
            .blocks
            .iter()
            .map(|cidr| (*cidr, batch.get::<Block>(cidr)))
            .collect();
        let full: Vec<_> = missing
            .full
            .iter()
            .map(|(cidr, full)| (*cidr, full, batch.get_revision::<Block>(cidr)))
            .collect();
        let affinities: Vec<_> = missing
            .affinities
            .iter()
            .map(|key| (key.clone(), batch.get::<BlockAffinity>(key)))
            .collect();
        let handle = missing
            .handle
            .then(|| batch.get::<Handle>(&self.query.handle));
        let affinity_list = missing
            .own_affinities
            .then(|| batch.list::<BlockAffinity>(&AffinitySelect::of(self.query.owner.clone())));
        let ranges_only: BTreeSet<IpVersion> =
            missing.ranges.difference(&missing.lists).copied().collect();
        let (ranges, surveyed) = add_range_reads(&mut batch, store, ranges_only);
        let (reads, surveyed_ranges) = (
            read_unless_empty(store, &batch),
            survey_ranges(store, surveyed),
        );
        let rooms = self.survey_rooms(store, &missing.lists);
        let (answers, surveyed_ranges, mut rooms) =
            try_join3(reads, surveyed_ranges, rooms).await?;
        let lists = missing.lists.len() + missing.ranges.len();
        tracing::debug!(
            blocks = blocks.len(),
            lists,
            "read the objects for the next step of the allocation"
        );
        if let Some(ticket) = affinity_list {
            self.inputs.affinities = answers.list(&ticket);
            self.inputs.affinities_may_lag = false;
        }
        if let Some(ticket) = handle {
            self.inputs.handle = answers.get(&ticket)?.into();
        }
        for (cidr, ticket) in blocks {
            self.insert_block(cidr, answers.get(&ticket))?;
            self.mark_fresh(&cidr);
            // The block may have been deleted after an earlier read of the ranges. A survey of this
            // read may be newer.
            if missing.lists.is_empty() && self.blocks.get(&cidr) == Some(&BlockRead::Absent) {
                self.remove_block(cidr);
            }
        }
        for (cidr, full, ticket) in full {
            match answers.revision(&ticket) {
                Some(now) if now.resource_version() == full.revision => {
                    self.blocks
                        .insert(cidr, BlockRead::Surveyed(Room::none(full.in_use)));
                }
                _ => _ = self.changed.insert(cidr),
            }
        }
        self.ranges.extend(
            ranges
                .into_iter()
                .map(|(v, ticket)| (v, answers.listed_keys(&ticket).collect())),
        );
        self.ranges.extend(surveyed_ranges);
        let marked = std::mem::take(&mut rooms.marked);
        self.insert_survey(&missing.lists, rooms);
        self.complete_deletions(store, marked).await;
        for (key, ticket) in affinities {
            self.insert_affinity(key, answers.get(&ticket))?;
        }
        if missing.own_affinities {
            self.read_before_affinities = self.blocks.keys().copied().collect();
        }
        Ok(())
    }

    /// Reads again, for example after a lost race or an unknown outcome, also the inputs, since a
    /// pool may be disabled by now (IPAM-100). Blocks other than `touched` are removed from the
    /// snapshot.
    pub(crate) async fn refresh<S: Store>(
        &mut self,
        store: &S,
        now: OffsetDateTime,
        touched: impl IntoIterator<Item = Cidr>,
    ) -> Result<(), StoreError> {
        let mut batch = ReadBatch::new();
        let inputs = AllocationInputs::add_to(&mut batch, &self.query);
        let (mut blocks, mut missing_affinities) = (Vec::new(), Vec::new());
        for cidr in touched {
            blocks.push((cidr, batch.get::<Block>(&cidr)));
            let key = AffinityKey {
                owner: self.query.owner.clone(),
                cidr,
            };
            // The list omits an affinity that cannot be read.
            if !self.inputs.affinities.iter().any(|entry| entry.key == key) {
                missing_affinities.push((batch.get::<BlockAffinity>(&key), key));
            }
        }
        let (ranges, surveyed) =
            add_range_reads(&mut batch, store, self.ranges.keys().copied().collect());
        let (answers, surveyed) =
            try_join(store.read(&batch), survey_ranges(store, surveyed)).await?;
        let (reserved, skipped) = (
            std::mem::take(&mut self.reserved),
            std::mem::take(&mut self.skipped),
        );
        let inputs = AllocationInputs::from_answers(&answers, &inputs)?;
        let fresh = Snapshot::new(inputs, self.query.clone(), now)?.with_skipped(skipped);
        *self = Snapshot { reserved, ..fresh };
        self.limit_reserved_to_counted();
        self.ranges = ranges
            .into_iter()
            .map(|(v, ticket)| (v, answers.listed_keys(&ticket).collect()))
            .collect();
        self.ranges.extend(surveyed);
        for (cidr, ticket) in blocks {
            self.insert_block(cidr, answers.get(&ticket))?;
            // The block may have been deleted after the concurrent survey of the ranges.
            if self.blocks.get(&cidr) == Some(&BlockRead::Absent) {
                self.remove_block(cidr);
            }
        }
        for (ticket, key) in missing_affinities {
            self.insert_affinity(key, answers.get(&ticket))?;
        }
        Ok(())
    }
}

async fn read_unless_empty<S: Store>(store: &S, batch: &ReadBatch) -> Result<Answers, StoreError> {
    if batch.ranges().is_empty() {
        Ok(Answers::new(Vec::new()))
    } else {
        store.read(batch).await
    }
}

#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct MissingReads {
    pub(crate) blocks: BTreeSet<Cidr>,
    /// Families of which the room in every block is wanted.
    pub(crate) lists: BTreeSet<IpVersion>,
    /// Families of which only the range of every block is wanted.
    pub(crate) ranges: BTreeSet<IpVersion>,
    pub(crate) affinities: Vec<AffinityKey>,
    /// Whether to read all of the owner's affinities again, without a cache.
    pub(crate) own_affinities: bool,
    pub(crate) handle: bool,
    /// Blocks that a note lists as full, to verify that their revisions are unchanged.
    pub(crate) full: BTreeMap<Cidr, FullBlock>,
}

impl MissingReads {
    pub(crate) fn handle() -> Self {
        MissingReads {
            handle: true,
            ..MissingReads::default()
        }
    }

    pub(crate) fn blocks(blocks: impl IntoIterator<Item = Cidr>) -> Self {
        MissingReads {
            blocks: blocks.into_iter().collect(),
            ..MissingReads::default()
        }
    }

    pub(crate) fn list(version: IpVersion) -> Self {
        MissingReads {
            lists: BTreeSet::from([version]),
            ..MissingReads::default()
        }
    }

    pub(crate) fn ranges(version: IpVersion) -> Self {
        MissingReads {
            ranges: BTreeSet::from([version]),
            ..MissingReads::default()
        }
    }

    pub(crate) fn affinity(key: AffinityKey) -> Self {
        MissingReads {
            affinities: vec![key],
            ..MissingReads::default()
        }
    }

    pub(crate) fn and_own_affinities(self) -> Self {
        MissingReads {
            own_affinities: true,
            ..self
        }
    }

    pub(crate) fn merge(&mut self, other: MissingReads) {
        self.blocks.extend(other.blocks);
        self.lists.extend(other.lists);
        self.ranges.extend(other.ranges);
        self.affinities.extend(other.affinities);
        self.handle |= other.handle;
        self.own_affinities |= other.own_affinities;
        self.full.extend(other.full);
    }
}

//! Surveys of all blocks: their ranges, and the room in each.

use std::collections::{BTreeMap, BTreeSet};

use futures::future::join_all;
use libcalico::ipam::{Block, ListedBlock, Room};
use libcalico::net::{Cidr, IpVersion};
use libcalico::store::{Entry, KeysTicket, ReadBatch, Store, StoreError, Survey, WriteModel};

use super::{BlockRead, Snapshot, reservations};
use crate::block_writes::complete_deletion;
use crate::exhausted::SearchedPool;
use crate::write_gate::OpenGate;

/// Maximum number of deletions that one search completes.
const MAX_DELETIONS: usize = 32;

/// The result of a survey. Most blocks of a large cluster give no address, so only their range is
/// kept.
#[derive(Debug, Default)]
pub(super) struct Surveyed {
    ranges: Vec<Cidr>,
    /// Blocks that may give an address, and blocks in the snapshot. `None` marks a block that is
    /// unusable.
    rooms: Vec<(Cidr, Option<Room>)>,
    /// Empty blocks that are marked for deletion.
    pub(super) marked: Vec<Cidr>,
    pools: BTreeMap<Cidr, SearchedPool>,
}

impl Snapshot {
    /// Surveys the room in all blocks of `families`. Passed-over addresses count as free.
    pub(super) async fn survey_rooms<S: Store>(
        &self,
        store: &S,
        families: &BTreeSet<IpVersion>,
    ) -> Result<Surveyed, StoreError> {
        let mut surveyed = Surveyed::default();
        if families.is_empty() {
            return Ok(surveyed);
        }
        let ranges = self
            .inputs
            .pools
            .iter()
            .filter_map(|pool| pool.value.spec.range().ok());
        let pools = ranges.filter(|range| families.contains(&range.version()));
        surveyed.pools = pools
            .map(|range| (range, SearchedPool::empty(range)))
            .collect();
        let reserved = reservations(&self.inputs);
        let (config, owner, now) = (&self.inputs.config, &self.query.owner, self.now);
        let mut record = |listed: ListedBlock| {
            let cidr = listed.cidr();
            if matches!(&listed, ListedBlock::Block(summary) if summary.awaits_deletion()) {
                surveyed.marked.push(cidr);
            }
            let room = match listed {
                ListedBlock::Range(_) => None,
                ListedBlock::Block(summary) => {
                    summary.room(config.ip_cooldown_seconds, &reserved, owner, now)
                }
            };
            if !self
                .ranges(cidr.version())
                .is_some_and(|ranges| ranges.contains(&cidr))
            {
                surveyed.ranges.push(cidr);
            }
            let may_assign =
                |room: Room| room.is_own || room.may_be_reclaimed || !config.strict_affinity;
            if room.is_some_and(|room| room.has_free && may_assign(room))
                || self.blocks.contains_key(&cidr)
            {
                surveyed.rooms.push((cidr, room));
            }
            for pool in surveyed
                .pools
                .values_mut()
                .filter(|pool| pool.cidr.covers(&cidr))
            {
                room.into_iter().for_each(|room| pool.add(room));
            }
        };
        store
            .survey(
                &Survey {
                    families: families.clone(),
                    ranges_only: false,
                },
                &mut record,
            )
            .await?;
        Ok(surveyed)
    }

    pub(super) fn insert_survey(&mut self, families: &BTreeSet<IpVersion>, surveyed: Surveyed) {
        for family in families {
            self.ranges.entry(*family).or_default();
            self.surveyed_families.insert(*family);
        }
        for cidr in surveyed.ranges {
            self.ranges
                .entry(cidr.version())
                .and_modify(|ranges| _ = ranges.insert(cidr));
        }
        surveyed
            .rooms
            .into_iter()
            .for_each(|(cidr, room)| self.insert_room(cidr, room));
        self.pool_uses.extend(surveyed.pools);
    }

    /// Completes the deletions of `marked` blocks, whose deleter may have been killed, so that
    /// their ranges can be claimed again. A failure leaves the block unusable and does not fail the
    /// search: this node may lack the right.
    pub(super) async fn complete_deletions<S: Store>(&mut self, store: &S, mut marked: Vec<Cidr>) {
        fastrand::shuffle(&mut marked);
        marked.truncate(MAX_DELETIONS);
        let deletions = marked
            .into_iter()
            .map(async |cidr| (cidr, complete_deletion(store, &OpenGate, &cidr).await));
        for (cidr, is_deleted) in join_all(deletions).await {
            match is_deleted {
                Ok(true) => self.remove_block(cidr),
                Ok(false) => {}
                Err(error) => {
                    tracing::warn!(
                        block = %cidr, %error,
                        "cannot delete a marked block; its range stays unused",
                    );
                }
            }
        }
    }

    /// A completely read block that is full in both reads stays, since it has more detail.
    fn insert_room(&mut self, cidr: Cidr, room: Option<Room>) {
        let is_full = room.is_some_and(|room| !room.has_free);
        let is_full_as_read = |block: &Entry<Block>| block.value.free(&self.reservations) == 0;
        let is_kept = is_full && self.readable_block(&cidr).is_some_and(is_full_as_read);
        if !is_kept {
            self.blocks
                .insert(cidr, room.map_or(BlockRead::Corrupt, BlockRead::Surveyed));
        }
    }

    /// Returns the use of a pool, as far as its blocks are in the snapshot.
    pub(crate) fn pool_use(&self, pool: &Cidr) -> SearchedPool {
        if let Some(found) = self.pool_uses.get(pool) {
            return found.clone();
        }
        let mut pool_use = SearchedPool::empty(*pool);
        let of_pool = self.blocks.iter().filter(|(cidr, _)| pool.covers(cidr));
        of_pool
            .filter_map(|(_, block)| self.room(block))
            .for_each(|room| pool_use.add(room));
        pool_use
    }
}

/// Adds to a batch the read of the ranges of all blocks of `families`, and returns the tickets. A
/// store without transactions gets no such read: then returns the families, which have to be
/// surveyed instead.
pub(super) fn add_range_reads<S: Store>(
    batch: &mut ReadBatch,
    store: &S,
    families: BTreeSet<IpVersion>,
) -> (Vec<(IpVersion, KeysTicket<Block>)>, BTreeSet<IpVersion>) {
    match store.write_model() {
        WriteModel::Transactional => {
            let tickets = families
                .iter()
                .map(|version| (*version, batch.list_keys::<Block>(&Some(*version))))
                .collect();
            (tickets, BTreeSet::new())
        }
        WriteModel::PerObject => (Vec::new(), families),
    }
}

pub(super) async fn survey_ranges<S: Store>(
    store: &S,
    families: BTreeSet<IpVersion>,
) -> Result<BTreeMap<IpVersion, BTreeSet<Cidr>>, StoreError> {
    let mut ranges: BTreeMap<IpVersion, BTreeSet<Cidr>> =
        families.iter().map(|v| (*v, BTreeSet::new())).collect();
    if families.is_empty() {
        return Ok(ranges);
    }
    let mut record = |listed: ListedBlock| {
        let cidr = listed.cidr();
        ranges
            .entry(cidr.version())
            .and_modify(|ranges| _ = ranges.insert(cidr));
    };
    store
        .survey(
            &Survey {
                families,
                ranges_only: true,
            },
            &mut record,
        )
        .await?;
    Ok(ranges)
}

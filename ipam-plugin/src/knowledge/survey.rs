//! Surveys of all blocks: their ranges, and the room in them.

use std::collections::{BTreeMap, BTreeSet};

use libcalico::ipam::{Block, Room, Sighting};
use libcalico::net::{Cidr, IpVersion};
use libcalico::store::{KeysTicket, ReadBatch, Store, StoreError, Survey};

use super::{Knowledge, Known, reservations};
use crate::exhausted::SearchedPool;

/// The findings of a survey. Of a block that gives nothing its range is kept, and no more: most blocks of a large
/// cluster are such.
#[derive(Debug, Default)]
pub(super) struct Surveyed {
    /// The ranges that were not known.
    ranges: Vec<Cidr>,
    /// Blocks that may give an address, and those that were read before; `None` of one that is to be left alone.
    rooms: Vec<(Cidr, Option<Room>)>,
    /// The use of the pools of the families.
    pools: BTreeMap<Cidr, SearchedPool>,
}

impl Knowledge {
    /// Reads the room in all blocks of `families`. Addresses that are passed over may be taken when there is no other,
    /// and count as free.
    pub(super) async fn all_rooms<S: Store>(
        &self,
        store: &S,
        families: &BTreeSet<IpVersion>,
    ) -> Result<Surveyed, StoreError> {
        let mut surveyed = Surveyed::default();
        if families.is_empty() {
            return Ok(surveyed);
        }
        let ranges = self.prelude.pools.iter().filter_map(|pool| pool.value.spec.range().ok());
        let pools = ranges.filter(|range| families.contains(&range.version()));
        surveyed.pools = pools.map(|range| (range, SearchedPool::empty(range))).collect();
        let reserved = reservations(&self.prelude);
        let (config, owner, now) = (self.config(), &self.query.owner, self.now);
        let mut tell = |seen: Sighting| {
            let cidr = seen.cidr();
            let room = match seen {
                Sighting::Range(_) => None,
                Sighting::Block(glance) => glance.room(config.ip_cooldown_seconds, &reserved, owner, now),
            };
            if !self.ranges(cidr.version()).is_some_and(|ranges| ranges.contains(&cidr)) {
                surveyed.ranges.push(cidr);
            }
            let may_give = |room: Room| room.is_own || room.may_be_reclaimed || !config.strict_affinity;
            if room.is_some_and(|room| room.has_free && may_give(room)) || self.blocks.contains_key(&cidr) {
                surveyed.rooms.push((cidr, room));
            }
            for pool in surveyed.pools.values_mut().filter(|pool| pool.cidr.covers(&cidr)) {
                room.into_iter().for_each(|room| pool.add(room));
            }
        };
        store.survey(&Survey { families: families.clone(), ranges_only: false }, &mut tell).await?;
        Ok(surveyed)
    }

    /// Learns what a survey of all blocks of `families` found.
    pub(super) fn learn_all(&mut self, families: &BTreeSet<IpVersion>, surveyed: Surveyed) {
        for family in families {
            self.ranges.entry(*family).or_default();
            self.listed.insert(*family);
        }
        for cidr in surveyed.ranges {
            self.ranges.entry(cidr.version()).and_modify(|ranges| _ = ranges.insert(cidr));
        }
        surveyed.rooms.into_iter().for_each(|(cidr, room)| self.see(cidr, room));
        self.searched.extend(surveyed.pools);
    }

    /// A block that was read and is full in both stays as it is: its own words say more.
    fn see(&mut self, cidr: Cidr, room: Option<Room>) {
        let is_full = room.is_some_and(|room| !room.has_free);
        let stays =
            is_full && self.readable_block(&cidr).is_some_and(|block| block.value.free(&self.reservations) == 0);
        if !stays {
            self.blocks.insert(cidr, room.map_or(Known::Corrupt, Known::Seen));
        }
    }

    /// Returns how full a pool is, as far as its blocks are known.
    pub(crate) fn searched(&self, pool: &Cidr) -> SearchedPool {
        if let Some(found) = self.searched.get(pool) {
            return found.clone();
        }
        let mut found = SearchedPool::empty(*pool);
        let of_pool = self.blocks().filter(|(cidr, _)| pool.covers(cidr));
        of_pool.filter_map(|(_, block)| self.room(block)).for_each(|room| found.add(room));
        found
    }
}

/// Asks for the ranges of all blocks of `families` with a batch, where they cost no request of their own. Returns the
/// families that have to be surveyed for it.
pub(super) fn ask_ranges<S: Store>(
    batch: &mut ReadBatch,
    store: &S,
    families: BTreeSet<IpVersion>,
) -> (Vec<(IpVersion, KeysTicket<Block>)>, BTreeSet<IpVersion>) {
    match store.has_transactions() {
        true => (families.iter().map(|v| (*v, batch.list_keys::<Block>(&Some(*v)))).collect(), BTreeSet::new()),
        false => (Vec::new(), families),
    }
}

/// Reads the ranges of all blocks of `families`.
pub(super) async fn all_ranges<S: Store>(
    store: &S,
    families: BTreeSet<IpVersion>,
) -> Result<BTreeMap<IpVersion, BTreeSet<Cidr>>, StoreError> {
    let mut found: BTreeMap<IpVersion, BTreeSet<Cidr>> = families.iter().map(|v| (*v, BTreeSet::new())).collect();
    if families.is_empty() {
        return Ok(found);
    }
    let mut tell = |seen: Sighting| {
        let cidr = seen.cidr();
        found.entry(cidr.version()).and_modify(|ranges| _ = ranges.insert(cidr));
    };
    store.survey(&Survey { families, ranges_only: true }, &mut tell).await?;
    Ok(found)
}

//! [`Rooms`]: the rooms of the pools as they were last counted, and the ranges that no pool can
//! use.

use std::collections::BTreeMap;

use crate::ipam::PoolRoom;
use crate::net::Cidr;

/// The rooms of the pools. A count reads all blocks, so it is made at intervals and stored for
/// scrapes.
#[derive(Debug, Default)]
pub(super) struct Rooms {
    /// The rooms of the pools in service, by name.
    pub(super) of_pools: BTreeMap<Box<str>, PoolRoom>,
    /// True if a pool, a block or a reservation has changed since the last count.
    pub(super) has_changed: bool,
    /// The blocks that exist and are not indexed, because they are corrupt, too large or marked for
    /// deletion, with the number of the list that contained them.
    occupied: BTreeMap<Cidr, u8>,
}

impl Rooms {
    pub(super) fn add_occupied(&mut self, block: Cidr, list: u8) {
        self.has_changed |= self.occupied.insert(block, list).is_none();
    }

    pub(super) fn remove_occupied(&mut self, block: &Cidr) {
        self.has_changed |= self.occupied.remove(block).is_some();
    }

    /// Removes the blocks that the list with this number did not contain.
    pub(super) fn drop_unlisted(&mut self, list: u8) {
        let before = self.occupied.len();
        self.occupied.retain(|_, of_block| *of_block == list);
        self.has_changed |= self.occupied.len() != before;
    }

    pub(super) fn is_occupied(&self, block: &Cidr) -> bool {
        self.occupied.contains_key(block)
    }

    pub(super) fn occupied(&self) -> impl Iterator<Item = Cidr> {
        self.occupied.keys().copied()
    }

    /// Removes the room of a deleted pool.
    pub(super) fn remove_pool(&mut self, pool: &str) {
        self.has_changed |= self.of_pools.remove(pool).is_some();
    }
}

//! Changes of pools and reservations.

use std::collections::BTreeSet;

use super::super::rows::BlockRow;
use super::super::table::{Keyed, NONE, RowId};
use super::{Index, WatchedKind};
use crate::api::IpReservation;
use crate::ipam::Reservations;
use crate::net::Cidr;

#[derive(Debug)]
pub(in super::super) struct PoolRow {
    pub(in super::super) name: Box<str>,
    pub(in super::super) shape: PoolShape,
    list: u8,
}

/// The fields of a pool that the index keeps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolShape {
    /// The pool's range.
    pub cidr: Cidr,
    /// The prefix length of the pool's blocks.
    pub block_prefix: u8,
    /// The pool's UID; empty if the datastore has none.
    pub uid: String,
    /// True if the allocator may use the pool: it is in service, and its block size is valid.
    pub in_service: bool,
}

impl PoolShape {
    fn creates(&self, block: &Cidr) -> bool {
        self.in_service && self.block_prefix == block.prefix() && self.cidr.covers(block)
    }
}

impl Keyed for PoolRow {
    type Key<'k> = &'k str;

    fn key(&self) -> &str {
        &self.name
    }
}

/// The values for a pool's metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolSize<'a> {
    /// The pool's name.
    pub name: &'a str,
    /// The number of addresses in the pool.
    pub size: u128,
    /// The number of addresses that reservations cover.
    pub reserved: u128,
}

impl Index {
    /// Adds or updates a pool that is not being deleted.
    pub fn put_pool(&mut self, name: &str, shape: PoolShape) {
        let list = self.list(WatchedKind::Pools);
        match self.pools.find(name) {
            Some(row) => {
                let Some(pool) = self.pools.get_mut(row) else {
                    return;
                };
                pool.list = list;
                if pool.shape == shape {
                    return;
                }
                pool.shape = shape;
                self.mark_blocks_of_pool_changed(row);
            }
            None => {
                _ = self.pools.insert(PoolRow {
                    name: name.into(),
                    shape,
                    list,
                })
            }
        }
        self.rooms.has_changed = true;
        self.assign_pools();
    }

    /// Removes a deleted pool.
    pub fn remove_pool(&mut self, name: &str) {
        if let Some(row) = self.pools.find(name) {
            self.remove_pool_row(row);
        }
    }

    fn remove_pool_row(&mut self, row: RowId) {
        // The gauges are stored by the row of the pool, and the counters are removed with the pool
        // (KC-154).
        for block in self.blocks.rows() {
            if self
                .blocks
                .get(block)
                .is_some_and(|block| block.pool == row)
            {
                self.set_pool(block, NONE);
            }
        }
        if let Some(pool) = self.pools.remove(row) {
            self.gauges.remove_pool(&pool.name);
            self.rooms.remove_pool(&pool.name);
        }
        self.assign_pools();
    }

    pub(super) fn drop_unlisted_pools(&mut self) {
        let list = self.list(WatchedKind::Pools);
        let gone: Vec<RowId> = self
            .pools
            .iter()
            .filter(|(_, pool)| pool.list != list)
            .map(|(row, _)| row)
            .collect();
        gone.into_iter().for_each(|row| self.remove_pool_row(row));
    }

    /// Adds or updates a reservation.
    pub fn put_reservation(&mut self, reservation: &IpReservation) {
        let (ranges, _) = Reservations::of([reservation]);
        let list = self.list(WatchedKind::Reservations);
        self.reservations.insert(
            reservation.metadata.name.clone(),
            (ranges.ranges().to_vec(), list),
        );
        self.merge_reservations();
    }

    /// Removes a deleted reservation.
    pub fn remove_reservation(&mut self, name: &str) {
        self.reservations.remove(name);
        self.merge_reservations();
    }

    pub(super) fn drop_unlisted_reservations(&mut self) {
        let list = self.list(WatchedKind::Reservations);
        self.reservations
            .retain(|_, (_, entry_list)| *entry_list == list);
        self.merge_reservations();
    }

    fn merge_reservations(&mut self) {
        self.reserved = Reservations::new(
            self.reservations
                .values()
                .flat_map(|(ranges, _)| ranges)
                .copied(),
        );
        self.rooms.has_changed = true;
    }

    /// Returns the pools, sorted by name.
    pub fn pools(&self) -> Vec<PoolSize<'_>> {
        let ranges = self
            .pools
            .iter()
            .map(|(_, pool)| (&*pool.name, pool.shape.cidr));
        let mut pools: Vec<_> = ranges
            .map(|(name, cidr)| PoolSize {
                name,
                size: cidr.size(),
                reserved: self.reserved.within(&cidr),
            })
            .collect();
        pools.sort_unstable_by_key(|pool| pool.name);
        pools
    }

    /// Returns the pool of a block: the smallest one that contains the block, and among equal ones
    /// the first by name. Upstream takes any of them (KC-426).
    pub(in super::super) fn pool_of(&self, block: &Cidr) -> RowId {
        let containing = self
            .pools
            .iter()
            .filter(|(_, pool)| pool.shape.cidr.covers(block));
        let narrowest = containing
            .min_by_key(|(_, pool)| (std::cmp::Reverse(pool.shape.cidr.prefix()), &pool.name));
        narrowest.map_or(NONE, |(row, _)| row)
    }

    fn assign_pools(&mut self) {
        for row in self.blocks.rows() {
            let Some(block) = self.blocks.get(row) else {
                continue;
            };
            let pool = self.pool_of(&block.cidr);
            if pool != block.pool {
                self.set_pool(row, pool);
            }
        }
    }

    fn set_pool(&mut self, row: RowId, pool: RowId) {
        let Some(tracked) = self.blocks.get(row).map(|block| block.addresses.clone()) else {
            return;
        };
        self.count_all(row, &tracked, -1);
        if let Some(block) = self.blocks.get_mut(row) {
            block.pool = pool;
            let owner = block.owner;
            self.mark_blocks_changed(owner);
        }
        self.count_all(row, &tracked, 1);
    }

    fn mark_blocks_of_pool_changed(&mut self, pool: RowId) {
        let of_pool = self.blocks.iter().filter(|(_, block)| block.pool == pool);
        let owners: BTreeSet<RowId> = of_pool.map(|(_, block)| block.owner).collect();
        owners
            .into_iter()
            .for_each(|owner| self.mark_blocks_changed(owner));
    }

    /// Returns true if the block's pool is in service, and no pool in service creates blocks of
    /// this range.
    pub(super) fn has_former_size(&self, block: &BlockRow) -> bool {
        let Some(PoolRow { shape, .. }) = self.pools.get(block.pool) else {
            return false;
        };
        let is_suspect = shape.in_service && shape.block_prefix != block.cidr.prefix();
        is_suspect
            && !self
                .pools
                .iter()
                .any(|(_, pool)| pool.shape.creates(&block.cidr))
    }

    pub(in super::super) fn pool_name(&self, pool: RowId) -> Option<&str> {
        self.pools.get(pool).map(|pool| &*pool.name)
    }
}

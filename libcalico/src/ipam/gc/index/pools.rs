//! Changes of pools and reservations.

use super::super::table::{Keyed, NONE, RowId};
use super::{Index, WatchedKind};
use crate::api::IpReservation;
use crate::ipam::Reservations;
use crate::net::Cidr;

#[derive(Debug)]
pub(in super::super) struct PoolRow {
    pub(in super::super) name: Box<str>,
    pub(in super::super) cidr: Cidr,
    list: u8,
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
    pub fn put_pool(&mut self, name: &str, cidr: Cidr) {
        let list = self.list(WatchedKind::Pools);
        match self.pools.find(name) {
            Some(row) => {
                let Some(pool) = self.pools.get_mut(row) else { return };
                pool.list = list;
                if pool.cidr == cidr {
                    return;
                }
                pool.cidr = cidr;
            }
            None => _ = self.pools.insert(PoolRow { name: name.into(), cidr, list }),
        }
        self.assign_pools();
    }

    /// Removes a deleted pool.
    pub fn remove_pool(&mut self, name: &str) {
        if let Some(row) = self.pools.find(name) {
            self.remove_pool_row(row);
        }
    }

    fn remove_pool_row(&mut self, row: RowId) {
        // The gauges are stored by the row of the pool, and the counters are removed with the pool (KC-154).
        for block in self.blocks.rows() {
            if self.blocks.get(block).is_some_and(|block| block.pool == row) {
                self.set_pool(block, NONE);
            }
        }
        if let Some(pool) = self.pools.remove(row) {
            self.gauges.remove_pool(&pool.name);
        }
        self.assign_pools();
    }

    pub(super) fn drop_unlisted_pools(&mut self) {
        let list = self.list(WatchedKind::Pools);
        let gone: Vec<RowId> = self.pools.iter().filter(|(_, pool)| pool.list != list).map(|(row, _)| row).collect();
        gone.into_iter().for_each(|row| self.remove_pool_row(row));
    }

    /// Adds or updates a reservation.
    pub fn put_reservation(&mut self, reservation: &IpReservation) {
        let (ranges, _) = Reservations::of([reservation]);
        let list = self.list(WatchedKind::Reservations);
        self.reservations.insert(reservation.metadata.name.clone(), (ranges.ranges().to_vec(), list));
        self.merge_reservations();
    }

    /// Removes a deleted reservation.
    pub fn remove_reservation(&mut self, name: &str) {
        self.reservations.remove(name);
        self.merge_reservations();
    }

    pub(super) fn drop_unlisted_reservations(&mut self) {
        let list = self.list(WatchedKind::Reservations);
        self.reservations.retain(|_, (_, entry_list)| *entry_list == list);
        self.merge_reservations();
    }

    fn merge_reservations(&mut self) {
        self.reserved = Reservations::new(self.reservations.values().flat_map(|(ranges, _)| ranges).copied());
    }

    /// Returns the pools, sorted by name.
    pub fn pools(&self) -> Vec<PoolSize<'_>> {
        let rows = self.pools.iter().map(|(_, pool)| (&*pool.name, pool.cidr.size(), self.reserved.within(&pool.cidr)));
        let mut pools: Vec<_> = rows.map(|(name, size, reserved)| PoolSize { name, size, reserved }).collect();
        pools.sort_unstable_by_key(|pool| pool.name);
        pools
    }

    /// Returns the pool of a block: the smallest one that contains the block, and among equal ones the first by name.
    /// Upstream takes any of them (KC-426).
    pub(in super::super) fn pool_of(&self, block: &Cidr) -> RowId {
        let containing = self.pools.iter().filter(|(_, pool)| pool.cidr.covers(block));
        let narrowest = containing.min_by_key(|(_, pool)| (std::cmp::Reverse(pool.cidr.prefix()), &pool.name));
        narrowest.map_or(NONE, |(row, _)| row)
    }

    fn assign_pools(&mut self) {
        for row in self.blocks.rows() {
            let Some(block) = self.blocks.get(row) else { continue };
            let pool = self.pool_of(&block.cidr);
            if pool != block.pool {
                self.set_pool(row, pool);
            }
        }
    }

    fn set_pool(&mut self, row: RowId, pool: RowId) {
        let Some(tracked) = self.blocks.get(row).map(|block| block.addresses.clone()) else { return };
        self.count_all(row, &tracked, -1);
        if let Some(block) = self.blocks.get_mut(row) {
            block.pool = pool;
        }
        self.count_all(row, &tracked, 1);
    }

    pub(in super::super) fn pool_name(&self, pool: RowId) -> Option<&str> {
        self.pools.get(pool).map(|pool| &*pool.name)
    }
}

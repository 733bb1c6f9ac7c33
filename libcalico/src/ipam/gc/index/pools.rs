//! Pools and reservations come, change and go (KC-426, KC-154).

use super::super::table::{Keyed, NONE, Row};
use super::{Feed, Index};
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

/// A pool, for its metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolNumbers<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its addresses.
    pub size: u128,
    /// Those that reservations name.
    pub reserved: u128,
}

impl Index {
    /// A pool is there, new or changed. One that is being deleted is told as gone (KC-425).
    pub fn put_pool(&mut self, name: &str, cidr: Cidr) {
        let list = self.list(Feed::Pools);
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
        self.sort_into_pools();
    }

    /// A pool is gone.
    pub fn pool_gone(&mut self, name: &str) {
        if let Some(row) = self.pools.find(name) {
            self.forget_pool(row);
        }
    }

    fn forget_pool(&mut self, row: Row) {
        // Its counters begin anew with it (KC-154). The blocks leave it first, while its row still counts them.
        for block in self.blocks.rows() {
            if self.blocks.get(block).is_some_and(|block| block.pool == row) {
                self.set_pool(block, NONE);
            }
        }
        if let Some(pool) = self.pools.remove(row) {
            self.numbers.forget_pool(&pool.name);
        }
        self.sort_into_pools();
    }

    pub(super) fn drop_unlisted_pools(&mut self) {
        let list = self.list(Feed::Pools);
        let gone: Vec<Row> = self.pools.iter().filter(|(_, pool)| pool.list != list).map(|(row, _)| row).collect();
        gone.into_iter().for_each(|row| self.forget_pool(row));
    }

    /// A reservation is there, new or changed.
    pub fn put_reservation(&mut self, reservation: &IpReservation) {
        let (ranges, _) = Reservations::of([reservation]);
        let list = self.list(Feed::Reservations);
        self.reservations.insert(reservation.metadata.name.clone(), (ranges.ranges().to_vec(), list));
        self.unite_reservations();
    }

    /// A reservation is gone.
    pub fn reservation_gone(&mut self, name: &str) {
        self.reservations.remove(name);
        self.unite_reservations();
    }

    pub(super) fn drop_unlisted_reservations(&mut self) {
        let list = self.list(Feed::Reservations);
        self.reservations.retain(|_, (_, seen)| *seen == list);
        self.unite_reservations();
    }

    fn unite_reservations(&mut self) {
        self.reserved = Reservations::new(self.reservations.values().flat_map(|(ranges, _)| ranges).copied());
    }

    /// The pools, by name.
    pub fn pools(&self) -> Vec<PoolNumbers<'_>> {
        let mut pools: Vec<_> = self
            .pools
            .iter()
            .map(|(_, pool)| PoolNumbers {
                name: &pool.name,
                size: pool.cidr.size(),
                reserved: self.reserved.within(&pool.cidr),
            })
            .collect();
        pools.sort_unstable_by_key(|pool| pool.name);
        pools
    }

    /// The pool of a block: the narrowest around it, of several the first by name, or [`NONE`].
    pub(in super::super) fn pool_of(&self, block: &Cidr) -> Row {
        let around = self.pools.iter().filter(|(_, pool)| pool.cidr.covers(block));
        let narrowest = around.min_by_key(|(_, pool)| (std::cmp::Reverse(pool.cidr.prefix()), &pool.name));
        narrowest.map_or(NONE, |(row, _)| row)
    }

    fn sort_into_pools(&mut self) {
        for row in self.blocks.rows() {
            let Some(block) = self.blocks.get(row) else { continue };
            let pool = self.pool_of(&block.cidr);
            if pool != block.pool {
                self.set_pool(row, pool);
            }
        }
    }

    fn set_pool(&mut self, row: Row, pool: Row) {
        let Some(tracked) = self.blocks.get(row).map(|block| block.tracked.clone()) else { return };
        self.count_all(row, &tracked, -1);
        if let Some(block) = self.blocks.get_mut(row) {
            block.pool = pool;
        }
        self.count_all(row, &tracked, 1);
    }

    pub(in super::super) fn pool_name(&self, pool: Row) -> Option<&str> {
        self.pools.get(pool).map(|pool| &*pool.name)
    }
}

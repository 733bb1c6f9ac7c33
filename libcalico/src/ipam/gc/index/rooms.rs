//! Methods of [`Index`] that count the room of pools.

use std::collections::BTreeMap;

use super::super::rows::BlockRow;
use super::super::table::{NONE, RowId};
use super::Index;
use crate::ipam::{BlockRoom, IpamConfig, Pool, PoolRoom, pool_room};
use crate::net::Cidr;

/// The room of a pool in service, as it was last counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NamedRoom<'a> {
    /// The pool's name.
    pub name: &'a str,
    /// The pool's UID; empty if the datastore has none.
    pub uid: &'a str,
    /// The room.
    pub room: &'a PoolRoom,
}

impl Index {
    /// Returns true if a pool, a block or a reservation has changed since the last
    /// [`Index::count_rooms`].
    pub fn has_changed_rooms(&self) -> bool {
        self.rooms.has_changed
    }

    /// Counts the room of each pool in service. The time is proportional to the number of blocks
    /// and to that of pools in service.
    pub fn count_rooms(&mut self, config: &IpamConfig) {
        let indexed = self
            .blocks
            .iter()
            .map(|(_, block)| (block.pool, self.block_room(block)));
        let occupied = self.rooms.occupied().map(|cidr| (NONE, occupied(cidr)));
        let blocks: Vec<(RowId, BlockRoom<'_>)> = indexed.chain(occupied).collect();
        let in_service = self.pools.iter().filter(|(_, pool)| pool.shape.in_service);
        let room = |(row, pool): (RowId, &super::pools::PoolRow)| {
            let of_pool = blocks.iter().map(|(of, block)| BlockRoom {
                counts: block.counts && *of == row,
                ..*block
            });
            let (cidr, block_prefix) = (pool.shape.cidr, pool.shape.block_prefix);
            let (name, node_selector, allowed_uses) =
                (pool.name.to_string(), String::new(), Vec::new());
            let allocator_view = Pool {
                name,
                cidr,
                block_prefix,
                node_selector,
                allowed_uses,
            };
            (
                pool.name.clone(),
                pool_room(&allocator_view, of_pool, &self.reserved, config),
            )
        };
        let of_pools: BTreeMap<Box<str>, PoolRoom> = in_service.map(room).collect();
        self.rooms.of_pools = of_pools;
        self.rooms.has_changed = false;
    }

    /// Returns the rooms of the pools in service, sorted by name.
    pub fn rooms(&self) -> impl Iterator<Item = NamedRoom<'_>> {
        self.rooms.of_pools.iter().filter_map(|(name, room)| {
            let pool = self.pools.get(self.pools.find(name)?)?;
            Some(NamedRoom {
                name,
                uid: &pool.shape.uid,
                room,
            })
        })
    }

    fn block_room(&self, block: &BlockRow) -> BlockRoom<'_> {
        let (cidr, node) = (
            block.cidr,
            self.nodes.get(block.owner).map(|node| &*node.name),
        );
        let taken = block.addresses.len() + block.without_handle.len() + block.withheld.len();
        let unlisted = (taken as u128).saturating_add(self.reserved_and_free(block));
        let free = u64::try_from(cidr.size().saturating_sub(unlisted)).unwrap_or(u64::MAX);
        BlockRoom {
            cidr,
            node,
            allocated: block.allocated.into(),
            free,
            is_empty: block.used == 0,
            counts: true,
        }
    }

    /// Returns the number of reserved addresses of a block that are in its free list.
    fn reserved_and_free(&self, block: &BlockRow) -> u128 {
        let reserved = self.reserved.within(&block.cidr);
        if reserved == 0 {
            return 0;
        }
        let tracked = block
            .addresses
            .iter()
            .filter_map(|&row| Some(self.addresses.get(row)?.ordinal));
        let others = block.without_handle.iter().chain(&*block.withheld).copied();
        let is_reserved = |ordinal: &u16| {
            let address = block.cidr.nth(u128::from(*ordinal));
            address.is_some_and(|address| self.reserved.contains(address))
        };
        let taken = tracked.chain(others).filter(is_reserved).count();
        reserved.saturating_sub(taken as u128)
    }
}

/// Returns a block that only occupies its range.
fn occupied(cidr: Cidr) -> BlockRoom<'static> {
    BlockRoom {
        cidr,
        node: None,
        allocated: 0,
        free: 0,
        is_empty: false,
        counts: false,
    }
}

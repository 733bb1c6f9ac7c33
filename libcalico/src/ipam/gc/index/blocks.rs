//! Changes of blocks.

use super::super::rows::{AddressRow, BlockRow, CompactHandle, HandleRow, NEVER};
use super::super::table::{NONE, RowId};
use super::{Index, WatchedKind};
use crate::api::parse_time;
use crate::ipam::{AffinityOwner, Allocation, AllocationOwner, Block, CorruptBlock, HandleId};
use crate::net::Cidr;

/// The reason why no address of a block is collected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UnreadableBlock {
    /// The block is corrupt.
    #[error("no address of the block is collected: {0}")]
    Corrupt(#[from] CorruptBlock),
    /// The block has more than 65536 addresses.
    #[error("no address of block {0} is collected: the block has more than 65536 addresses")]
    TooLarge(Cidr),
}

struct StoredAllocation<'a> {
    ordinal: u16,
    handle: &'a str,
    sequence: Option<u64>,
    owner: AllocationOwner<'a>,
    node: Option<&'a str>,
    fingerprint: u32,
    /// The pods that an allocation for a VMI names as its owners.
    owner_pods: Box<[(Box<str>, Box<str>)]>,
}

struct Summary<'a> {
    allocations: Vec<StoredAllocation<'a>>,
    without_handle: Vec<u16>,
    withheld: Vec<u16>,
    allocated: u16,
    used: u16,
    cooling_since: i64,
}

impl Index {
    /// Adds or updates a block. A block that is marked for deletion counts as deleted.
    ///
    /// # Errors
    /// A block that is corrupt or too large is removed from the index.
    pub fn put_block(&mut self, block: &Block) -> Result<(), UnreadableBlock> {
        self.marked.remove(&block.cidr);
        if block.deleted {
            self.remove_unusable_block(&block.cidr);
            if block.awaits_deletion() {
                self.marked.insert(block.cidr);
            }
            return Ok(());
        }
        let summary = summarize(block).inspect_err(|_| self.remove_unusable_block(&block.cidr))?;
        self.rooms.remove_occupied(&block.cidr);
        let row = self
            .blocks
            .find(block.cidr)
            .unwrap_or_else(|| self.add_block(block.cidr));
        self.set_owner(row, block.owner());
        self.set_summary(row, &summary);
        self.set_addresses(row, &summary.allocations);
        Ok(())
    }

    /// Removes a deleted block.
    pub fn remove_block(&mut self, cidr: &Cidr) {
        self.marked.remove(cidr);
        self.rooms.remove_occupied(cidr);
        if let Some(row) = self.blocks.find(*cidr) {
            self.remove_block_row(row);
        }
    }

    /// Returns the empty blocks that are marked for deletion: their deleter was interrupted, or is
    /// about to delete them.
    pub fn marked_blocks(&self) -> impl Iterator<Item = Cidr> {
        self.marked.iter().copied()
    }

    /// Removes a block that exists and from which no address may be assigned.
    fn remove_unusable_block(&mut self, cidr: &Cidr) {
        if let Some(row) = self.blocks.find(*cidr) {
            self.remove_block_row(row);
        }
        let list = self.list(WatchedKind::Blocks);
        self.rooms.add_occupied(*cidr, list);
    }

    pub(super) fn drop_unlisted_blocks(&mut self) {
        let list = self.list(WatchedKind::Blocks);
        let gone: Vec<RowId> = self
            .blocks
            .iter()
            .filter(|(_, block)| block.list != list)
            .map(|(row, _)| row)
            .collect();
        gone.into_iter().for_each(|row| self.remove_block_row(row));
        self.rooms.drop_unlisted(list);
        let rooms = &self.rooms;
        self.marked.retain(|cidr| rooms.is_occupied(cidr));
    }

    fn add_block(&mut self, cidr: Cidr) -> RowId {
        let pool = self.pool_of(&cidr);
        let row = self.blocks.insert(BlockRow {
            cidr,
            owner: NONE,
            in_node: 0,
            pool,
            addresses: Box::default(),
            without_handle: Box::default(),
            withheld: Box::default(),
            allocated: 0,
            used: 0,
            cooling_since: NEVER,
            list: 0,
        });
        self.count_block(row, 1);
        self.conflicts.block_added(cidr);
        row
    }

    fn remove_block_row(&mut self, row: RowId) {
        let tracked = self
            .blocks
            .get_mut(row)
            .map(|block| std::mem::take(&mut block.addresses))
            .unwrap_or_default();
        for &address in &tracked {
            self.untrack(address);
        }
        self.count_block(row, -1);
        self.remove_block_from_node(row);
        let cooling_since = self
            .blocks
            .get(row)
            .map_or(NEVER, |block| block.cooling_since);
        self.reclaim.stop_timer(row);
        self.reclaim.set_cooling(row, cooling_since, NEVER);
        if let Some(block) = self.blocks.remove(row) {
            self.conflicts.block_removed(block.cidr);
        }
    }

    /// Moves the block, and those of its addresses that name no node, to the lists of the owner, if
    /// it is a node.
    fn set_owner(&mut self, row: RowId, owner: Option<AffinityOwner>) {
        let owner = match owner {
            Some(AffinityOwner::Host(name)) => self.node_row(&name),
            Some(AffinityOwner::Virtual(_)) | None => NONE,
        };
        let Some(block) = self.blocks.get(row).filter(|block| block.owner != owner) else {
            // A block that was released and claimed again between two lists looks unchanged. The
            // deleted node is therefore examined again, so that a new affinity is released, too.
            if !self.reclaim.deleted_nodes.contains_key(&owner) {
                self.node_changed(owner);
            }
            return;
        };
        let tracked = block.addresses.clone();
        self.count_all(row, &tracked, -1);
        self.remove_block_from_node(row);
        self.add_block_to_node(row, owner);
        for &address in &tracked {
            if self
                .addresses
                .get(address)
                .is_some_and(|tracked| !tracked.is(AddressRow::NAMES_NODE))
            {
                self.remove_from_node(address);
                self.add_to_node(address, owner);
                self.mark_dirty(address);
            }
        }
        self.count_all(row, &tracked, 1);
    }

    pub(super) fn count_all(&mut self, block: RowId, tracked: &[RowId], by: i64) {
        self.count_block(block, by);
        for &address in tracked {
            self.count(address, by);
            if self.leaks.get(address).is_some() {
                self.count_candidate(address, by);
            }
        }
    }

    fn set_summary(&mut self, row: RowId, summary: &Summary<'_>) {
        let list = self.list(WatchedKind::Blocks);
        let Some(block) = self.blocks.get_mut(row) else {
            return;
        };
        let (before, cooling_since, node) = (
            (block.allocated, block.used),
            block.cooling_since,
            block.owner,
        );
        (block.allocated, block.used, block.cooling_since, block.list) =
            (summary.allocated, summary.used, summary.cooling_since, list);
        block.without_handle = summary.without_handle.as_slice().into();
        if *block.withheld != *summary.withheld {
            block.withheld = summary.withheld.as_slice().into();
            self.rooms.has_changed = true;
        }
        self.reclaim
            .set_cooling(row, cooling_since, summary.cooling_since);
        if before != (summary.allocated, summary.used) {
            self.rooms.has_changed = true;
            self.mark_blocks_changed(node);
        }
    }

    fn set_addresses(&mut self, row: RowId, allocations: &[StoredAllocation<'_>]) {
        let Some(before) = self
            .blocks
            .get_mut(row)
            .map(|block| std::mem::take(&mut block.addresses))
        else {
            return;
        };
        let mut before = before.into_iter().peekable();
        let mut tracked = Vec::with_capacity(allocations.len());
        for stored in allocations {
            while let Some(gone) = before.next_if(|&address| self.ordinal(address) < stored.ordinal)
            {
                self.untrack(gone);
            }
            match before.next_if(|&address| self.ordinal(address) == stored.ordinal) {
                Some(same) if self.is_unchanged(row, same, stored) => tracked.push(same),
                changed => {
                    // Added first, so that names used by both are not removed in between.
                    tracked.push(self.track_stored(row, stored));
                    changed
                        .into_iter()
                        .for_each(|changed| self.untrack(changed));
                }
            }
        }
        before.for_each(|gone| self.untrack(gone));
        if let Some(block) = self.blocks.get_mut(row) {
            block.addresses = tracked.into();
        }
    }

    fn ordinal(&self, address: RowId) -> u16 {
        self.addresses
            .get(address)
            .map_or(u16::MAX, |tracked| tracked.ordinal)
    }

    /// Returns true if the allocation is unchanged. The fingerprint detects a new owner of a VMI's
    /// address, which upstream misses (KC-422).
    fn is_unchanged(&self, block: RowId, address: RowId, stored: &StoredAllocation<'_>) -> bool {
        let Some(tracked) = self.addresses.get(address) else {
            return false;
        };
        let block_owner = self.blocks.get(block).map_or(NONE, |block| block.owner);
        tracked.sequence() == stored.sequence
            && tracked.fingerprint == stored.fingerprint
            && (tracked.is(AddressRow::NAMES_NODE) || tracked.node == block_owner)
            && self.find_handle(stored.handle) == Some(tracked.handle)
    }

    fn track_stored(&mut self, block: RowId, stored: &StoredAllocation<'_>) -> RowId {
        let block_owner = self.blocks.get(block).map_or(NONE, |block| block.owner);
        let node = stored.node.map_or(block_owner, |node| self.node_row(node));
        let names = stored.owner.names();
        let owner = names.map_or(NONE, |(namespace, name)| {
            self.owner_row(stored.owner.kind(), namespace, name)
        });
        let mut tracked = AddressRow {
            sequence: stored.sequence.unwrap_or_default(),
            block,
            handle: self.handle_row(stored.handle),
            next_of_handle: NONE,
            owner,
            next_of_owner: NONE,
            node,
            in_node: 0,
            fingerprint: stored.fingerprint,
            ordinal: stored.ordinal,
            kind: stored.owner.kind(),
            flags: 0,
        };
        tracked.set(AddressRow::NUMBERED, stored.sequence.is_some());
        tracked.set(AddressRow::NAMES_NODE, stored.node.is_some());
        let row = self.track(tracked);
        if !stored.owner_pods.is_empty() {
            self.owner_pods.insert(row, stored.owner_pods.clone());
        }
        self.allocation_added(row);
        row
    }

    pub(in super::super) fn find_handle(&self, handle: &str) -> Option<RowId> {
        self.handles.find(&CompactHandle::parse(handle, |network| {
            self.networks.find(network)
        })?)
    }

    fn handle_row(&mut self, handle: &str) -> RowId {
        if let Some(row) = self.find_handle(handle) {
            return row;
        }
        let networks = &mut self.networks;
        let id = CompactHandle::parse(handle, |network| Some(networks.intern(network)));
        let id = id.unwrap_or_else(|| CompactHandle::Other(handle.into()));
        self.handles.insert(HandleRow {
            id,
            first_address: NONE,
        })
    }
}

fn summarize(block: &Block) -> Result<Summary<'_>, UnreadableBlock> {
    if block.capacity() > u128::from(u16::MAX) + 1 {
        return Err(UnreadableBlock::TooLarge(block.cidr));
    }
    block.verify()?;
    let mut summary = Summary {
        allocations: Vec::new(),
        without_handle: Vec::new(),
        withheld: withheld(block),
        allocated: 0,
        used: 0,
        cooling_since: NEVER,
    };
    for allocation in block.allocated() {
        let Some(attribute) = allocation.attribute else {
            continue;
        };
        summary.allocated = summary.allocated.saturating_add(1);
        summary.used = summary
            .used
            .saturating_add(u16::from(!attribute.is_windows_reserved()));
        if let Some(released) = &attribute.released_at {
            // `verify` rejects unreadable times.
            let released = parse_time(released).map_or(NEVER, |at| at.unix_timestamp());
            summary.cooling_since = summary.cooling_since.min(released);
            continue;
        }
        let handle = attribute
            .handle_id
            .as_deref()
            .map(HandleId::cut)
            .filter(|handle| !handle.is_empty());
        let (ordinal, sequence) = (allocation.ordinal as u16, allocation.sequence);
        let Some(handle) = handle else {
            summary.without_handle.push(ordinal);
            continue;
        };
        let (owner, node) = AllocationOwner::of(attribute);
        let fingerprint = AllocationOwner::fingerprint(attribute);
        let pods = matches!(owner, AllocationOwner::Vmi { .. })
            .then(|| AllocationOwner::owners(attribute));
        let owner_pods = pods
            .into_iter()
            .flatten()
            .map(|(ns, pod)| (ns.into(), pod.into()))
            .collect();
        summary.allocations.push(StoredAllocation {
            ordinal,
            handle,
            sequence,
            owner,
            node,
            fingerprint,
            owner_pods,
        });
    }
    Ok(summary)
}

/// Returns the ordinals that are cooling down, and those that are neither allocated nor in the free
/// list.
fn withheld(block: &Block) -> Vec<u16> {
    let cooling = block
        .allocated()
        .filter(Allocation::is_cooling)
        .map(|allocation| allocation.ordinal as u16);
    cooling
        .chain(block.lost_ordinals().map(|ordinal| ordinal as u16))
        .collect()
}

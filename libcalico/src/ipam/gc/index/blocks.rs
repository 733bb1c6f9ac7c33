//! Changes of blocks.

use super::super::rows::{BlockRow, CompactHandle, HandleRow, NEVER, Tracked};
use super::super::table::{NONE, Row};
use super::{Feed, Index};
use crate::api::parse_time;
use crate::ipam::{Block, Claim, CorruptBlock, HandleId, Owner};
use crate::net::Cidr;

/// The reason why no address of a block is collected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UnreadableBlock {
    /// The block is corrupt.
    #[error("no address of the block is collected: {0}")]
    Corrupt(#[from] CorruptBlock),
    /// The block is larger than any valid block.
    #[error("no address of block {0} is collected: the block has more than 65536 addresses")]
    TooLarge(Cidr),
}

/// An allocation, as read from a block.
struct StoredAllocation<'a> {
    ordinal: u16,
    handle: &'a str,
    sequence: Option<u64>,
    claim: Claim<'a>,
    node: Option<&'a str>,
    fingerprint: u32,
    /// The pods that an allocation for a VMI names as its owners.
    owners: Box<[(Box<str>, Box<str>)]>,
}

/// The data that the index takes from a block.
struct Summary<'a> {
    allocations: Vec<StoredAllocation<'a>>,
    nameless: Vec<u16>,
    taken: u16,
    used: u16,
    cold: i64,
}

impl Index {
    /// Adds or updates a block. A tombstone counts as a deleted block. A block that is corrupt or too large is removed
    /// from the index.
    pub fn put_block(&mut self, block: &Block) -> Result<(), UnreadableBlock> {
        if block.deleted {
            self.block_gone(&block.cidr);
            return Ok(());
        }
        let summary = match summarize(block) {
            Ok(summary) => summary,
            Err(unreadable) => {
                self.block_gone(&block.cidr);
                return Err(unreadable);
            }
        };
        let row = self.blocks.find(block.cidr).unwrap_or_else(|| self.add_block(block.cidr));
        self.set_owner(row, block.owner());
        self.set_summary(row, &summary);
        self.set_addresses(row, &summary.allocations);
        Ok(())
    }

    /// Removes a deleted block.
    pub fn block_gone(&mut self, cidr: &Cidr) {
        if let Some(row) = self.blocks.find(*cidr) {
            self.forget_block(row);
        }
    }

    pub(super) fn drop_unlisted_blocks(&mut self) {
        let list = self.list(Feed::Blocks);
        let gone: Vec<Row> = self.blocks.iter().filter(|(_, block)| block.list != list).map(|(row, _)| row).collect();
        for row in gone {
            self.forget_block(row);
        }
    }

    fn add_block(&mut self, cidr: Cidr) -> Row {
        let pool = self.pool_of(&cidr);
        let row = self.blocks.insert(BlockRow {
            cidr,
            owner: NONE,
            in_node: 0,
            pool,
            tracked: Box::default(),
            nameless: Box::default(),
            taken: 0,
            used: 0,
            cold: NEVER,
            list: 0,
        });
        self.count_block(row, 1);
        self.conflicts.block_came(cidr);
        row
    }

    fn forget_block(&mut self, row: Row) {
        let tracked = self.blocks.get_mut(row).map(|block| std::mem::take(&mut block.tracked)).unwrap_or_default();
        for &address in &tracked {
            self.untrack(address);
        }
        self.count_block(row, -1);
        self.disown(row);
        let cold = self.blocks.get(row).map_or(NEVER, |block| block.cold);
        self.balance.forget_block(row, cold);
        if let Some(block) = self.blocks.remove(row) {
            self.conflicts.block_went(block.cidr);
        }
    }

    /// Files the block under its owner, and the block's addresses that name no node under the owner's node.
    fn set_owner(&mut self, row: Row, owner: Option<Owner>) {
        let owner = match owner {
            Some(Owner::Host(name)) => self.node_row(&name),
            Some(Owner::Virtual(_)) | None => NONE,
        };
        let Some(block) = self.blocks.get(row).filter(|block| block.owner != owner) else {
            // A list cannot distinguish a block that was released and claimed again from the released block. If a
            // deleted node claimed a block again, its affinities must be released again.
            if !self.balance.is_departing(owner) {
                self.node_changed(owner);
            }
            return;
        };
        let tracked = block.tracked.clone();
        self.count_all(row, &tracked, -1);
        self.disown(row);
        self.own(row, owner);
        for &address in &tracked {
            let nameless = self.tracked.get(address).is_some_and(|tracked| !tracked.is(Tracked::NAMES_NODE));
            if nameless {
                self.unfile(address);
                self.file(address, owner);
                self.mark(address);
            }
        }
        self.count_all(row, &tracked, 1);
    }

    pub(super) fn count_all(&mut self, block: Row, tracked: &[Row], by: i64) {
        self.count_block(block, by);
        for &address in tracked {
            self.count(address, by);
            if self.leaks.get(address).is_some() {
                self.count_candidate(address, by);
            }
        }
    }

    fn set_summary(&mut self, row: Row, summary: &Summary<'_>) {
        let list = self.list(Feed::Blocks);
        let Some(block) = self.blocks.get_mut(row) else { return };
        let (was, cold, node) = ((block.taken, block.used), block.cold, block.owner);
        (block.taken, block.used, block.cold, block.list) = (summary.taken, summary.used, summary.cold, list);
        block.nameless = summary.nameless.as_slice().into();
        self.balance.set_cold(row, cold, summary.cold);
        if was != (summary.taken, summary.used) {
            self.unbalance(node);
        }
    }

    fn set_addresses(&mut self, row: Row, allocations: &[StoredAllocation<'_>]) {
        let Some(before) = self.blocks.get_mut(row).map(|block| std::mem::take(&mut block.tracked)) else { return };
        let mut before = before.into_iter().peekable();
        let mut tracked = Vec::with_capacity(allocations.len());
        for stored in allocations {
            while let Some(gone) = before.next_if(|&address| self.ordinal(address) < stored.ordinal) {
                self.untrack(gone);
            }
            match before.next_if(|&address| self.ordinal(address) == stored.ordinal) {
                Some(same) if self.is_unchanged(row, same, stored) => tracked.push(same),
                changed => {
                    // The new allocation is added first, so that names used by both are not removed in between.
                    tracked.push(self.track_stored(row, stored));
                    changed.into_iter().for_each(|changed| self.untrack(changed));
                }
            }
        }
        before.for_each(|gone| self.untrack(gone));
        if let Some(block) = self.blocks.get_mut(row) {
            block.tracked = tracked.into();
        }
    }

    fn ordinal(&self, address: Row) -> u16 {
        self.tracked.get(address).map_or(u16::MAX, |tracked| tracked.ordinal)
    }

    /// Returns true if the allocation is unchanged. The comparison includes a hash of the attributes, because a VMI's
    /// address changes owners without a new sequence number. Upstream misses such a change (KC-422).
    fn is_unchanged(&self, block: Row, address: Row, stored: &StoredAllocation<'_>) -> bool {
        let Some(tracked) = self.tracked.get(address) else { return false };
        let of_block = self.blocks.get(block).map_or(NONE, |block| block.owner);
        tracked.sequence() == stored.sequence
            && tracked.fingerprint == stored.fingerprint
            && (tracked.is(Tracked::NAMES_NODE) || tracked.node == of_block)
            && self.find_handle(stored.handle) == Some(tracked.handle)
    }

    fn track_stored(&mut self, block: Row, stored: &StoredAllocation<'_>) -> Row {
        let of_block = self.blocks.get(block).map_or(NONE, |block| block.owner);
        let node = stored.node.map_or(of_block, |node| self.node_row(node));
        let names = stored.claim.names();
        let subject = names.map_or(NONE, |(namespace, name)| self.subject_row(stored.claim.kind(), namespace, name));
        let mut tracked = Tracked {
            sequence: stored.sequence.unwrap_or_default(),
            block,
            handle: self.handle_row(stored.handle),
            handle_next: NONE,
            subject,
            subject_next: NONE,
            node,
            in_node: 0,
            fingerprint: stored.fingerprint,
            ordinal: stored.ordinal,
            kind: stored.claim.kind(),
            flags: 0,
        };
        tracked.set(Tracked::NUMBERED, stored.sequence.is_some());
        tracked.set(Tracked::NAMES_NODE, stored.node.is_some());
        let row = self.track(tracked);
        if !stored.owners.is_empty() {
            self.owners.insert(row, stored.owners.clone());
        }
        self.holder_came(row);
        row
    }

    pub(in super::super) fn find_handle(&self, handle: &str) -> Option<Row> {
        self.handles.find(&CompactHandle::read(handle, |network| self.networks.find(network))?)
    }

    fn handle_row(&mut self, handle: &str) -> Row {
        if let Some(row) = self.find_handle(handle) {
            return row;
        }
        let networks = &mut self.networks;
        let id = CompactHandle::read(handle, |network| Some(networks.take(network)));
        let id = id.unwrap_or_else(|| CompactHandle::Other(handle.into()));
        self.handles.insert(HandleRow { id, tracked: NONE })
    }
}

fn summarize(block: &Block) -> Result<Summary<'_>, UnreadableBlock> {
    if block.capacity() > u128::from(u16::MAX) + 1 {
        return Err(UnreadableBlock::TooLarge(block.cidr));
    }
    block.verify()?;
    let mut summary = Summary { allocations: Vec::new(), nameless: Vec::new(), taken: 0, used: 0, cold: NEVER };
    for allocation in block.allocated() {
        let Some(attribute) = allocation.attribute else { continue };
        summary.taken = summary.taken.saturating_add(1);
        summary.used = summary.used.saturating_add(u16::from(!attribute.is_windows_reserved()));
        if let Some(released) = &attribute.released_at {
            // `verify` rejects unreadable times, so the fallback is never used.
            let released = parse_time(released).map_or(NEVER, |at| at.unix_timestamp());
            summary.cold = summary.cold.min(released);
            continue;
        }
        let handle = attribute.handle_id.as_deref().map(HandleId::cut).filter(|handle| !handle.is_empty());
        let (ordinal, sequence) = (allocation.ordinal as u16, allocation.sequence);
        let Some(handle) = handle else {
            summary.nameless.push(ordinal);
            continue;
        };
        let (claim, node) = Claim::of(attribute);
        let fingerprint = Claim::fingerprint(attribute);
        let owners = match claim {
            Claim::Machine { .. } => Claim::owners(attribute).map(|(ns, pod)| (ns.into(), pod.into())).collect(),
            _ => Box::default(),
        };
        summary.allocations.push(StoredAllocation { ordinal, handle, sequence, claim, node, fingerprint, owners });
    }
    Ok(summary)
}

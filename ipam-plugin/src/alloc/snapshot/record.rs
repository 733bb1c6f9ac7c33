//! Records the writes of the operation in its [`Snapshot`].

use libcalico::ipam::{AffinityKey, Block, BlockAffinity, Handle};
use libcalico::net::Cidr;
use libcalico::store::{Entry, Kind, Revision};

use super::state::{BlockRead, Snapshot};
use crate::alloc::inputs::{BlockCounts, StoredHandle};

impl Snapshot {
    /// Records the stored handle and the counts in it that belong to this operation and are not used yet.
    pub(crate) fn record_handle(&mut self, value: Handle, revision: Revision, reserved: BlockCounts) {
        self.inputs.handle = StoredHandle::Existing(Entry { key: self.query.handle.clone(), value, revision });
        self.reserved = reserved;
    }

    /// Records that the operation took `n` addresses that the handle counted beforehand.
    pub(crate) fn consume_reserved(&mut self, block: &Cidr, n: usize) {
        if let Some(count) = self.reserved.get_mut(block) {
            *count = count.saturating_sub(n);
        }
        self.reserved.retain(|_, count| *count > 0);
    }

    /// Removes and returns the counts that the operation did not use.
    pub(crate) fn take_reserved(&mut self) -> BlockCounts {
        std::mem::take(&mut self.reserved)
    }

    /// Limits the reserved counts to the handle as read, because another process may have changed or deleted it.
    pub(super) fn limit_reserved_to_counted(&mut self) {
        let StoredHandle::Existing(entry) = &self.inputs.handle else { return self.reserved.clear() };
        let counted = |block: &Cidr| entry.value.block.get(block).and_then(|count| usize::try_from(*count).ok());
        self.reserved.iter_mut().for_each(|(block, n)| *n = (*n).min(counted(block).unwrap_or_default()));
        self.reserved.retain(|_, n| *n > 0);
    }

    pub(crate) fn record_block(&mut self, block: Block, revision: Revision) {
        let key = block.cidr;
        self.note_fresh_read(&key);
        self.ranges.entry(key.version()).and_modify(|ranges| _ = ranges.insert(key));
        self.blocks.insert(key, BlockRead::Present(Box::new(Entry { key, value: block, revision })));
    }

    pub(crate) fn record_affinity(&mut self, written: Entry<BlockAffinity>) {
        let affinities = &mut self.inputs.affinities;
        match affinities.iter_mut().find(|entry| entry.key == written.key) {
            Some(entry) => *entry = written,
            None => {
                affinities.push(written);
                affinities.sort_by_cached_key(|entry| BlockAffinity::path(&entry.key));
            }
        }
    }

    pub(crate) fn remove_affinity(&mut self, key: &AffinityKey) {
        self.inputs.affinities.retain(|entry| entry.key != *key);
        self.affinities.insert(key.clone(), None);
    }

    pub(crate) fn remove_block(&mut self, cidr: Cidr) {
        self.note_fresh_read(&cidr);
        self.ranges.entry(cidr.version()).and_modify(|ranges| _ = ranges.remove(&cidr));
        self.blocks.insert(cidr, BlockRead::Absent);
    }
}

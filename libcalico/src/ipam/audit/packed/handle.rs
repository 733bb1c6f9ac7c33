//! [`PackedHandle`]: a handle without a map.

use std::collections::BTreeMap;

use crate::ipam::{Handle, HandleId};
use crate::net::Cidr;
use crate::store::{Entry, Revision};

/// A handle with its counts.
#[derive(Debug, Clone, PartialEq)]
pub struct PackedHandle {
    /// The handle's ID.
    pub key: HandleId,
    /// The handle's revision.
    pub revision: Revision,
    counts: Box<[(Cidr, i64)]>,
}

impl PackedHandle {
    /// Packs a handle.
    pub fn of(entry: &Entry<Handle>) -> Self {
        let counts = entry.value.block.iter().map(|(block, count)| (*block, *count)).collect();
        // Copies have no unused capacity.
        PackedHandle { key: entry.key.clone(), revision: entry.revision.clone(), counts }
    }

    /// Returns the number of the handle's addresses per block.
    pub fn counts(&self) -> BTreeMap<Cidr, i64> {
        self.counts.iter().copied().collect()
    }

    /// Returns the blocks of [`PackedHandle::counts`].
    pub fn blocks(&self) -> impl Iterator<Item = Cidr> {
        self.counts.iter().map(|(block, _)| *block)
    }

    /// Returns the number of the handle's addresses in `block`.
    pub fn count(&self, block: &Cidr) -> Option<i64> {
        self.counts.iter().find(|(counted, _)| counted == block).map(|(_, count)| *count)
    }

    /// Returns the number of bytes, including those on the heap.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        size_of_val(self) + self.key.as_str().len() + self.revision.0.len() + size_of_val(&*self.counts)
    }
}

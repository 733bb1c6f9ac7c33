//! [`PackedHandle`]: a handle without a map.

use std::collections::BTreeMap;

use super::{Few, Texts};
use crate::ipam::{Handle, HandleId};
use crate::net::Cidr;
use crate::store::{Entry, Revision};

/// A handle with its counts.
#[derive(Debug, Clone, PartialEq)]
pub struct PackedHandle {
    /// The ID and the revision.
    texts: Texts<2>,
    counts: Few<(Cidr, i64)>,
}

impl PackedHandle {
    /// Packs a handle.
    pub fn of(entry: &Entry<Handle>) -> Self {
        let counts: Vec<_> = entry
            .value
            .block
            .iter()
            .map(|(block, count)| (*block, *count))
            .collect();
        let texts = [entry.key.as_str(), &entry.revision.0];
        PackedHandle {
            texts: Texts::of(texts.map(Some)),
            counts: Few::of(&counts),
        }
    }

    /// Returns the handle's ID as stored.
    pub fn id_text(&self) -> &str {
        self.texts.get(0).unwrap_or_default()
    }

    /// Returns the handle's ID as stored, with carriage returns that [`HandleId::new`] would cut.
    pub fn id(&self) -> HandleId {
        HandleId::uncut(self.id_text())
    }

    /// Returns the handle's revision.
    pub fn revision(&self) -> Revision {
        Revision(self.texts.get(1).unwrap_or_default().to_owned())
    }

    /// Returns the number of the handle's addresses per block.
    pub fn counts(&self) -> BTreeMap<Cidr, i64> {
        self.counts.get().iter().copied().collect()
    }

    /// Returns the blocks of [`PackedHandle::counts`].
    pub fn blocks(&self) -> impl Iterator<Item = Cidr> {
        self.counts.get().iter().map(|(block, _)| *block)
    }

    /// Returns the number of the handle's addresses in `block`.
    pub fn count(&self, block: &Cidr) -> Option<i64> {
        self.counts
            .get()
            .iter()
            .find(|(counted, _)| counted == block)
            .map(|(_, count)| *count)
    }

    /// Returns the number of bytes, including those on the heap.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        size_of_val(self) + self.texts.joined.len()
    }
}

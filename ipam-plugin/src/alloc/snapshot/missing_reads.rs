//! [`MissingReads`]: the objects that a plan needs next.

use std::collections::{BTreeMap, BTreeSet};

use libcalico::ipam::AffinityKey;
use libcalico::net::{Cidr, IpVersion};

use crate::exhausted::FullBlock;

/// The reads that a plan needs before it can continue.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct MissingReads {
    pub(crate) blocks: BTreeSet<Cidr>,
    /// Families of which the room in every block is wanted.
    pub(crate) lists: BTreeSet<IpVersion>,
    /// Families of which only the range of every block is wanted.
    pub(crate) ranges: BTreeSet<IpVersion>,
    /// Single affinities: those of other owners, and those newer than the inputs.
    pub(crate) affinities: Vec<AffinityKey>,
    /// Whether to read all of the owner's affinities again, without a cache.
    pub(crate) own_affinities: bool,
    /// Whether to read the handle, where the inputs did not.
    pub(crate) handle: bool,
    /// Blocks that a note lists as full, with the revisions noted. The read verifies that the revisions are unchanged.
    pub(crate) full: BTreeMap<Cidr, FullBlock>,
}

impl MissingReads {
    pub(crate) fn handle() -> Self {
        MissingReads { handle: true, ..MissingReads::default() }
    }

    pub(crate) fn blocks(blocks: impl IntoIterator<Item = Cidr>) -> Self {
        MissingReads { blocks: blocks.into_iter().collect(), ..MissingReads::default() }
    }

    pub(crate) fn list(version: IpVersion) -> Self {
        MissingReads { lists: BTreeSet::from([version]), ..MissingReads::default() }
    }

    pub(crate) fn ranges(version: IpVersion) -> Self {
        MissingReads { ranges: BTreeSet::from([version]), ..MissingReads::default() }
    }

    pub(crate) fn affinity(key: AffinityKey) -> Self {
        MissingReads { affinities: vec![key], ..MissingReads::default() }
    }

    /// Adds a read of all of the owner's affinities, without a cache.
    pub(crate) fn and_own_affinities(self) -> Self {
        MissingReads { own_affinities: true, ..self }
    }

    pub(crate) fn merge(&mut self, other: MissingReads) {
        self.blocks.extend(other.blocks);
        self.lists.extend(other.lists);
        self.ranges.extend(other.ranges);
        self.affinities.extend(other.affinities);
        self.handle |= other.handle;
        self.own_affinities |= other.own_affinities;
        self.full.extend(other.full);
    }
}

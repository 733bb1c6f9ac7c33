//! [`Wants`]: the objects that a plan needs next.

use std::collections::{BTreeMap, BTreeSet};

use libcalico::ipam::AffinityKey;
use libcalico::net::{Cidr, IpVersion};

use crate::exhausted::FullBlock;

/// The reads that a plan needs before it can continue.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Wants {
    pub(crate) blocks: BTreeSet<Cidr>,
    /// Families of which the room in every block is wanted.
    pub(crate) lists: BTreeSet<IpVersion>,
    /// Families of which only the range of every block is wanted.
    pub(crate) ranges: BTreeSet<IpVersion>,
    /// Single affinities: those of other owners, and those newer than the prelude.
    pub(crate) affinities: Vec<AffinityKey>,
    /// Whether to read all of the owner's affinities again, without a cache.
    pub(crate) claims: bool,
    /// Whether to read the handle, where the prelude did not.
    pub(crate) handle: bool,
    /// Blocks that a note lists as full, with the revisions noted. The read verifies that the revisions are unchanged.
    pub(crate) full: BTreeMap<Cidr, FullBlock>,
}

impl Wants {
    pub(crate) fn handle() -> Self {
        Wants { handle: true, ..Wants::default() }
    }

    pub(crate) fn blocks(blocks: impl IntoIterator<Item = Cidr>) -> Self {
        Wants { blocks: blocks.into_iter().collect(), ..Wants::default() }
    }

    pub(crate) fn list(version: IpVersion) -> Self {
        Wants { lists: BTreeSet::from([version]), ..Wants::default() }
    }

    pub(crate) fn ranges(version: IpVersion) -> Self {
        Wants { ranges: BTreeSet::from([version]), ..Wants::default() }
    }

    pub(crate) fn affinity(key: AffinityKey) -> Self {
        Wants { affinities: vec![key], ..Wants::default() }
    }

    /// Adds a read of all of the owner's affinities, without a cache.
    pub(crate) fn and_claims(self) -> Self {
        Wants { claims: true, ..self }
    }

    pub(crate) fn merge(&mut self, other: Wants) {
        self.blocks.extend(other.blocks);
        self.lists.extend(other.lists);
        self.ranges.extend(other.ranges);
        self.affinities.extend(other.affinities);
        self.handle |= other.handle;
        self.claims |= other.claims;
        self.full.extend(other.full);
    }
}

//! [`Wants`]: what a plan has to know before it can go on.

use std::collections::{BTreeMap, BTreeSet};

use libcalico::ipam::AffinityKey;
use libcalico::net::{Cidr, IpVersion};

use crate::exhausted::FullBlock;

/// The reads without which a plan cannot go on.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Wants {
    pub(crate) blocks: BTreeSet<Cidr>,
    /// Families of which it is wanted how much room each block has.
    pub(crate) lists: BTreeSet<IpVersion>,
    /// Families of which the range of every block is wanted, and no more.
    pub(crate) ranges: BTreeSet<IpVersion>,
    /// Single claims, of other owners or younger than the prelude.
    pub(crate) affinities: Vec<AffinityKey>,
    /// All of the owner's claims, as they are now.
    pub(crate) claims: bool,
    /// The handle, where it was not read with the prelude.
    pub(crate) handle: bool,
    /// Full blocks, as a note says, and the revision at which they were: whether they are the same still.
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

    /// The same, and all of the owner's claims as they are now.
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

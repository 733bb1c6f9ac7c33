//! [`Survey`]: a look at every block of some families, which keeps little of each.

use std::collections::BTreeSet;

use super::{Freshness, Kind, ListTicket, Range, ReadBatch};
use crate::ipam::{Block, BlockGlance, Sighting};
use crate::net::IpVersion;

/// The choice of blocks, and how closely they are looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Survey {
    /// The families of the blocks.
    pub families: BTreeSet<IpVersion>,
    /// Tell the range of each block and no more.
    pub ranges_only: bool,
}

impl Survey {
    /// Returns the range of pairs of each family.
    pub fn ranges(&self) -> Vec<Range> {
        let range = |family: &IpVersion| Range {
            kind: Block::KIND,
            path: Block::prefix(&Some(*family)),
            prefix: true,
            keys_only: self.ranges_only,
            freshness: Freshness::Latest,
        };
        self.families.iter().map(range).collect()
    }

    /// The same as a batch, for a store that reads all at once.
    pub(super) fn batch(&self) -> (ReadBatch, Vec<ListTicket<Block>>) {
        let mut batch = ReadBatch::new();
        let tickets = self.ranges().into_iter().map(|range| batch.add_list(range)).collect();
        (batch, tickets)
    }
}

/// Returns the block of a stored pair, whose value may have been left out; `None` for a pair of another kind.
pub fn sighting(path: &str, value: &[u8]) -> Option<Sighting> {
    let cidr = Block::parse_path(path)?;
    let glance = BlockGlance::decode(value).ok().filter(|glance| glance.cidr() == cidr);
    Some(glance.map_or(Sighting::Range(cidr), Sighting::Block))
}

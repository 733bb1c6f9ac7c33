//! [`Survey`]: a read of all blocks of some families that keeps only a small part of each block.

use std::collections::BTreeSet;

use super::{Freshness, Kind, ListTicket, Range, ReadBatch};
use crate::ipam::{Block, BlockGlance, Sighting};
use crate::net::IpVersion;

/// A selection of blocks, and the detail to read of each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Survey {
    /// The families of the blocks.
    pub families: BTreeSet<IpVersion>,
    /// Whether to read only the range of each block.
    pub ranges_only: bool,
}

impl Survey {
    /// Returns one range of stored pairs for each family.
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

    /// Returns the survey as one batch, for a store that reads everything at once.
    pub(super) fn batch(&self) -> (ReadBatch, Vec<ListTicket<Block>>) {
        let mut batch = ReadBatch::new();
        let tickets = self.ranges().into_iter().map(|range| batch.add_list(range)).collect();
        (batch, tickets)
    }
}

/// Returns the block of a stored pair, whose value may be empty; `None` for a pair of another kind.
pub fn sighting(path: &str, value: &[u8]) -> Option<Sighting> {
    let cidr = Block::parse_path(path)?;
    let glance = BlockGlance::decode(value).ok().filter(|glance| glance.cidr() == cidr);
    Some(glance.map_or(Sighting::Range(cidr), Sighting::Block))
}

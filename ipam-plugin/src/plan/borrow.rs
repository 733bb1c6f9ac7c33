//! Addresses from blocks of other nodes, and of nobody (IPAM-110 step 7, IPAM-120).

use libcalico::ipam::{Blocks, borrow_order};

use super::{FamilyPlan, Step};
use crate::error::{Exhaustion, IpamError};
use crate::knowledge::{Knowledge, Known, Wants};

impl FamilyPlan<'_> {
    /// The first block with room, in the order of the pools and of the node's walk over each. The claim to the block
    /// stays whose it is; only the attribute's `node` tells who borrowed.
    pub(super) fn borrow(&self, known: &Knowledge, remaining: usize) -> Result<Step, IpamError> {
        if !known.knows_all_blocks(self.version) {
            return Ok(Step::Read(Wants::list(self.version)));
        }
        let blocks: Blocks<'_> = known
            .blocks()
            .filter_map(|(cidr, block)| match block {
                Known::There(entry) if cidr.version() == self.version => Some((*cidr, Some(&entry.value))),
                _ => None,
            })
            .collect();
        for cidr in borrow_order(self.pools(), &blocks, &known.reservations, &self.owner, known.now) {
            if let Some(take) = self.take(known, &cidr, remaining, None)? {
                return Ok(Step::Take(take));
            }
        }
        Ok(Step::Short(Exhaustion::PoolsFull { pools: self.pools().iter().map(|pool| pool.cidr).collect() }))
    }
}

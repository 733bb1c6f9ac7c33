//! Addresses from blocks of other nodes, and of nobody (IPAM-110 step 7, IPAM-120).

use libcalico::ipam::borrow_order;
use libcalico::net::Cidr;

use super::{FamilyPlan, Step};
use crate::error::IpamError;
use crate::knowledge::{Knowledge, Known, Wants};

impl FamilyPlan<'_> {
    /// The first block with room, in the order of the pools and of the node's walk over each. The claim to the block
    /// stays whose it is; only the attribute's `node` tells who borrowed.
    pub(super) fn borrow(&self, known: &Knowledge, remaining: usize) -> Result<Step, IpamError> {
        if !known.knows_all_blocks(self.version) {
            return Ok(Step::Read(Wants::list(self.version)));
        }
        let of_family = known.blocks().filter(|(cidr, _)| cidr.version() == self.version);
        let with_room: Vec<Cidr> = of_family
            .filter(|(_, block)| known.room(block).is_some_and(|room| room.has_free))
            .map(|(cidr, _)| *cidr)
            .collect();
        for cidr in borrow_order(self.pools(), &with_room, &self.owner, known.now) {
            if let Some(Known::Seen(_)) = known.block(&cidr) {
                return Ok(Step::Read(Wants::blocks([cidr])));
            }
            if let Some(take) = self.take(known, &cidr, remaining, None)? {
                return Ok(Step::Take(take));
            }
        }
        Ok(Step::Short(self.exhaustion(known)))
    }
}

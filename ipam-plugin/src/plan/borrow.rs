//! Plans addresses from blocks that other nodes own, or that have no owner.

use libcalico::ipam::borrow_order;
use libcalico::net::Cidr;

use super::{FamilyPlan, Step};
use crate::error::IpamError;
use crate::knowledge::{Knowledge, Known, Wants};

impl FamilyPlan<'_> {
    /// Returns a step for the first block with room, in the order of the pools and of the node's walk over each. The
    /// block's affinity stays unchanged; only the attribute `node` of the allocation names the borrowing node
    /// (IPAM-120).
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

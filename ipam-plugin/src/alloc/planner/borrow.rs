//! Plans addresses from blocks that other nodes own, or that have no owner.

use libcalico::ipam::borrow_order;
use libcalico::net::Cidr;

use super::{FamilyPlanner, PlannerStep};
use crate::alloc::snapshot::{BlockRead, MissingReads, Snapshot};
use crate::error::IpamError;

impl FamilyPlanner<'_> {
    /// Returns a step for the first block with room, in the order of the pools and of the node's walk over each. The
    /// block's affinity stays unchanged; only the attribute `node` of the allocation names the borrowing node
    /// (IPAM-120).
    pub(super) fn borrow(&self, snapshot: &Snapshot, remaining: usize) -> Result<PlannerStep, IpamError> {
        if !snapshot.knows_all_blocks(self.version) {
            return Ok(PlannerStep::Read(MissingReads::list(self.version)));
        }
        let of_family = snapshot.blocks().filter(|(cidr, _)| cidr.version() == self.version);
        let with_room: Vec<Cidr> = of_family
            .filter(|(_, block)| snapshot.room(block).is_some_and(|room| room.has_free))
            .map(|(cidr, _)| *cidr)
            .collect();
        for cidr in borrow_order(self.pools(), &with_room, &self.owner, snapshot.now) {
            if let Some(BlockRead::Surveyed(_)) = snapshot.block(&cidr) {
                return Ok(PlannerStep::Read(MissingReads::blocks([cidr])));
            }
            if let Some(assignment) = self.take(snapshot, &cidr, remaining, None)? {
                return Ok(PlannerStep::Assign(assignment));
            }
        }
        Ok(PlannerStep::Exhausted(self.exhaustion(snapshot)))
    }
}

//! Blocks as a Windows host creates them.

use std::collections::BTreeMap;

use crate::ipam::{Attribute, Block, HandleId};

/// Addresses at both ends of a block that a Windows host reserves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HostReserved {
    /// The number of addresses at the start.
    pub(crate) start: usize,
    /// The number of addresses at the end.
    pub(crate) end: usize,
    /// The handle of these allocations.
    pub(crate) handle: HandleId,
    /// The reason, for people.
    pub(crate) note: String,
}

impl Block {
    /// Allocates the addresses that the host reserves in a new block, as in upstream without
    /// sequence numbers.
    #[must_use]
    pub(crate) fn with_host_reserved(mut self, reserved: &HostReserved) -> Self {
        let capacity = self.allocations.len();
        let end_at = capacity.saturating_sub(reserved.end);
        let taken = |ordinal: usize| ordinal < reserved.start || ordinal >= end_at;
        if !(0..capacity).any(taken) {
            return self;
        }
        let index = self.attributes.len();
        self.attributes.push(Attribute {
            handle_id: Some(reserved.handle.to_string()),
            active_owner: BTreeMap::from([("note".to_owned(), reserved.note.clone())]),
            ..Attribute::default()
        });
        self.unallocated.retain(|&ordinal| !taken(ordinal));
        for ordinal in (0..capacity).filter(|&ordinal| taken(ordinal)) {
            self.allocations[ordinal] = Some(index);
        }
        self
    }
}

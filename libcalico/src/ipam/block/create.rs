//! A new block, and what happens to a block as a whole.

use std::collections::BTreeMap;

use time::OffsetDateTime;

use super::{Attribute, Block};
use crate::api::Unknown;
use crate::ipam::stored_time::{clock_nanoseconds, stored_seconds};
use crate::ipam::{HandleId, Owner};
use crate::net::Cidr;

/// Most addresses in a block: a /20 or a /116 (IPAM-107).
pub const MAX_BLOCK_CAPACITY: u128 = 4096;

/// A block larger than any pool may ask for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a block of {0} would be too large; blocks are /20 to /32 or /116 to /128, set the pool's blockSize to that")]
pub struct BlockTooLarge(pub Cidr);

/// Addresses at both ends of a block that its host keeps for itself (Windows; IPAM-67).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostReserved {
    /// Addresses at the start.
    pub start: usize,
    /// Addresses at the end.
    pub end: usize,
    /// The handle they are held by.
    pub handle: HandleId,
    /// Why, for people.
    pub note: String,
}

impl Block {
    /// An unused block of `owner`. Its sequence number is the clock, so that a block which is deleted and created
    /// again never repeats one (IPAM-67).
    pub fn new(cidr: Cidr, owner: &Owner, now: OffsetDateTime) -> Result<Self, BlockTooLarge> {
        if cidr.size() > MAX_BLOCK_CAPACITY {
            return Err(BlockTooLarge(cidr));
        }
        let capacity = cidr.size() as usize;
        Ok(Block {
            cidr,
            affinity: Some(owner.to_string()),
            affinity_claim_time: Some(stored_seconds(now)),
            allocations: vec![None; capacity],
            unallocated: (0..capacity).collect(),
            attributes: Vec::new(),
            sequence_number: clock_nanoseconds(now),
            sequence_number_for_allocation: BTreeMap::new(),
            deleted: false,
            unknown: Unknown::new(),
        })
    }

    /// Takes the addresses that the host keeps for itself out of a new block. They get no sequence number (IPAM-67).
    /// Where both ends meet, the whole block is taken.
    #[must_use]
    pub fn with_host_reserved(mut self, reserved: &HostReserved) -> Self {
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

    /// Leaves the block to nobody: what is done with one that is given up while addresses in it are in use (IPAM-126).
    pub fn clear_affinity(&mut self) {
        self.affinity = None;
        self.affinity_claim_time = None;
    }

    /// Counts a write. To be called once for every write of the block but the one that creates it empty, after all
    /// changes that go into that write: what they allocate carries the number before (IPAM-167).
    ///
    /// A block created with its first allocation inside is counted too, and so ends like one created empty and then
    /// written: entry = clock, number = clock + 1 (IPAM-212).
    pub fn count_write(&mut self) {
        self.sequence_number = self.sequence_number.wrapping_add(1);
    }
}

//! Creates blocks, removes their owner, and counts their writes.

use std::collections::BTreeMap;

use time::OffsetDateTime;

use super::Block;
use crate::api::{Unknown, seconds_in_utc};
use crate::ipam::AffinityOwner;
use crate::net::Cidr;

/// The maximum number of addresses in a block: a /20 or a /116.
pub const MAX_BLOCK_CAPACITY: u128 = 4096;

/// A block that is larger than any pool's `blockSize` allows.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "block {0} is too large; set the pool's blockSize to 20..32 for IPv4, or to 116..128 for IPv6"
)]
pub struct BlockTooLarge(pub Cidr);

impl Block {
    /// Creates a block of `owner` in which every address is free. Its sequence number starts at the
    /// clock, so that a later block of this range does not repeat numbers unless the clock is set
    /// back (IPAM-67).
    pub fn new(
        cidr: Cidr,
        owner: &AffinityOwner,
        now: OffsetDateTime,
    ) -> Result<Self, BlockTooLarge> {
        if cidr.size() > MAX_BLOCK_CAPACITY {
            return Err(BlockTooLarge(cidr));
        }
        let capacity = cidr.size() as usize;
        Ok(Block {
            cidr,
            affinity: Some(owner.to_string()),
            affinity_claim_time: Some(seconds_in_utc(now)),
            allocations: vec![None; capacity],
            unallocated: (0..capacity).collect(),
            attributes: Vec::new(),
            sequence_number: clock_nanoseconds(now),
            sequence_number_for_allocation: BTreeMap::new(),
            deleted: false,
            unknown: Unknown::new(),
        })
    }

    /// Removes the owner from the block, as for a block that is given up with addresses in use
    /// (IPAM-126).
    pub fn clear_affinity(&mut self) {
        self.affinity = None;
        self.affinity_claim_time = None;
    }

    /// Raises the sequence number by one. Call it once for every write of the block except the
    /// creation of an empty one. Call it after all changes of that write: a new allocation records
    /// the number before the write.
    ///
    /// A block that is created together with its first allocation is counted, too (IPAM-212).
    pub fn count_write(&mut self) {
        self.sequence_number = self.sequence_number.wrapping_add(1);
    }
}

fn clock_nanoseconds(at: OffsetDateTime) -> u64 {
    u64::try_from(at.unix_timestamp_nanos().max(0)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use time::macros::datetime;

    use super::*;

    #[test]
    fn clock_before_the_epoch_counts_as_zero() {
        assert_eq!(clock_nanoseconds(datetime!(1969-12-31 23:59:59 UTC)), 0);
        assert_eq!(
            clock_nanoseconds(datetime!(1970-01-01 00:00:01 UTC)),
            1_000_000_000
        );
    }
}

//! [`ReleasedBatch`]: the outcome of a batch. [`Requests`]: the addresses that it releases.

use std::collections::BTreeMap;
use std::net::IpAddr;

use libcalico::ipam::{Block, HandleId, Owner, ReleaseError, ReleaseRequest};
use libcalico::net::Cidr;

use crate::error::IpamError;

/// Selects the addresses to release from a block that was just read. Called again whenever the block was read again. A
/// block for which this returns no request is only searched for addresses whose cooldown has ended, and written if
/// there are any.
pub trait Requests: Fn(&Block) -> Vec<ReleaseRequest> + Sync {}

impl<F: Fn(&Block) -> Vec<ReleaseRequest> + Sync> Requests for F {}

/// The outcome of a batch.
#[derive(Debug, Default)]
pub struct ReleasedBatch {
    /// The released addresses.
    pub released: Vec<(Cidr, IpAddr)>,
    /// Addresses that were free or cooling down.
    pub unallocated: Vec<(Cidr, IpAddr)>,
    /// Missing blocks.
    pub missing: Vec<Cidr>,
    /// Allocations that do not match the request, because the address was reallocated meanwhile.
    pub refused: Vec<(Cidr, ReleaseError)>,
    /// Blocks from which no address was released, with the errors.
    pub failed: Vec<(Cidr, IpamError)>,
    /// Number of blocks written.
    pub blocks_written: usize,
    /// Number of handles written or deleted.
    pub handles_written: usize,
    /// Handles that may count too many addresses, because they could not be written.
    pub handles_left: Vec<HandleId>,
    /// True if the gate closed; the remaining blocks were not tried.
    pub stopped: bool,
    /// Blocks that have no address now, with their owners.
    pub(super) emptied: Vec<(Cidr, Owner)>,
    /// The counts to take off handles.
    pub(super) counts: HandleCounts,
}

/// The number of released addresses, per handle and block.
pub(super) type HandleCounts = BTreeMap<HandleId, BTreeMap<Cidr, usize>>;

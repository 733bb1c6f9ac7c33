//! [`repair`]: the correction of a handle that disagrees with the blocks. Upstream has none: its kube-controllers
//! never lists handles, so orphaned handles accumulate (IPAM-230).

use std::collections::{BTreeMap, BTreeSet};

use super::audit::miscounted;
use super::{Block, Handle, HandleId};
use crate::net::Cidr;
use crate::store::{Entry, Revision};

/// A handle that has disagreed with the blocks for the grace period.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SuspectHandle {
    /// The handle.
    pub id: HandleId,
    /// The handle's revision during that time; `None` if the handle is missing. A handle with another revision is in
    /// use by an operation.
    pub revision: Option<Revision>,
    /// The blocks to read before [`repair`]: those that the handle counted addresses in and those that name the
    /// handle.
    pub blocks: BTreeSet<Cidr>,
}

/// The correction of a handle.
#[derive(Debug, Clone, PartialEq)]
pub enum HandleRepair {
    /// No correction.
    Keep,
    /// Deletes the handle at the revision that was read.
    Delete,
    /// Stores this value in place of the handle, or creates the handle if it is missing.
    Write(Handle),
}

/// Returns the correction of a handle, given the handle and its blocks as just read.
///
/// `block` returns each block that the handle counts addresses in or that [`SuspectHandle::blocks`] names: `None` if
/// the block was not read or is unreadable, `Some(None)` if it is missing. The handle is kept if a block was not read
/// or is corrupt, or if the handle was written since it became suspect.
pub fn repair<'b>(
    suspect: &SuspectHandle,
    handle: Option<&Entry<Handle>>,
    block: impl Fn(&Cidr) -> Option<Option<&'b Block>>,
) -> HandleRepair {
    if handle.map(|entry| &entry.revision) != suspect.revision.as_ref() {
        return HandleRepair::Keep;
    }
    let handle = handle.map(|entry| &entry.value);
    let id = HandleId::new(suspect.id.as_str());
    let mut held = BTreeMap::new();
    for cidr in handle.into_iter().flat_map(|handle| handle.block.keys()).chain(&suspect.blocks) {
        match block(cidr) {
            Some(Some(block)) if block.verify().is_ok() => match block.addresses_of(&id).len() {
                0 => {}
                n => _ = held.insert(*cidr, n),
            },
            Some(None) => {}
            Some(Some(_)) | None => return HandleRepair::Keep,
        }
    }
    match handle {
        None if held.is_empty() => HandleRepair::Keep,
        Some(_) if held.is_empty() => HandleRepair::Delete,
        Some(handle) if handle.deleted => HandleRepair::Keep,
        Some(handle) if miscounted(&handle.block, &held).next().is_none() => HandleRepair::Keep,
        handle => {
            let mut repaired = handle.cloned().unwrap_or_default();
            repaired.block.clear();
            held.into_iter().for_each(|(cidr, n)| repaired.increment(cidr, n));
            HandleRepair::Write(repaired)
        }
    }
}

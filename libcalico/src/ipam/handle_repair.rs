//! [`repair`]: what to do with a handle that disagrees with the blocks (IPAM-75, IPAM-230).

use std::collections::{BTreeMap, BTreeSet};

use super::audit::miscounted;
use super::{Block, Handle, HandleId};
use crate::net::Cidr;
use crate::store::{Entry, Revision};

/// A handle that has been wrong for long enough.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SuspectHandle {
    /// Which.
    pub id: HandleId,
    /// Its revision all that time; none for one that is not there. One that was written since is somebody's work.
    pub revision: Option<Revision>,
    /// The blocks to read before [`repair`]: those that it counted in and those that name it.
    pub blocks: BTreeSet<Cidr>,
}

/// What to do with a handle.
#[derive(Debug, Clone, PartialEq)]
pub enum HandleRepair {
    /// Nothing.
    Keep,
    /// Delete it, as it was read.
    Delete,
    /// Store this in its place; create it where there is none.
    Write(Handle),
}

/// What to do with a handle, by what was just read: itself, and each block that it counts in or that
/// [`SuspectHandle::blocks`] names. Of `block` the outer none is one that was not read, or cannot be: then nothing is done.
/// The inner one is a block that is not there. Nothing is done either about a handle that was written since it became
/// suspect.
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

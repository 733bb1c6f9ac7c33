//! Whose the addresses of a virtual machine are: they pass from pod to pod, and are given back at the very end.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use libcalico::ipam::{Block, Handle, HandleId, OwnerSlot};
use libcalico::kubernetes::MachinePod;
use libcalico::net::{Cidr, IpVersion};
use libcalico::store::{Entry, Store, StoreError, Write};

use crate::assignment_log::joined;
use crate::budget::{Budget, OPERATION};
use crate::clock::Clock;
use crate::error::IpamError;
use crate::prelude::HandleState;
use crate::read_blocks::read_blocks;
use crate::release::{Listings, ReleasePrelude, Turn, release_unlisted};

/// What a pod took over of its virtual machine.
#[derive(Debug)]
pub struct TakenOver {
    /// The machine's addresses, IPv4 first. None when it holds none yet.
    pub addresses: Vec<IpAddr>,
    /// The machine's handle, as read.
    pub handle: HandleState,
    /// The owner whose place the pod took; empty without one.
    pub replaced: BTreeMap<String, String>,
}

/// Makes a pod an owner of every address that its machine holds: the active owner, or the alternate one for the target
/// of a migration (IPAM-53).
pub async fn take_over<S: Store, C: Clock>(
    store: &S,
    clock: &C,
    handle: &HandleId,
    machine: &MachinePod,
    attributes: &BTreeMap<String, String>,
) -> Result<TakenOver, IpamError> {
    let slot = slot_of(machine);
    let mut replaced = BTreeMap::new();
    let take = |block: &mut Block| {
        // A write that is tried again may find the pod itself.
        if let Some(before) = block.owner_of(handle, slot).filter(|before| *before != attributes) {
            replaced.clone_from(before);
        }
        !block.set_owner(handle, slot, attributes).is_empty()
    };
    let (blocks, handle_read) = change(store, clock, handle, take).await?;
    let mut addresses: Vec<IpAddr> = blocks.iter().flat_map(|block| block.addresses_of(handle)).collect();
    addresses.sort_by_key(|ip| IpVersion::of(*ip));
    Ok(TakenOver { addresses, handle: handle_read, replaced })
}

/// Puts the owner that [`take_over`] replaced back in the place of a pod whose ADD failed. The machine keeps its
/// addresses: the pod that was there before may run.
pub async fn give_back<S: Store, C: Clock>(
    store: &S,
    clock: &C,
    handle: &HandleId,
    machine: &MachinePod,
    replaced: &BTreeMap<String, String>,
) -> Result<(), IpamError> {
    let pod = [machine.namespace.as_str(), machine.pod.as_str()];
    let restore = |block: &mut Block| block.restore_owner(handle, slot_of(machine), pod, replaced);
    change(store, clock, handle, restore).await.map(drop)
}

fn slot_of(machine: &MachinePod) -> OwnerSlot {
    if machine.is_migration_target() { OwnerSlot::Alternate } else { OwnerSlot::Active }
}

/// Takes a pod off the owners of its machine's addresses. With the last owner of a machine that is going the addresses
/// are given back (IPAM-55), unless another pod takes them over meanwhile. A machine that holds nothing is success.
/// `node` is the one that the pod ran on.
pub async fn leave<S: Store, C: Clock, L: Listings>(
    store: &S,
    clock: &C,
    handle: &HandleId,
    machine: &MachinePod,
    node: &str,
    listings: &L,
) -> Result<(), IpamError> {
    let clear = |block: &mut Block| block.clear_owner(handle, &machine.namespace, &machine.pod);
    change(store, clock, handle, clear).await?;
    if machine.is_going {
        let prelude = ReleasePrelude::read(store, std::slice::from_ref(handle)).await?;
        let prelude = prelude.on_node(node).unless_owned();
        let released = release_unlisted(store, clock, prelude, listings, &mut Turn::default()).await?;
        if !released.is_owned {
            tracing::info!(%handle, addresses = joined(&released.ips), "released with the virtual machine");
            return released.unreadable.first().map_or(Ok(()), |block| Err(IpamError::UnreadableBlock(*block)));
        }
    }
    tracing::info!(%handle, "the virtual machine keeps its addresses");
    Ok(())
}

/// Changes the blocks of a handle, writes those that `change` says it changed, and returns all of them as they are
/// then, with the handle.
async fn change<S: Store, C: Clock>(
    store: &S,
    clock: &C,
    handle: &HandleId,
    mut change: impl FnMut(&mut Block) -> bool,
) -> Result<(Vec<Block>, HandleState), IpamError> {
    let mut budget = Budget::new(clock, OPERATION);
    loop {
        let (mut blocks, read) = blocks_of(store, handle).await?;
        let mut writes = Vec::new();
        for block in &mut blocks {
            if change(&mut block.value) {
                block.value.count_write();
                writes.push(Write::update::<Block>(&block.key, &block.value, &block.revision)?);
            }
        }
        let outcome = if writes.is_empty() { Ok(Vec::new()) } else { store.write(&writes).await };
        match outcome {
            Ok(_) => return Ok((blocks.into_iter().map(|block| block.value).collect(), read)),
            // To do it again changes nothing more, so that what took effect of it does not matter.
            Err(error) if error.cause.is_race() && budget.pause().await => {}
            Err(error) if error.cause.is_race() => return Err(IpamError::Contention),
            Err(error) => return Err(error.cause.into()),
        }
    }
}

async fn blocks_of<S: Store>(store: &S, handle: &HandleId) -> Result<(Vec<Entry<Block>>, HandleState), IpamError> {
    let entry = match store.get::<Handle>(handle).await {
        Ok(entry) => entry,
        Err(StoreError::NotFound { .. }) => return Ok((Vec::new(), HandleState::Absent)),
        Err(error) => return Err(error.into()),
    };
    let named: BTreeSet<Cidr> = entry.value.block.keys().copied().collect();
    Ok((read_blocks(store, named).await?, HandleState::There(entry)))
}

#[cfg(test)]
mod tests;

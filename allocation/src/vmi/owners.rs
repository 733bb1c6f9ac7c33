//! The owners of a VMI's addresses.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use libcalico::ipam::{Block, Handle, HandleId, OwnerSlot};
use libcalico::kubernetes::VmiPod;
use libcalico::net::{Cidr, IpVersion};
use libcalico::store::{Entry, Store, Write};
use time::OffsetDateTime;

use crate::alloc::comma_separated;
use crate::alloc::inputs::StoredHandle;
use crate::error::{IpamError, Result};
use crate::reads::{find, read_blocks};
use crate::release::{ReleaseInputs, ReleasedHandles};
use crate::retry::{OPERATION_TIME, Retry};
use os::clock::Clock;

/// The addresses of a VMI, after a pod became an owner of them.
#[derive(Debug)]
pub struct AdoptedAddresses {
    /// The VMI's addresses, IPv4 first; empty if it has none yet.
    pub addresses: Vec<IpAddr>,
    /// The VMI's handle, as read.
    pub handle: StoredHandle,
    /// The attributes of the owner that the pod replaced; empty if there was none.
    pub replaced: BTreeMap<String, String>,
}

/// Makes a pod an owner of every address of its VMI: the active owner, or the alternate one if the
/// pod is the target of a migration (IPAM-53).
pub async fn adopt_addresses<S: Store, C: Clock>(
    store: &S,
    clock: &C,
    handle: &HandleId,
    vmi: &VmiPod,
    attributes: &BTreeMap<String, String>,
) -> Result<AdoptedAddresses> {
    let slot = slot_of(vmi);
    let mut replaced = BTreeMap::new();
    let set_owner = |block: &mut Block| {
        // A repeated write may find the pod itself as owner.
        if let Some(before) = block
            .owner_of(handle, slot)
            .filter(|before| *before != attributes)
        {
            replaced.clone_from(before);
        }
        !block.set_owner(handle, slot, attributes).is_empty()
    };
    let (blocks, handle_read) = update_blocks(store, clock, handle, set_owner).await?;
    let mut addresses: Vec<IpAddr> = blocks
        .iter()
        .flat_map(|block| block.addresses_of(handle))
        .collect();
    addresses.sort_by_key(|ip| IpVersion::of(*ip));
    Ok(AdoptedAddresses {
        addresses,
        handle: handle_read,
        replaced,
    })
}

/// Restores the owner that [`adopt_addresses`] replaced, after the ADD of a pod failed.
pub async fn restore_owner<S: Store, C: Clock>(
    store: &S,
    clock: &C,
    handle: &HandleId,
    vmi: &VmiPod,
    replaced: &BTreeMap<String, String>,
) -> Result<()> {
    let pod = [vmi.namespace.as_str(), vmi.pod.as_str()];
    let restore = |block: &mut Block| block.restore_owner(handle, slot_of(vmi), pod, replaced);
    update_blocks(store, clock, handle, restore).await.map(drop)
}

fn slot_of(vmi: &VmiPod) -> OwnerSlot {
    if vmi.is_migration_target() {
        OwnerSlot::Alternate
    } else {
        OwnerSlot::Active
    }
}

/// The ownership of a pod in the addresses that its VMI keeps.
#[derive(Debug)]
pub struct Ownership<'a> {
    /// The handle of the VMI.
    pub handle: HandleId,
    /// The VMI, as the pod has it.
    pub vmi: &'a VmiPod,
    /// The node on which the pod ran.
    pub node: &'a str,
    /// The time from which on the pod remains an owner: of addresses of which it became one at that
    /// time or later. `None` without such a limit.
    pub before: Option<OffsetDateTime>,
}

impl Ownership<'_> {
    /// Removes the pod from the owners. If the VMI is being deleted, returns the handle to release
    /// as long as no address has an owner (IPAM-55).
    pub async fn remove<S: Store, C: Clock>(
        &self,
        store: &S,
        clock: &C,
    ) -> Result<Option<ReleaseInputs>> {
        let Ownership {
            handle,
            vmi,
            node,
            before,
        } = self;
        let clear =
            |block: &mut Block| block.clear_owner(handle, &vmi.namespace, &vmi.pod, *before);
        update_blocks(store, clock, handle, clear).await?;
        if !vmi.is_being_deleted {
            self.log_kept();
            return Ok(None);
        }
        let inputs = ReleaseInputs::read(store, std::slice::from_ref(handle)).await?;
        Ok(Some(inputs.on_node(node).unless_owned()))
    }

    /// Ends the release of the handle that [`Ownership::remove`] returned.
    pub fn end(&self, released: &ReleasedHandles) -> Result<()> {
        if released.is_owned {
            self.log_kept();
            return Ok(());
        }
        tracing::info!(
            handle = %self.handle, addresses = comma_separated(&released.ips),
            "released the addresses of a virtual machine that is being deleted"
        );
        released
            .unreadable
            .first()
            .map_or(Ok(()), |block| Err(IpamError::UnreadableBlock(*block)))
    }

    fn log_kept(&self) {
        tracing::info!(
            handle = %self.handle,
            "the pod owns no more addresses of the virtual machine"
        );
    }
}

/// Changes the blocks of a handle and writes those for which `change` returns true. Returns all
/// blocks as changed, with the handle.
async fn update_blocks<S: Store, C: Clock>(
    store: &S,
    clock: &C,
    handle: &HandleId,
    mut change: impl FnMut(&mut Block) -> bool,
) -> Result<(Vec<Block>, StoredHandle)> {
    let mut retry = Retry::new(clock, OPERATION_TIME);
    loop {
        let (mut blocks, read) = read_blocks_of(store, handle).await?;
        let mut writes = Vec::new();
        for block in &mut blocks {
            if change(&mut block.value) {
                block.value.count_write();
                writes.push(Write::update::<Block>(
                    &block.key,
                    &block.value,
                    &block.revision,
                )?);
            }
        }
        let outcome = if writes.is_empty() {
            Ok(Vec::new())
        } else {
            store.write(&writes).await
        };
        match outcome {
            Ok(_) => return Ok((blocks.into_iter().map(|block| block.value).collect(), read)),
            // Repeating the change has no further effect.
            Err(error) if error.cause.is_race() => retry.pause_after_race().await?,
            Err(error) => return Err(error.cause.into()),
        }
    }
}

async fn read_blocks_of<S: Store>(
    store: &S,
    handle: &HandleId,
) -> Result<(Vec<Entry<Block>>, StoredHandle)> {
    let Some(entry) = find::<Handle>(store, handle).await? else {
        return Ok((Vec::new(), StoredHandle::Absent));
    };
    let named: BTreeSet<Cidr> = entry.value.block.keys().copied().collect();
    Ok((
        read_blocks(store, named).await?,
        StoredHandle::Existing(entry),
    ))
}

//! States that an interrupted call of upstream leaves behind.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use integration_tests::cluster::NAMESPACE;
use integration_tests::content::NETWORK;
use integration_tests::node::Sandbox;
use libcalico::ipam::{
    AffinityKey, AffinityOwner, AffinitySelect, AffinityState, Block, BlockAffinity, BlockRequest,
    Handle, HandleId,
};
use libcalico::net::{Cidr, IpVersion};
use libcalico::store::{Entry, Kind, Store, StoreError};
use time::OffsetDateTime;

use super::world::World;

#[derive(Debug, Clone, Copy)]
enum Moment {
    /// The handle counts an address that is not allocated.
    HandleWritten,
    /// The address is allocated, and nothing else is done.
    BlockWritten,
    /// The handle counts more addresses than the sandbox has, after a conflict about a block.
    Overcounted,
    /// The affinity exists, the block does not.
    ClaimPending,
    /// The block exists, and the affinity is not confirmed.
    ClaimUnconfirmed,
    /// The affinity is pendingDeletion, and the block still has it.
    ClaimGoing,
    /// The affinity is pendingDeletion, and the block is deleted.
    BlockGone,
    /// The handle is marked as deleted but still exists.
    HandleBuried,
    /// The affinity is marked as deleted but still exists.
    ClaimBuried,
}

const MOMENTS: [Moment; 9] = [
    Moment::HandleWritten,
    Moment::BlockWritten,
    Moment::Overcounted,
    Moment::ClaimPending,
    Moment::ClaimUnconfirmed,
    Moment::ClaimGoing,
    Moment::BlockGone,
    Moment::HandleBuried,
    Moment::ClaimBuried,
];

/// Creates some of these states. Returns their sandboxes, which the runtime will delete.
pub(crate) fn leave(world: &mut World<'_>) -> Result<Vec<(usize, Sandbox)>> {
    let mut owners = Vec::new();
    for _ in 0..world.rng.usize(..3) {
        let Some(moment) = world.rng.choice(MOMENTS) else {
            continue;
        };
        let node = world.rng.usize(..world.nodes.len());
        world.history.push(format!(
            "{}: upstream's call ends at {moment:?}",
            world.nodes[node].name
        ));
        owners.extend(leave_one(world, moment, node)?.map(|sandbox| (node, sandbox)));
    }
    // A sandbox whose handle counts too many addresses is deleted on its own node.
    let node_of = |(node, sandbox): (usize, Sandbox)| {
        let live = world.live.get(&sandbox.container_id);
        (live.map_or(node, |live| live.node), sandbox)
    };
    Ok(owners.into_iter().map(node_of).collect())
}

fn leave_one(world: &mut World<'_>, moment: Moment, node: usize) -> Result<Option<Sandbox>> {
    // Upstream marks objects before it deletes them only on Kubernetes.
    let is_buried = matches!(moment, Moment::HandleBuried | Moment::ClaimBuried);
    if is_buried && !world.has_pods() {
        return Ok(None);
    }
    let owner = AffinityOwner::Host(world.nodes[node].name.as_str().into());
    let free = free_block(world)?;
    match moment {
        Moment::HandleWritten | Moment::HandleBuried => {
            let sandbox = world.sandbox(node);
            let mut handle = Handle {
                deleted: is_buried,
                ..Handle::default()
            };
            handle.increment(
                world
                    .rng
                    .choice(blocks_of_pool().collect::<Vec<_>>())
                    .context("a block")?,
                1,
            );
            put(world, &handle_of(&sandbox), &handle)?;
            Ok(Some(sandbox))
        }
        Moment::BlockWritten => allocate(world, node, &owner),
        Moment::Overcounted => {
            let live: Vec<_> = world
                .live
                .values()
                .map(|live| live.sandbox.clone())
                .collect();
            let Some(sandbox) = world.rng.choice(live) else {
                return Ok(None);
            };
            let mut found = get::<Handle>(world, &handle_of(&sandbox))?.context("a handle")?;
            let block = *found
                .value
                .block
                .keys()
                .next()
                .context("a handle counts a block")?;
            found.value.increment(block, 1);
            update(world, &found)?;
            Ok(Some(sandbox))
        }
        Moment::ClaimPending | Moment::BlockGone | Moment::ClaimBuried => {
            let Some(cidr) = free else { return Ok(None) };
            let state = match moment {
                Moment::ClaimPending => AffinityState::Pending,
                _ => AffinityState::PendingDeletion,
            };
            claim(
                world,
                owner,
                cidr,
                BlockAffinity {
                    state,
                    deleted: is_buried,
                    ..BlockAffinity::default()
                },
            )?;
            Ok(None)
        }
        Moment::ClaimUnconfirmed => {
            let Some(cidr) = free else { return Ok(None) };
            let pending = BlockAffinity {
                state: AffinityState::Pending,
                ..BlockAffinity::default()
            };
            if claim(world, owner.clone(), cidr, pending)? {
                put(
                    world,
                    &cidr,
                    &Block::new(cidr, &owner, OffsetDateTime::now_utc())?,
                )?;
            }
            Ok(None)
        }
        Moment::ClaimGoing => {
            let select = AffinitySelect::default();
            let claims = world
                .runtime
                .block_on(world.datastore.list::<BlockAffinity>(&select))?;
            let of_node: Vec<_> = claims
                .into_iter()
                .filter(|claim| claim.key.owner == owner)
                .collect();
            if let Some(mut claim) = world.rng.choice(of_node) {
                claim.value.state = AffinityState::PendingDeletion;
                world.claims.insert(claim.key.cidr.to_string());
                update(world, &claim)?;
            }
            Ok(None)
        }
    }
}

/// Makes the first two writes of upstream's ADD: the handle and the block. Returns `None` if no
/// block of the node has a free address.
fn allocate(world: &mut World<'_>, node: usize, owner: &AffinityOwner) -> Result<Option<Sandbox>> {
    let blocks = world
        .runtime
        .block_on(world.datastore.list::<Block>(&Some(IpVersion::V4)))?;
    let of_node = blocks
        .into_iter()
        .filter(|block| block.value.owner().as_ref() == Some(owner));
    let Some(mut block) = of_node
        .into_iter()
        .find(|block| !block.value.unallocated.is_empty())
    else {
        return Ok(None);
    };
    let sandbox = world.sandbox(node);
    let id = handle_of(&sandbox);
    let mut attributes = BTreeMap::from([("node".to_owned(), world.nodes[node].name.clone())]);
    if let Some((_, pod)) = &sandbox.pod {
        attributes.extend([
            ("namespace".to_owned(), NAMESPACE.to_owned()),
            ("pod".to_owned(), pod.clone()),
        ]);
    }
    let request = BlockRequest {
        handle: Some(&id),
        attributes: &attributes,
        requester: owner,
        check_affinity: false,
    };
    let mut addresses = (0..).map_while(|n| block.key.nth(n));
    let taken = addresses.any(|address| block.value.assign_address(address, &request).is_ok());
    anyhow::ensure!(taken, "{} has room and gives no address", block.key);
    block.value.count_write();
    let mut handle = Handle::default();
    handle.increment(block.key, 1);
    put(world, &id, &handle)?;
    update(world, &block)?;
    Ok(Some(sandbox))
}

/// Creates an affinity. Returns false if it exists already.
fn claim(
    world: &mut World<'_>,
    owner: AffinityOwner,
    cidr: Cidr,
    value: BlockAffinity,
) -> Result<bool> {
    world.claims.insert(cidr.to_string());
    let key = AffinityKey { owner, cidr };
    match world
        .runtime
        .block_on(world.datastore.create::<BlockAffinity>(&key, &value))
    {
        Err(StoreError::AlreadyExists { .. }) => Ok(false),
        created => Ok(created.map(|_| true)?),
    }
}

fn handle_of(sandbox: &Sandbox) -> HandleId {
    HandleId::for_container(NETWORK, &sandbox.container_id)
}

/// Returns the CIDR of a random block that does not exist and has no affinity; `None` if no such
/// block is left.
fn free_block(world: &mut World<'_>) -> Result<Option<Cidr>> {
    let blocks = world
        .runtime
        .block_on(world.datastore.list::<Block>(&None))?;
    let claims = world.runtime.block_on(
        world
            .datastore
            .list::<BlockAffinity>(&AffinitySelect::default()),
    )?;
    let taken = |cidr: &Cidr| {
        blocks.iter().any(|block| block.key == *cidr)
            || claims.iter().any(|claim| claim.key.cidr == *cidr)
    };
    let free: Vec<Cidr> = blocks_of_pool().filter(|cidr| !taken(cidr)).collect();
    Ok(world.rng.choice(free))
}

fn blocks_of_pool() -> impl Iterator<Item = Cidr> {
    (0..8).filter_map(|n| format!("10.65.0.{}/29", n * 8).parse().ok())
}

fn put<K: Kind>(world: &World<'_>, key: &K::Key, value: &K) -> Result<()> {
    Ok(world
        .runtime
        .block_on(world.datastore.create::<K>(key, value))
        .map(drop)?)
}

fn get<K: Kind>(world: &World<'_>, key: &K::Key) -> Result<Option<Entry<K>>> {
    match world.runtime.block_on(world.datastore.get::<K>(key)) {
        Err(StoreError::NotFound { .. }) => Ok(None),
        found => Ok(Some(found?)),
    }
}

fn update<K: Kind>(world: &World<'_>, entry: &Entry<K>) -> Result<()> {
    Ok(world
        .runtime
        .block_on(
            world
                .datastore
                .update::<K>(&entry.key, &entry.value, &entry.revision),
        )
        .map(drop)?)
}

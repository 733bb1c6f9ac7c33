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

use super::node_pair::NodePair;

#[derive(Debug, Clone, Copy)]
enum Moment {
    /// The handle counts an address that is not allocated.
    HandleWritten,
    /// The address is allocated, and nothing else is done.
    BlockWritten,
    /// The handle counts more addresses than the sandbox has, after a conflict about a block.
    Overcounted,
    /// The affinity exists, the block does not.
    AffinityPending,
    /// The block exists, and the affinity is not confirmed.
    AffinityUnconfirmed,
    /// The affinity is pendingDeletion, and the block still has it.
    AffinityPendingDeletion,
    /// The affinity is pendingDeletion, and the block is deleted.
    BlockDeleted,
    /// The handle is marked as deleted but still exists.
    HandleMarkedDeleted,
    /// The affinity is marked as deleted but still exists.
    AffinityMarkedDeleted,
}

const MOMENTS: [Moment; 9] = [
    Moment::HandleWritten,
    Moment::BlockWritten,
    Moment::Overcounted,
    Moment::AffinityPending,
    Moment::AffinityUnconfirmed,
    Moment::AffinityPendingDeletion,
    Moment::BlockDeleted,
    Moment::HandleMarkedDeleted,
    Moment::AffinityMarkedDeleted,
];

/// Creates some of these states. Returns their sandboxes, which the runtime will delete.
pub(crate) fn create(pair: &mut NodePair<'_>) -> Result<Vec<(usize, Sandbox)>> {
    let mut owners = Vec::new();
    for _ in 0..pair.rng.usize(..3) {
        let Some(moment) = pair.rng.choice(MOMENTS) else {
            continue;
        };
        let node = pair.rng.usize(..pair.nodes.len());
        pair.history.push(format!(
            "{}: upstream's call ends at {moment:?}",
            pair.nodes[node].name
        ));
        owners.extend(create_one(pair, moment, node)?.map(|sandbox| (node, sandbox)));
    }
    // A sandbox whose handle counts too many addresses is deleted on its own node.
    let node_of = |(node, sandbox): (usize, Sandbox)| {
        let live = pair.live.get(&sandbox.container_id);
        (live.map_or(node, |live| live.node), sandbox)
    };
    Ok(owners.into_iter().map(node_of).collect())
}

fn create_one(pair: &mut NodePair<'_>, moment: Moment, node: usize) -> Result<Option<Sandbox>> {
    // Upstream marks objects before it deletes them only on Kubernetes.
    let is_marked_deleted = matches!(
        moment,
        Moment::HandleMarkedDeleted | Moment::AffinityMarkedDeleted
    );
    if is_marked_deleted && !pair.has_pods() {
        return Ok(None);
    }
    let owner = AffinityOwner::Host(pair.nodes[node].name.as_str().into());
    let free = free_block(pair)?;
    match moment {
        Moment::HandleWritten | Moment::HandleMarkedDeleted => {
            let sandbox = pair.sandbox(node);
            let mut handle = Handle {
                deleted: is_marked_deleted,
                ..Handle::default()
            };
            handle.increment(
                pair.rng
                    .choice(blocks_of_pool().collect::<Vec<_>>())
                    .context("a block")?,
                1,
            );
            put(pair, &handle_of(&sandbox), &handle)?;
            Ok(Some(sandbox))
        }
        Moment::BlockWritten => allocate(pair, node, &owner),
        Moment::Overcounted => {
            let live: Vec<_> = pair
                .live
                .values()
                .map(|live| live.sandbox.clone())
                .collect();
            let Some(sandbox) = pair.rng.choice(live) else {
                return Ok(None);
            };
            let mut found = get::<Handle>(pair, &handle_of(&sandbox))?.context("a handle")?;
            let block = *found
                .value
                .block
                .keys()
                .next()
                .context("a handle counts a block")?;
            found.value.increment(block, 1);
            update(pair, &found)?;
            Ok(Some(sandbox))
        }
        Moment::AffinityPending | Moment::BlockDeleted | Moment::AffinityMarkedDeleted => {
            let Some(cidr) = free else { return Ok(None) };
            let state = match moment {
                Moment::AffinityPending => AffinityState::Pending,
                _ => AffinityState::PendingDeletion,
            };
            claim(
                pair,
                owner,
                cidr,
                BlockAffinity {
                    state,
                    deleted: is_marked_deleted,
                    ..BlockAffinity::default()
                },
            )?;
            Ok(None)
        }
        Moment::AffinityUnconfirmed => {
            let Some(cidr) = free else { return Ok(None) };
            let pending = BlockAffinity {
                state: AffinityState::Pending,
                ..BlockAffinity::default()
            };
            if claim(pair, owner.clone(), cidr, pending)? {
                put(
                    pair,
                    &cidr,
                    &Block::new(cidr, &owner, OffsetDateTime::now_utc())?,
                )?;
            }
            Ok(None)
        }
        Moment::AffinityPendingDeletion => {
            let select = AffinitySelect::default();
            let claims = pair
                .runtime
                .block_on(pair.datastore.list::<BlockAffinity>(&select))?;
            let of_node: Vec<_> = claims
                .into_iter()
                .filter(|claim| claim.key.owner == owner)
                .collect();
            if let Some(mut claim) = pair.rng.choice(of_node) {
                claim.value.state = AffinityState::PendingDeletion;
                pair.claims.insert(claim.key.cidr.to_string());
                update(pair, &claim)?;
            }
            Ok(None)
        }
    }
}

/// Makes the first two writes of upstream's ADD: the handle and the block. Returns `None` if no
/// block of the node has a free address.
fn allocate(
    pair: &mut NodePair<'_>,
    node: usize,
    owner: &AffinityOwner,
) -> Result<Option<Sandbox>> {
    let blocks = pair
        .runtime
        .block_on(pair.datastore.list::<Block>(&Some(IpVersion::V4)))?;
    let of_node = blocks
        .into_iter()
        .filter(|block| block.value.owner().as_ref() == Some(owner));
    let Some(mut block) = of_node
        .into_iter()
        .find(|block| !block.value.unallocated.is_empty())
    else {
        return Ok(None);
    };
    let sandbox = pair.sandbox(node);
    let id = handle_of(&sandbox);
    let mut attributes = BTreeMap::from([("node".to_owned(), pair.nodes[node].name.clone())]);
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
    put(pair, &id, &handle)?;
    update(pair, &block)?;
    Ok(Some(sandbox))
}

/// Creates an affinity. Returns false if it exists already.
fn claim(
    pair: &mut NodePair<'_>,
    owner: AffinityOwner,
    cidr: Cidr,
    value: BlockAffinity,
) -> Result<bool> {
    pair.claims.insert(cidr.to_string());
    let key = AffinityKey { owner, cidr };
    match pair
        .runtime
        .block_on(pair.datastore.create::<BlockAffinity>(&key, &value))
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
fn free_block(pair: &mut NodePair<'_>) -> Result<Option<Cidr>> {
    let blocks = pair.runtime.block_on(pair.datastore.list::<Block>(&None))?;
    let claims = pair.runtime.block_on(
        pair.datastore
            .list::<BlockAffinity>(&AffinitySelect::default()),
    )?;
    let taken = |cidr: &Cidr| {
        blocks.iter().any(|block| block.key == *cidr)
            || claims.iter().any(|claim| claim.key.cidr == *cidr)
    };
    let free: Vec<Cidr> = blocks_of_pool().filter(|cidr| !taken(cidr)).collect();
    Ok(pair.rng.choice(free))
}

fn blocks_of_pool() -> impl Iterator<Item = Cidr> {
    (0..8).filter_map(|n| format!("10.65.0.{}/29", n * 8).parse().ok())
}

fn put<K: Kind>(pair: &NodePair<'_>, key: &K::Key, value: &K) -> Result<()> {
    Ok(pair
        .runtime
        .block_on(pair.datastore.create::<K>(key, value))
        .map(drop)?)
}

fn get<K: Kind>(pair: &NodePair<'_>, key: &K::Key) -> Result<Option<Entry<K>>> {
    match pair.runtime.block_on(pair.datastore.get::<K>(key)) {
        Err(StoreError::NotFound { .. }) => Ok(None),
        found => Ok(Some(found?)),
    }
}

fn update<K: Kind>(pair: &NodePair<'_>, entry: &Entry<K>) -> Result<()> {
    Ok(pair
        .runtime
        .block_on(
            pair.datastore
                .update::<K>(&entry.key, &entry.value, &entry.revision),
        )
        .map(drop)?)
}

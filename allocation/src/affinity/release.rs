//! Releases blocks of a host or of a pool, and empty blocks whose pool no longer selects the node
//! (IPAM-149).

use libcalico::api::{IpPool, Node, ObjectKey, ObjectSelect};
use libcalico::ipam::{
    AffinityKey, AffinityOwner, AffinitySelect, Block, BlockAffinity, enabled_pool,
};
use libcalico::net::Cidr;
use libcalico::selector::Selector;
use libcalico::store::{Entry, ReadBatch, Store, StoreError};

use crate::affinity::labels::may_lack_labels;
use crate::affinity::repair::release_affinity;
use crate::error::{IpamError, Result};
use crate::retry::{OPERATION_TIME, Retry};
use crate::write_gate::{GatedStore, WriteGate};
use os::clock::Clock;

/// The result of a release of several affinities.
#[derive(Debug, Default)]
pub struct ReleasedAffinities {
    /// Blocks that the owner no longer has.
    pub released: Vec<Cidr>,
    /// Blocks that could not be released, with the errors.
    pub kept: Vec<(Cidr, IpamError)>,
}

/// Releases every block of `owner`, or with `only_empty` those without addresses. An error for one
/// block does not stop the others, unless the datastore is unreachable. If `gate` refuses a write,
/// the result is [`IpamError::Stopped`], and any process may complete an affinity that is between
/// two writes.
pub async fn release_host_affinities<S: Store, C: Clock, G: WriteGate>(
    store: &S,
    clock: &C,
    gate: &G,
    owner: &AffinityOwner,
    only_empty: bool,
) -> Result<ReleasedAffinities> {
    let gated = GatedStore::new(store, gate);
    let outcome = host_affinities(&gated, clock, owner, only_empty).await;
    if gated.has_refused() {
        Err(IpamError::Stopped)
    } else {
        outcome
    }
}

async fn host_affinities<S: Store, C: Clock>(
    store: &S,
    clock: &C,
    owner: &AffinityOwner,
    only_empty: bool,
) -> Result<ReleasedAffinities> {
    let mut batch = ReadBatch::new();
    let labeled = batch.list::<BlockAffinity>(&AffinitySelect::of(owner.clone()));
    // Versions before the labels wrote affinities that a list by owner does not contain.
    let unlabeled = may_lack_labels(store)
        .then(|| batch.list::<BlockAffinity>(&AffinitySelect::without_labels()));
    let answers = store.read(&batch).await?;
    let mut affinities = answers.list(&labeled);
    let unlabeled = unlabeled.iter().flat_map(|ticket| answers.list(ticket));
    affinities.extend(unlabeled.filter(|affinity| affinity.key.owner == *owner));
    release_blocks(store, clock, affinities, only_empty).await
}

/// Releases a block of `owner` if it has no addresses, or else returns
/// [`IpamError::BlockNotEmpty`]. A block that is missing, is another owner's or has no affinity of
/// `owner` counts as released. If `gate` refuses a write, the result is [`IpamError::Stopped`].
pub async fn release_empty_block<S: Store, C: Clock, G: WriteGate>(
    store: &S,
    clock: &C,
    gate: &G,
    owner: &AffinityOwner,
    block: Cidr,
) -> Result<()> {
    let gated = GatedStore::new(store, gate);
    let outcome = release_block(
        &gated,
        clock,
        AffinityKey {
            owner: owner.clone(),
            cidr: block,
        },
        true,
    )
    .await;
    if gated.has_refused() {
        Err(IpamError::Stopped)
    } else {
        outcome
    }
}

/// Releases the selected blocks in `range`, or with `only_empty` those without addresses, as a
/// pool's deletion requires (IPAM-100). As in upstream, the default selection leaves the blocks of
/// virtual owners on etcd and in the embedded datastore.
pub async fn release_pool_affinities<S: Store, C: Clock>(
    store: &S,
    clock: &C,
    select: &AffinitySelect,
    range: &Cidr,
    only_empty: bool,
) -> Result<ReleasedAffinities> {
    let mut affinities = store.list::<BlockAffinity>(select).await?;
    affinities.retain(|affinity| range.contains(affinity.key.cidr.network()));
    release_blocks(store, clock, affinities, only_empty).await
}

/// Releases all blocks of a host. The addresses of its pods stay allocated.
pub async fn remove_host<S: Store, C: Clock>(
    store: &S,
    clock: &C,
    node: &str,
) -> Result<ReleasedAffinities> {
    host_affinities(store, clock, &AffinityOwner::Host(node.into()), false).await
}

async fn release_blocks<S: Store, C: Clock>(
    store: &S,
    clock: &C,
    affinities: Vec<Entry<BlockAffinity>>,
    only_empty: bool,
) -> Result<ReleasedAffinities> {
    let mut outcome = ReleasedAffinities::default();
    for affinity in affinities {
        let cidr = affinity.key.cidr;
        match release_block(store, clock, affinity.key, only_empty).await {
            Ok(()) => outcome.released.push(cidr),
            Err(IpamError::Store(error)) if !error.is_of_one_object() => return Err(error.into()),
            Err(error) => outcome.kept.push((cidr, error)),
        }
    }
    Ok(outcome)
}

async fn release_block<S: Store, C: Clock>(
    store: &S,
    clock: &C,
    key: AffinityKey,
    only_empty: bool,
) -> Result<()> {
    let mut retry = Retry::new(clock, OPERATION_TIME);
    loop {
        let mut batch = ReadBatch::new();
        let (affinity, block) = (
            batch.get::<BlockAffinity>(&key),
            batch.get::<Block>(&key.cidr),
        );
        let answers = store.read(&batch).await?;
        let Some(affinity) = answers.get(&affinity)? else {
            return Ok(());
        };
        let block = answers
            .get(&block)?
            .filter(|block| block.value.owner().is_none_or(|owner| owner == key.owner));
        let outcome = match block {
            // A block of another owner must not be released here.
            None => {
                store
                    .delete::<BlockAffinity>(&key, Some(&affinity.revision))
                    .await
            }
            Some(block) if only_empty && !block.value.is_empty() => {
                return Err(IpamError::BlockNotEmpty(key.cidr));
            }
            Some(block) => release_affinity(store, &affinity, &block).await,
        };
        match outcome {
            Ok(()) => return Ok(()),
            Err(error) if !error.is_race() => return Err(error.into()),
            Err(_) => retry.pause_after_race().await?,
        }
    }
}

/// Releases those of the emptied blocks whose pools no longer select their nodes. Failure is only
/// logged.
pub(crate) async fn release_if_deselected<S: Store>(store: &S, emptied: &[(Cidr, AffinityOwner)]) {
    if emptied.is_empty() {
        return;
    }
    let deselected = find_deselected(store, emptied)
        .await
        .unwrap_or_else(|error| {
            tracing::warn!(
                %error, "cannot read the pools and nodes of empty blocks; keeping their owners",
            );
            Vec::new()
        });
    for (cidr, owner) in deselected {
        match release_if_still_empty(store, cidr, owner).await {
            Ok(()) => {}
            Err(error) if error.is_race() => tracing::debug!(
                block = %cidr, %error,
                "another process changed a block while it was being released"
            ),
            Err(error) => tracing::warn!(
                block = %cidr, %error,
                "cannot release a block whose pool does not select the node"
            ),
        }
    }
}

/// Returns those of `emptied` whose enabled pools do not select their nodes. A missing node counts
/// as selected.
async fn find_deselected<'a, S: Store>(
    store: &S,
    emptied: &'a [(Cidr, AffinityOwner)],
) -> Result<Vec<(&'a Cidr, &'a AffinityOwner)>, StoreError> {
    let of_nodes = || {
        emptied
            .iter()
            .filter(|(_, owner)| matches!(owner, AffinityOwner::Host(_)))
    };
    let mut batch = ReadBatch::new();
    let pools = batch.list::<IpPool>(&ObjectSelect::default());
    let nodes: Vec<_> = of_nodes()
        .map(|(_, owner)| batch.get::<Node>(&ObjectKey::global(owner.name())))
        .collect();
    let answers = store.read(&batch).await?;
    let pools: Vec<IpPool> = answers
        .list(&pools)
        .into_iter()
        .map(|entry| entry.value)
        .collect();
    let mut deselected = Vec::new();
    for ((cidr, owner), node) in of_nodes().zip(&nodes) {
        if answers
            .get(node)?
            .is_some_and(|node| deselects(&pools, cidr, &node.value))
        {
            deselected.push((cidr, owner));
        }
    }
    Ok(deselected)
}

fn deselects(pools: &[IpPool], cidr: &Cidr, node: &Node) -> bool {
    let mut enabled = pools
        .iter()
        .filter_map(|object| enabled_pool(object, cidr.version()).ok());
    let pool = enabled.find(|pool| pool.cidr.contains(cidr.network()));
    pool.is_some_and(|pool| {
        Selector::parse(&pool.node_selector)
            .is_ok_and(|selector| !selector.matches(&node.metadata.labels))
    })
}

async fn release_if_still_empty<S: Store>(
    store: &S,
    cidr: &Cidr,
    owner: &AffinityOwner,
) -> Result<(), StoreError> {
    let mut batch = ReadBatch::new();
    let block = batch.get::<Block>(cidr);
    let affinity = batch.get::<BlockAffinity>(&AffinityKey {
        owner: owner.clone(),
        cidr: *cidr,
    });
    let answers = store.read(&batch).await?;
    match (answers.get(&block)?, answers.get(&affinity)?) {
        (Some(block), Some(affinity))
            if block.value.is_empty() && block.value.owner().as_ref() == Some(owner) =>
        {
            release_affinity(store, &affinity, &block).await
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;

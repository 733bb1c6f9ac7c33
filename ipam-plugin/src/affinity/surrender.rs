//! Giving up all blocks of a host, or of a pool. Addresses in them stay held; their blocks belong to nobody then.

use libcalico::ipam::{AffinityKey, AffinitySelect, Block, BlockAffinity, Owner};
use libcalico::net::Cidr;
use libcalico::store::{Entry, ReadBatch, Store, StoreError};

use crate::budget::{Budget, OPERATION};
use crate::clock::Clock;
use crate::error::IpamError;
use crate::gated::Gated;
use crate::mend::{disown, give_up};
use crate::release_addresses::WriteGate;

/// What became of the claims.
#[derive(Debug, Default)]
pub struct Surrendered {
    /// Blocks given up.
    pub released: Vec<Cidr>,
    /// Blocks kept, and why.
    pub kept: Vec<(Cidr, IpamError)>,
}

/// Gives up every block of `owner`, or with `only_empty` those without addresses. One that cannot be given up does not
/// keep the others (IPAM-150). When `gate` is closed on the way it is [`IpamError::Stopped`]; what was given up until then
/// stays so, and a claim between two writes is one that any other process may finish.
pub async fn release_host_affinities<S: Store, C: Clock, G: WriteGate>(
    store: &S,
    clock: &C,
    gate: &G,
    owner: &Owner,
    only_empty: bool,
) -> Result<Surrendered, IpamError> {
    let gated = Gated::new(store, gate);
    let outcome = host_affinities(&gated, clock, owner, only_empty).await;
    if gated.has_refused() { Err(IpamError::Stopped) } else { outcome }
}

async fn host_affinities<S: Store, C: Clock>(
    store: &S,
    clock: &C,
    owner: &Owner,
    only_empty: bool,
) -> Result<Surrendered, IpamError> {
    let mut batch = ReadBatch::new();
    let labelled = batch.list::<BlockAffinity>(&AffinitySelect::of(owner.clone()));
    // What a release from before the labels wrote: a list by owner does not find it, and it is the owner's all the same.
    let unlabelled =
        (!store.has_transactions()).then(|| batch.list::<BlockAffinity>(&AffinitySelect::without_labels()));
    let answers = store.read(&batch).await?;
    let mut claims = answers.list(&labelled);
    let of_owner = unlabelled.iter().flat_map(|ticket| answers.list(ticket)).filter(|claim| claim.key.owner == *owner);
    claims.extend(of_owner);
    surrender(store, clock, claims, only_empty).await
}

/// Gives up one block of `owner` if it has no addresses. One that is not the owner's, or not there, is success; one with
/// addresses is [`IpamError::BlockNotEmpty`]. When `gate` is closed on the way it is [`IpamError::Stopped`].
pub async fn release_empty_block<S: Store, C: Clock, G: WriteGate>(
    store: &S,
    clock: &C,
    gate: &G,
    owner: &Owner,
    block: Cidr,
) -> Result<(), IpamError> {
    let gated = Gated::new(store, gate);
    let outcome = surrender_one(&gated, clock, AffinityKey { owner: owner.clone(), cidr: block }, true).await;
    if gated.has_refused() { Err(IpamError::Stopped) } else { outcome }
}

/// Gives up every block in `range`, whoever owns it; what is done before a pool is deleted (IPAM-100). Claims of virtual
/// owners are not listed, as upstream (D13).
pub async fn release_pool_affinities<S: Store, C: Clock>(
    store: &S,
    clock: &C,
    range: &Cidr,
) -> Result<Surrendered, IpamError> {
    let mut claims = store.list::<BlockAffinity>(&AffinitySelect::default()).await?;
    claims.retain(|claim| range.contains(claim.key.cidr.network()));
    surrender(store, clock, claims, false).await
}

/// Gives up the blocks of `owner` in `range` that have no address.
pub async fn release_empty_affinities<S: Store, C: Clock>(
    store: &S,
    clock: &C,
    owner: &Owner,
    range: &Cidr,
) -> Result<Surrendered, IpamError> {
    let mut claims = store.list::<BlockAffinity>(&AffinitySelect::of(owner.clone())).await?;
    claims.retain(|claim| range.contains(claim.key.cidr.network()));
    surrender(store, clock, claims, true).await
}

/// Forgets a host: gives up its blocks. Addresses its pods hold stay held. A host without blocks is success (IPAM-151).
pub async fn remove_host<S: Store, C: Clock>(store: &S, clock: &C, node: &str) -> Result<Surrendered, IpamError> {
    host_affinities(store, clock, &Owner::Host(node.into()), false).await
}

async fn surrender<S: Store, C: Clock>(
    store: &S,
    clock: &C,
    claims: Vec<Entry<BlockAffinity>>,
    only_empty: bool,
) -> Result<Surrendered, IpamError> {
    let mut outcome = Surrendered::default();
    for claim in claims {
        let cidr = claim.key.cidr;
        match surrender_one(store, clock, claim.key, only_empty).await {
            Ok(()) => outcome.released.push(cidr),
            Err(IpamError::Store(error)) if error.is_unavailable() => return Err(error.into()),
            Err(error) => outcome.kept.push((cidr, error)),
        }
    }
    Ok(outcome)
}

/// Tries again with what the other side of a lost race left behind.
async fn surrender_one<S: Store, C: Clock>(
    store: &S,
    clock: &C,
    key: AffinityKey,
    only_empty: bool,
) -> Result<(), IpamError> {
    let mut budget = Budget::new(clock, OPERATION);
    loop {
        let mut batch = ReadBatch::new();
        let (affinity, block) = (batch.get::<BlockAffinity>(&key), batch.get::<Block>(&key.cidr));
        let answers = store.read(&batch).await?;
        let Some(affinity) = answers.get(&affinity)? else { return Ok(()) };
        let outcome = match answers.get(&block)? {
            // A claim without its block holds nothing (D21), and a block of another owner is not ours to give up.
            None => store.delete::<BlockAffinity>(&key, Some(&affinity.revision)).await,
            Some(block) if block.value.owner().is_some_and(|owner| owner != key.owner) => {
                store.delete::<BlockAffinity>(&key, Some(&affinity.revision)).await
            }
            Some(block) if block.value.is_empty() => give_up(store, &affinity, &block).await,
            Some(_) if only_empty => return Err(IpamError::BlockNotEmpty(key.cidr)),
            Some(block) => disown(store, &affinity, &block).await,
        };
        match outcome {
            Ok(()) => return Ok(()),
            Err(StoreError::Unavailable { datastore, reason, outcome_unknown }) => {
                return Err(StoreError::Unavailable { datastore, reason, outcome_unknown }.into());
            }
            Err(error) if !error.is_race() => return Err(error.into()),
            Err(_) if !budget.pause().await => return Err(IpamError::Contention),
            Err(_) => {}
        }
    }
}

#[cfg(test)]
mod tests;

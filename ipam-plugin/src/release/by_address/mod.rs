//! [`release_addresses`]: releases single addresses, optionally only if a certain handle has them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use libcalico::api::{IpPool, ObjectSelect};
use libcalico::ipam::{Block, Handle, HandleId, IpamConfig, ReleaseRequest, Released, TheConfig, any_pool_of};
use libcalico::net::Cidr;
use libcalico::store::{Entry, ReadBatch, Store, StoreError, Write};

use crate::affinity::{PoolView, release_if_deselected};
use crate::block_writes::write_released;
use crate::clock::Clock;
use crate::error::IpamError;
use crate::handle_refs::{self, LostWrite};
use crate::reads::names_with;
use crate::retry::{OPERATION, Retry};

/// The outcome for the addresses.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReleasedAddresses {
    /// The released addresses.
    pub released: Vec<IpAddr>,
    /// Addresses that were free, cooling down, or in no block.
    pub unallocated: Vec<IpAddr>,
}

/// Releases the addresses. A request whose handle or sequence number does not match rejects all requests for the same
/// block (IPAM-144). Addresses of other blocks are released nevertheless, and the first such error is returned.
pub async fn release_addresses<S: Store, C: Clock>(
    store: &S,
    clock: &C,
    requests: &[ReleaseRequest],
) -> Result<ReleasedAddresses, IpamError> {
    let mut batch = ReadBatch::new();
    let (pools, config) = (batch.list::<IpPool>(&ObjectSelect::default()), batch.get::<IpamConfig>(&TheConfig));
    let answers = store.read(&batch).await?;
    let cooldown = answers.get(&config)?.map_or(0, |entry| entry.value.ip_cooldown_seconds);
    let view = PoolView::new(answers.list(&pools));
    let (by_block, mut astray) = by_block(&view, requests);
    let (mut outcome, mut first_error) = (ReleasedAddresses::default(), None);
    let mut note = |released: Result<Released, IpamError>| match released {
        Ok(released) => {
            outcome.released.extend(released.released);
            outcome.unallocated.extend(released.unallocated);
        }
        Err(error) => _ = first_error.get_or_insert(error),
    };
    for (cidr, requests) in by_block {
        match release_from_block(store, clock, cidr, &requests, cooldown).await.transpose() {
            Some(released) => note(released),
            None => astray.extend(requests),
        }
    }
    let named = names_with(store, &astray.iter().map(|request| request.ip).collect()).await?;
    let mut further = BTreeMap::<Option<Cidr>, Vec<ReleaseRequest>>::new();
    for request in astray {
        further.entry(named.get(&request.ip).copied()).or_default().push(request);
    }
    for (cidr, requests) in further {
        let released = match cidr {
            Some(cidr) => release_from_block(store, clock, cidr, &requests, cooldown).await,
            None => Ok(None),
        };
        let nothing =
            || Released { unallocated: requests.iter().map(|request| request.ip).collect(), ..Released::default() };
        note(released.map(|released| released.unwrap_or_else(nothing)));
    }
    first_error.map_or(Ok(outcome), Err)
}

/// Returns the requests by block, as far as pools determine it, and the requests for addresses of no pool.
fn by_block(
    view: &PoolView,
    requests: &[ReleaseRequest],
) -> (BTreeMap<Cidr, Vec<ReleaseRequest>>, Vec<ReleaseRequest>) {
    let mut found = BTreeMap::<_, Vec<ReleaseRequest>>::new();
    let mut unpooled = Vec::new();
    for request in requests {
        match any_pool_of(view.pools(), request.ip).and_then(|pool| pool.block_of(request.ip)) {
            Some(cidr) => found.entry(cidr).or_default().push(request.clone()),
            None => unpooled.push(request.clone()),
        }
    }
    (found, unpooled)
}

/// Releases addresses of one block. Returns `None` if the block is missing.
async fn release_from_block<S: Store, C: Clock>(
    store: &S,
    clock: &C,
    cidr: Cidr,
    requests: &[ReleaseRequest],
    cooldown: i64,
) -> Result<Option<Released>, IpamError> {
    let mut retry = Retry::new(clock, OPERATION);
    loop {
        let (block, mut handles) = read_block(store, cidr, requests).await?;
        let Some(mut block) = block else { return Ok(None) };
        block.value.collect_garbage(cooldown, clock.now())?;
        let released = block.value.release(requests, cooldown, clock.now())?;
        if released.released.is_empty() {
            return Ok(Some(released));
        }
        let (writes, counted) = writes(store, &block, &released, &mut handles).await?;
        match store.write(&writes).await {
            Ok(_) => {
                if let Some(owner) = block.value.owner().filter(|_| block.value.is_empty()) {
                    release_if_deselected(store, &[(cidr, owner)]).await;
                }
                return Ok(Some(released));
            }
            // The block's write comes first and succeeded, so the addresses are free. Only the handles' counts are
            // still wrong.
            Err(error) if error.applied > 0 => {
                let is_unknown = error.cause.has_unknown_outcome();
                for (index, handle) in counted.iter().enumerate().map(|(n, handle)| (n + 1, handle)) {
                    let attempt = (index == error.index && is_unknown).then(|| LostWrite::new(handle));
                    let counts = [(cidr, released.per_handle[&handle.key])];
                    if index >= error.applied {
                        handle_refs::decrement_unless_applied(store, clock, &handle.key, &counts, attempt).await;
                    }
                }
                return Ok(Some(released));
            }
            Err(error) if error.cause.is_race() => {
                if !retry.pause().await {
                    return Err(IpamError::Contention);
                }
            }
            Err(error) => return Err(error.cause.into()),
        }
    }
}

async fn read_block<S: Store>(
    store: &S,
    cidr: Cidr,
    requests: &[ReleaseRequest],
) -> Result<(Option<Entry<Block>>, BTreeMap<HandleId, Entry<Handle>>), StoreError> {
    let named: BTreeSet<&HandleId> = requests.iter().filter_map(|request| request.handle.as_ref()).collect();
    let mut batch = ReadBatch::new();
    let block = batch.get::<Block>(&cidr);
    let tickets: Vec<_> = named.into_iter().map(|id| batch.get::<Handle>(id)).collect();
    let answers = store.read(&batch).await?;
    Ok((answers.get(&block)?, handles(tickets.iter().map(|ticket| answers.get(ticket)))?))
}

fn handles(
    answers: impl Iterator<Item = Result<Option<Entry<Handle>>, StoreError>>,
) -> Result<BTreeMap<HandleId, Entry<Handle>>, StoreError> {
    let mut found = BTreeMap::new();
    for answer in answers {
        if let Some(entry) = answer? {
            found.insert(entry.key.clone(), entry);
        }
    }
    Ok(found)
}

/// Returns the writes of the block and then of the handles (IPAM-128), and the handles as written.
async fn writes<S: Store>(
    store: &S,
    block: &Entry<Block>,
    released: &Released,
    handles_read: &mut BTreeMap<HandleId, Entry<Handle>>,
) -> Result<(Vec<Write>, Vec<Entry<Handle>>), StoreError> {
    let mut batch = ReadBatch::new();
    let missing: Vec<_> = released
        .per_handle
        .keys()
        .filter(|id| !handles_read.contains_key(*id))
        .map(|id| batch.get::<Handle>(id))
        .collect();
    if !missing.is_empty() {
        let answers = store.read(&batch).await?;
        handles_read.extend(handles(missing.iter().map(|ticket| answers.get(ticket)))?);
    }
    let (mut writes, mut counted) = (vec![write_released(block)?], Vec::new());
    for (id, n) in &released.per_handle {
        let Some(mut handle) = handles_read.get(id).cloned() else { continue };
        match handle.value.decrement(id, block.key, *n) {
            Ok(()) => {
                writes.push(handle_refs::write(&handle)?);
                counted.push(handle);
            }
            Err(error) => tracing::warn!(%error, "handle"),
        }
    }
    Ok((writes, counted))
}

#[cfg(test)]
mod tests;

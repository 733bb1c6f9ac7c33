//! [`release_addresses`]: releases single addresses, optionally only if a certain handle has them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use libcalico::api::{IpPool, ObjectSelect};
use libcalico::ipam::{
    Block, Handle, HandleId, IpamConfig, IpamConfigKey, ReleaseRequest, Released, any_pool_of,
};
use libcalico::net::Cidr;
use libcalico::store::{Entry, ReadBatch, Store, StoreError, Write};

use crate::affinity::release_if_deselected;
use crate::block_writes::write_released;
use crate::error::Result;
use crate::handle_refs;
use crate::reads::{FoundEntry, blocks_by_name, find_each};
use crate::retry::{OPERATION_TIME, Retry};
use os::clock::Clock;

/// The result of a release of single addresses.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReleasedAddresses {
    /// The released addresses.
    pub released: Vec<IpAddr>,
    /// Addresses that were free, cooling down, or in no block.
    pub unallocated: Vec<IpAddr>,
}

/// Releases the addresses. A request whose handle or sequence number does not match rejects all
/// requests for the same block (IPAM-144). After an error for one block, the release continues with
/// the other blocks.
pub async fn release_addresses<S: Store, C: Clock>(
    store: &S,
    clock: &C,
    requests: &[ReleaseRequest],
) -> Result<ReleasedAddresses> {
    let mut batch = ReadBatch::new();
    let (pools, config) = (
        batch.list::<IpPool>(&ObjectSelect::default()),
        batch.get::<IpamConfig>(&IpamConfigKey),
    );
    let answers = store.read(&batch).await?;
    let cooldown = answers
        .get(&config)?
        .map_or(0, |entry| entry.value.ip_cooldown_seconds);
    let pools: Vec<IpPool> = answers
        .list(&pools)
        .into_iter()
        .map(|entry| entry.value)
        .collect();
    let (mut by_block, mut unlocated) = (BTreeMap::<_, Vec<ReleaseRequest>>::new(), Vec::new());
    for request in requests {
        match any_pool_of(&pools, request.ip).and_then(|pool| pool.block_of(request.ip)) {
            Some(cidr) => by_block.entry(cidr).or_default().push(request.clone()),
            None => unlocated.push(request.clone()),
        }
    }
    let (mut outcome, mut first_error) = (ReleasedAddresses::default(), None);
    let mut record = |released: Result<Released>| match released {
        Ok(released) => {
            outcome.released.extend(released.released);
            outcome.unallocated.extend(released.unallocated);
        }
        Err(error) => _ = first_error.get_or_insert(error),
    };
    let releasing = AddressRelease {
        store,
        clock,
        cooldown,
    };
    for (cidr, requests) in by_block {
        match releasing
            .release_from_block(cidr, &requests)
            .await
            .transpose()
        {
            Some(released) => record(released),
            None => unlocated.extend(requests),
        }
    }
    let named =
        blocks_by_name(store, &unlocated.iter().map(|request| request.ip).collect()).await?;
    let mut by_found_block = BTreeMap::<Option<Cidr>, Vec<ReleaseRequest>>::new();
    for request in unlocated {
        by_found_block
            .entry(named.get(&request.ip).copied())
            .or_default()
            .push(request);
    }
    for (cidr, requests) in by_found_block {
        let released = match cidr {
            Some(cidr) => releasing.release_from_block(cidr, &requests).await,
            None => Ok(None),
        };
        let unallocated = || Released {
            unallocated: requests.iter().map(|request| request.ip).collect(),
            ..Released::default()
        };
        record(released.map(|released| released.unwrap_or_else(unallocated)));
    }
    first_error.map_or(Ok(outcome), Err)
}

type StoredHandles = BTreeMap<HandleId, Entry<Handle>>;

struct AddressRelease<'a, S, C> {
    store: &'a S,
    clock: &'a C,
    cooldown: i64,
}

impl<S: Store, C: Clock> AddressRelease<'_, S, C> {
    /// Returns `None` if the block is missing.
    async fn release_from_block(
        &self,
        cidr: Cidr,
        requests: &[ReleaseRequest],
    ) -> Result<Option<Released>> {
        let mut retry = Retry::new(self.clock, OPERATION_TIME);
        loop {
            let (block, mut handles) = self.read_block(cidr, requests).await?;
            let Some(mut block) = block else {
                return Ok(None);
            };
            block
                .value
                .collect_garbage(self.cooldown, self.clock.now())?;
            let released = block
                .value
                .release(requests, self.cooldown, self.clock.now())?;
            if released.released.is_empty() {
                return Ok(Some(released));
            }
            let (writes, decremented) = self.writes(&block, &released, &mut handles).await?;
            match self.store.write(&writes).await {
                Ok(_) => {
                    if let Some(owner) = block.value.owner().filter(|_| block.value.is_empty()) {
                        release_if_deselected(self.store, &[(cidr, owner)]).await;
                    }
                    return Ok(Some(released));
                }
                // The block's write comes first and succeeded, so only the handles' counts are
                // still wrong.
                Err(error) if error.applied > 0 => {
                    let is_unknown = error.cause.has_unknown_outcome();
                    for (index, handle) in (1..)
                        .zip(&decremented)
                        .filter(|(index, _)| *index >= error.applied)
                    {
                        let lost_write =
                            (index == error.index && is_unknown).then(|| handle.clone());
                        let (id, counts) =
                            (&handle.key, [(cidr, released.per_handle[&handle.key])]);
                        handle_refs::decrement_unless_applied(
                            self.store, self.clock, id, &counts, lost_write,
                        )
                        .await;
                    }
                    return Ok(Some(released));
                }
                Err(error) if error.cause.is_race() => retry.pause_after_race().await?,
                Err(error) => return Err(error.cause.into()),
            }
        }
    }

    async fn read_block(
        &self,
        cidr: Cidr,
        requests: &[ReleaseRequest],
    ) -> Result<(Option<Entry<Block>>, StoredHandles), StoreError> {
        let named: BTreeSet<&HandleId> = requests
            .iter()
            .filter_map(|request| request.handle.as_ref())
            .collect();
        let mut batch = ReadBatch::new();
        let block = batch.get::<Block>(&cidr);
        let tickets: Vec<_> = named
            .into_iter()
            .map(|id| batch.get::<Handle>(id))
            .collect();
        let answers = self.store.read(&batch).await?;
        Ok((
            answers.get(&block)?,
            by_id(tickets.iter().map(|ticket| answers.get(ticket)))?,
        ))
    }

    /// Returns the writes of the block and then of the handles (IPAM-128), and the handles as
    /// written.
    async fn writes(
        &self,
        block: &Entry<Block>,
        released: &Released,
        handles: &mut StoredHandles,
    ) -> Result<(Vec<Write>, Vec<Entry<Handle>>), StoreError> {
        let missing: Vec<_> = released
            .per_handle
            .keys()
            .filter(|id| !handles.contains_key(*id))
            .collect();
        if !missing.is_empty() {
            handles.extend(by_id(find_each::<Handle>(self.store, missing).await?)?);
        }
        let (mut writes, mut decremented) = (vec![write_released(block)?], Vec::new());
        for (id, n) in &released.per_handle {
            let Some(mut handle) = handles.get(id).cloned() else {
                continue;
            };
            if handle_refs::subtract(&mut handle.value, id, [(block.key, *n)]) {
                writes.push(handle_refs::write(&handle)?);
                decremented.push(handle);
            }
        }
        Ok((writes, decremented))
    }
}

fn by_id(
    answers: impl IntoIterator<Item = FoundEntry<Handle>>,
) -> Result<StoredHandles, StoreError> {
    let found = answers.into_iter().filter_map(Result::transpose);
    found
        .map(|answer| answer.map(|entry| (entry.key.clone(), entry)))
        .collect()
}

#[cfg(test)]
mod tests;

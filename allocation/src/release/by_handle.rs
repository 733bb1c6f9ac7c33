//! [`release`]: releases all addresses of handles.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use libcalico::ipam::{
    AffinityOwner, Allocation, Block, BlockAffinity, Handle, HandleId, IpamConfig, IpamConfigKey,
    allocation_time,
};
use libcalico::net::Cidr;
use libcalico::store::{
    Answers, Entry, GetTicket, Kind, ReadBatch, Revision, Store, StoreError, Write, WriteOp,
};
use time::OffsetDateTime;

use super::{AddressToRelease, Listings, NoListings, missing_blocks};
use crate::affinity::release_if_deselected;
use crate::block_writes::write_released;
use crate::error::Result;
use crate::handle_refs;
use os::lock::ReleaseLock;
use crate::reads::find_each;
use crate::retry::{OPERATION_TIME, Retry};
use os::clock::Clock;

/// The handles to release, as read.
#[derive(Debug, Clone, Default)]
pub struct ReleaseInputs {
    cooldown_seconds: i64,
    handles: Vec<Entry<Handle>>,
    /// The node that a killed ADD may have been about to create a block for.
    owner: Option<AffinityOwner>,
    unless_owned: bool,
    /// The time from which on no address of the handles may have been allocated.
    allocated_before: Option<OffsetDateTime>,
}

/// Positions of the results in the batch's answers.
#[derive(Debug)]
pub struct PendingRelease {
    config: GetTicket<IpamConfig>,
    handles: Vec<GetTicket<Handle>>,
}

impl ReleaseInputs {
    /// Adds the reads to a batch.
    pub fn add_to(batch: &mut ReadBatch, handles: &[HandleId]) -> PendingRelease {
        let distinct: BTreeSet<&HandleId> = handles.iter().collect();
        let config = batch.get(&IpamConfigKey);
        PendingRelease {
            config,
            handles: distinct.into_iter().map(|id| batch.get(id)).collect(),
        }
    }

    /// Extracts the objects from the answers to the batch.
    pub fn from_answers(answers: &Answers, tickets: &PendingRelease) -> Result<Self, StoreError> {
        let config = answers
            .get(&tickets.config)?
            .map_or_else(IpamConfig::absent, |entry| entry.value);
        let found: Result<Vec<_>, _> = tickets
            .handles
            .iter()
            .map(|ticket| answers.get(ticket))
            .collect();
        Ok(ReleaseInputs {
            cooldown_seconds: config.ip_cooldown_seconds,
            handles: found?.into_iter().flatten().collect(),
            owner: None,
            unless_owned: false,
            allocated_before: None,
        })
    }

    /// Reads the inputs in a batch of its own.
    pub async fn read<S: Store>(store: &S, handles: &[HandleId]) -> Result<Self, StoreError> {
        let mut batch = ReadBatch::new();
        let tickets = ReleaseInputs::add_to(&mut batch, handles);
        ReleaseInputs::from_answers(&store.read(&batch).await?, &tickets)
    }

    /// Reads these handles, and returns the inputs with those that exist in place of the present
    /// handles.
    pub async fn with_handles<S: Store>(
        self,
        store: &S,
        handles: &[HandleId],
    ) -> Result<Self, StoreError> {
        let found: Result<Vec<_>, _> = find_each(store, handles).await?.into_iter().collect();
        Ok(ReleaseInputs {
            handles: found?.into_iter().flatten().collect(),
            ..self
        })
    }

    /// Sets the node on which the containers ran. The release then prevents, where possible, that a
    /// killed ADD still creates a block.
    #[must_use]
    pub fn on_node(mut self, node: &str) -> Self {
        self.owner = Some(AffinityOwner::Host(node.to_owned()));
        self
    }

    /// Makes the release conditional: it releases only as long as no address has a pod as its owner
    /// (IPAM-55).
    #[must_use]
    pub(crate) fn unless_owned(mut self) -> Self {
        self.unless_owned = true;
        self
    }

    /// Makes the release conditional: it releases only as long as all addresses were allocated
    /// before `limit`. An address without a time counts as older.
    #[must_use]
    pub fn allocated_before(mut self, limit: Option<OffsetDateTime>) -> Self {
        self.allocated_before = limit;
        self
    }

    /// Reads the blocks, and returns the addresses that were allocated later than the limit of
    /// [`ReleaseInputs::allocated_before`] admits, with the times of their allocation.
    ///
    /// # Errors
    /// Returns an error if the blocks cannot be read. An unreadable block counts as one without
    /// later addresses.
    pub async fn newer<S: Store>(
        &self,
        store: &S,
    ) -> Result<BTreeMap<IpAddr, OffsetDateTime>, StoreError> {
        if self.is_empty() || self.allocated_before.is_none() {
            return Ok(BTreeMap::new());
        }
        Ok(ReleaseState::read(store, self.clone())
            .await?
            .newer()
            .collect())
    }

    /// Removes a handle from the inputs and returns it.
    pub fn remove_handle(&mut self, id: &HandleId) -> Option<Entry<Handle>> {
        let index = self.handles.iter().position(|handle| handle.key == *id)?;
        Some(self.handles.remove(index))
    }

    /// Returns true if no handle exists.
    pub fn is_empty(&self) -> bool {
        self.handles.is_empty()
    }
}

/// The result of a release.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReleasedHandles {
    /// Number of released addresses, except those of a write whose response was lost.
    pub addresses: usize,
    /// The released addresses, for the log.
    pub ips: Vec<IpAddr>,
    /// Unreadable blocks, whose addresses stay allocated and counted.
    pub unreadable: Vec<Cidr>,
    /// True if an address has a pod as its owner, and the release was conditional on having none.
    pub is_owned: bool,
    /// True if an address was allocated too late, see [`ReleaseInputs::allocated_before`]. No
    /// address was released.
    pub is_newer: bool,
    /// The revision of the last block that was updated; `None` if no block was updated.
    pub last_write: Option<Revision>,
}

/// Releases all addresses of the handles and deletes the handles. Addresses in unreadable blocks
/// stay allocated and counted.
///
/// Blocks are written first, handles second (IPAM-128). This also deletes a handle whose addresses
/// are released already, which upstream leaves forever (IPAM-230).
pub async fn release<S: Store, C: Clock>(
    store: &S,
    clock: &C,
    inputs: ReleaseInputs,
) -> Result<ReleasedHandles> {
    release_unlisted(
        store,
        clock,
        inputs,
        &NoListings,
        &mut ReleaseLock::default(),
    )
    .await
}

/// Does the same as [`release`], but first waits until `listings` no longer list the addresses, and
/// then takes the node's lock `lock`.
pub async fn release_unlisted<S: Store, C: Clock, L: Listings>(
    store: &S,
    clock: &C,
    mut inputs: ReleaseInputs,
    listings: &L,
    lock: &mut ReleaseLock<'_>,
) -> Result<ReleasedHandles> {
    let ids: Vec<HandleId> = inputs
        .handles
        .iter()
        .map(|handle| handle.key.clone())
        .collect();
    let mut retry = Retry::new(clock, OPERATION_TIME);
    let mut released = ReleasedHandles::default();
    while !inputs.is_empty() {
        let state = ReleaseState::read(store, inputs).await?;
        // An address may have got an owner since the caller read it.
        if state.is_owned() {
            released.is_owned = true;
            break;
        }
        // An ADD of the same container may have got an address since the caller read it.
        if state.newer().next().is_some() {
            released.is_newer = true;
            break;
        }
        let leaving = state.leaving();
        listings.unlist(&leaving).await?;
        if lock.take() {
            inputs = state.inputs;
            continue;
        }
        let plan = state.plan(clock.now())?;
        let (writes, addresses) = (plan.writes.len(), plan.addresses);
        tracing::debug!(
            writes,
            addresses,
            "releasing addresses: writing their blocks and handles"
        );
        match store.write(&plan.writes).await {
            Ok(revisions) => {
                let is_update = |write: &Write| {
                    write.kind == Block::KIND && matches!(write.op, WriteOp::Update(..))
                };
                let last = plan.writes.iter().rposition(is_update);
                released.last_write = last.and_then(|last| revisions.get(last).cloned());
                released.addresses += plan.addresses;
                released.ips = leaving.into_iter().map(|address| address.ip).collect();
                released.unreadable = plan.unreadable;
                release_if_deselected(store, &plan.emptied).await;
                break;
            }
            // The next read shows which writes took effect.
            Err(error) if error.cause.is_race() || error.cause.has_unknown_outcome() => {
                retry.pause_after_write(&error.cause).await?;
                inputs = state.inputs.with_handles(store, &ids).await?;
            }
            Err(error) => return Err(error.cause.into()),
        }
    }
    Ok(released)
}

struct ReleaseState {
    inputs: ReleaseInputs,
    /// `None` for an unreadable block.
    blocks: BTreeMap<Cidr, Option<Entry<Block>>>,
    /// The affinities to missing blocks whose creation may still be in progress.
    missing: Vec<Entry<BlockAffinity>>,
}

struct ReleasePlan {
    writes: Vec<Write>,
    addresses: usize,
    unreadable: Vec<Cidr>,
    emptied: Vec<(Cidr, AffinityOwner)>,
}

impl ReleaseState {
    async fn read<S: Store>(store: &S, inputs: ReleaseInputs) -> Result<ReleaseState, StoreError> {
        let named: BTreeSet<Cidr> = inputs
            .handles
            .iter()
            .flat_map(|handle| handle.value.block.keys())
            .copied()
            .collect();
        let answers = find_each::<Block>(store, &named).await?;
        let (mut blocks, mut missing) = (BTreeMap::new(), Vec::new());
        for (cidr, answer) in named.into_iter().zip(answers) {
            match answer {
                Ok(Some(entry)) => _ = blocks.insert(cidr, Some(entry)),
                Ok(None) => missing.push(cidr),
                Err(StoreError::Corrupt { .. }) => _ = blocks.insert(cidr, None),
                Err(error) => return Err(error),
            }
        }
        let missing =
            missing_blocks::read_affinities(store, inputs.owner.as_ref(), &missing).await?;
        Ok(ReleaseState {
            inputs,
            blocks,
            missing,
        })
    }

    fn is_owned(&self) -> bool {
        let mut blocks = self.blocks.values().flatten();
        self.inputs.unless_owned
            && blocks.any(|block| {
                self.inputs
                    .handles
                    .iter()
                    .any(|handle| block.value.has_owner(&handle.key))
            })
    }

    fn newer(&self) -> impl Iterator<Item = (IpAddr, OffsetDateTime)> {
        let limit = self.inputs.allocated_before;
        self.held().filter_map(move |(_, held)| {
            let at = allocation_time(&held)?;
            (at >= limit?).then_some((held.ip, at))
        })
    }

    fn leaving(&self) -> Vec<AddressToRelease> {
        self.held()
            .map(|(block, held)| AddressToRelease::new(block, &held))
            .collect()
    }

    /// Returns the allocations of the handles, with their blocks.
    fn held(&self) -> impl Iterator<Item = (Cidr, Allocation<'_>)> {
        let is_listed = |id: &HandleId| self.inputs.handles.iter().any(|entry| entry.key == *id);
        let blocks = self.blocks.values().flatten();
        let allocated =
            blocks.flat_map(|block| block.value.allocated().map(|held| (block.key, held)));
        allocated.filter(move |(_, held)| {
            !held.is_cooling() && held.handle().as_ref().is_some_and(is_listed)
        })
    }

    fn plan(&self, now: OffsetDateTime) -> Result<ReleasePlan> {
        let mut plan = ReleasePlan {
            writes: Vec::new(),
            addresses: 0,
            unreadable: Vec::new(),
            emptied: Vec::new(),
        };
        for affinity in &self.missing {
            plan.writes.extend(missing_blocks::writes(affinity, now)?);
        }
        for (cidr, block) in &self.blocks {
            // A block without addresses of the handle is written too. An upstream ADD that has
            // incremented the handle and is about to assign an address there must lose the race, or
            // its handle would be deleted here (IPAM-128).
            match block.as_ref().map(|entry| self.release_from(entry, now)) {
                None => plan.unreadable.push(*cidr),
                Some((block, n)) => {
                    plan.addresses += n;
                    if let Some(owner) = block
                        .value
                        .owner()
                        .filter(|_| n > 0 && block.value.is_empty())
                    {
                        plan.emptied.push((*cidr, owner));
                    }
                    plan.writes.push(write_released(&block)?);
                }
            }
        }
        for handle in &self.inputs.handles {
            let mut remaining = handle.clone();
            remaining
                .value
                .block
                .retain(|cidr, _| plan.unreadable.contains(cidr));
            plan.writes.push(handle_refs::write(&remaining)?);
        }
        Ok(plan)
    }

    /// Returns the block without the handles' addresses, and their number.
    fn release_from(&self, entry: &Entry<Block>, now: OffsetDateTime) -> (Entry<Block>, usize) {
        let cooldown = self.inputs.cooldown_seconds;
        let mut entry = entry.clone();
        let (block, mut handles) = (
            &mut entry.value,
            self.inputs.handles.iter().map(|handle| &handle.key),
        );
        let outcome = block.collect_garbage(cooldown, now).and_then(|_| {
            handles.try_fold(0, |sum, handle| {
                Ok(sum + block.release_by_handle(handle, None, cooldown, now)?)
            })
        });
        let released = outcome.unwrap_or_else(|problem| {
            tracing::error!(
                %problem,
                hint = "repair the block: calico-ipam check --report FILE, then release --from-report FILE",
                "releasing the handle's addresses from an inconsistent block"
            );
            let handles = self.inputs.handles.iter();
            handles
                .map(|handle| entry.value.release_from_corrupt(&handle.key, cooldown, now))
                .sum()
        });
        (entry, released)
    }
}

#[cfg(test)]
mod tests;

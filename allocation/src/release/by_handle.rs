//! [`HandleRelease`]: releases all addresses of handles, in two steps.
//!
//! The first step reads the blocks, and the second one writes them. Between the two, the caller
//! removes the addresses from the endpoints.

mod state;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use libcalico::ipam::{AffinityOwner, Handle, HandleId, IpamConfig, IpamConfigKey};
use libcalico::net::Cidr;
use libcalico::store::{Answers, Entry, GetTicket, ReadBatch, Revision, Store, StoreError};
use time::OffsetDateTime;

use self::state::ReleaseState;
use super::{AddressToRelease, Unlisted};
use crate::affinity::release_if_deselected;
use crate::error::Result;
use crate::reads::find_each;
use crate::retry::{OPERATION_TIME, Retry};
use os::clock::Clock;
use os::node_files::ReleaseLock;

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

/// Releases all addresses of the handles and deletes the handles, for a caller without endpoints.
/// Addresses in unreadable blocks stay allocated and counted.
///
/// Blocks are written first, handles second (IPAM-128). This also deletes a handle whose addresses
/// are released already, which upstream leaves forever (IPAM-230).
pub async fn release<S: Store, C: Clock>(
    store: &S,
    clock: &C,
    inputs: ReleaseInputs,
) -> Result<ReleasedHandles> {
    let mut lock = ReleaseLock::default();
    let mut release = HandleRelease::new(clock, inputs);
    loop {
        let read = match release.read(store).await? {
            HandleRead::Leaving(read) => read,
            HandleRead::Ended(released) => return Ok(released),
        };
        let unlisted = Unlisted::new(read.leaving());
        release = match read.write(store, clock, &mut lock, &unlisted).await? {
            HandleWrite::Released(released) => return Ok(released),
            HandleWrite::ReadAgain(release) => release,
        };
    }
}

/// The release of all addresses of handles, before its blocks are read.
#[derive(Debug)]
pub struct HandleRelease<'a, C> {
    inputs: ReleaseInputs,
    ids: Vec<HandleId>,
    retry: Retry<'a, C>,
}

/// The outcome of [`HandleRelease::read`].
#[derive(Debug)]
pub enum HandleRead<'a, C> {
    /// The write may follow as soon as no endpoint lists the leaving addresses.
    Leaving(ReadHandles<'a, C>),
    /// No write is to follow: no handle exists, or an address forbids the release.
    Ended(ReleasedHandles),
}

/// The handles of a release and their blocks, as read.
#[derive(Debug)]
pub struct ReadHandles<'a, C> {
    state: ReleaseState,
    leaving: Vec<AddressToRelease>,
    ids: Vec<HandleId>,
    retry: Retry<'a, C>,
}

/// The outcome of [`ReadHandles::write`] without an error.
#[derive(Debug)]
pub enum HandleWrite<'a, C> {
    /// The addresses are released.
    Released(ReleasedHandles),
    /// The objects may have changed, so they are to be read again. After that, other addresses may
    /// be leaving.
    ReadAgain(HandleRelease<'a, C>),
}

impl<'a, C: Clock> HandleRelease<'a, C> {
    /// Creates the release of the handles in `inputs`.
    pub fn new(clock: &'a C, inputs: ReleaseInputs) -> Self {
        let ids = inputs.handles.iter().map(|handle| handle.key.clone());
        HandleRelease {
            ids: ids.collect(),
            inputs,
            retry: Retry::new(clock, OPERATION_TIME),
        }
    }

    /// Reads the blocks of the handles.
    pub async fn read<S: Store>(self, store: &S) -> Result<HandleRead<'a, C>> {
        let HandleRelease { inputs, ids, retry } = self;
        if inputs.is_empty() {
            return Ok(HandleRead::Ended(ReleasedHandles::default()));
        }
        let state = ReleaseState::read(store, inputs).await?;
        // Since the caller read it, an address may have got an owner, or an ADD of the same
        // container may have got an address.
        let is_owned = state.is_owned();
        if is_owned || state.newer().next().is_some() {
            return Ok(HandleRead::Ended(ReleasedHandles {
                is_owned,
                is_newer: !is_owned,
                ..ReleasedHandles::default()
            }));
        }
        let leaving = state.leaving();
        Ok(HandleRead::Leaving(ReadHandles {
            state,
            leaving,
            ids,
            retry,
        }))
    }
}

impl<'a, C: Clock> ReadHandles<'a, C> {
    /// Returns the addresses that the write releases.
    pub fn leaving(&self) -> &[AddressToRelease] {
        &self.leaving
    }

    /// Takes the node's lock `lock`, and releases the leaving addresses, all of which are in
    /// `unlisted`.
    pub async fn write<S: Store>(
        self,
        store: &S,
        clock: &C,
        lock: &mut ReleaseLock<'_>,
        unlisted: &Unlisted,
    ) -> Result<HandleWrite<'a, C>> {
        let ReadHandles {
            state,
            leaving,
            ids,
            mut retry,
        } = self;
        debug_assert!(leaving.iter().all(|address| unlisted.contains(address.ip)));
        if lock.take().await {
            let inputs = state.into_inputs();
            return Ok(HandleWrite::ReadAgain(HandleRelease { inputs, ids, retry }));
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
                release_if_deselected(store, &plan.emptied).await;
                Ok(HandleWrite::Released(ReleasedHandles {
                    last_write: plan.last_update(&revisions),
                    addresses,
                    ips: leaving.into_iter().map(|address| address.ip).collect(),
                    unreadable: plan.unreadable,
                    ..ReleasedHandles::default()
                }))
            }
            // The next read shows which writes took effect.
            Err(error) if error.cause.is_race() || error.cause.has_unknown_outcome() => {
                retry.pause_after_write(&error.cause).await?;
                let inputs = state.into_inputs().with_handles(store, &ids).await?;
                Ok(HandleWrite::ReadAgain(HandleRelease { inputs, ids, retry }))
            }
            Err(error) => Err(error.cause.into()),
        }
    }
}

#[cfg(test)]
mod tests;

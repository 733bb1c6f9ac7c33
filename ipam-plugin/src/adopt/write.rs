//! [`BlockWriter`]: the writes of an adoption.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::Path;

use libcalico::failure::Failure;
use libcalico::ipam::{AffinityKey, AffinityOwner, AffinitySelect, Block, BlockAffinity, HandleId};
use libcalico::net::Cidr;
use libcalico::store::{ReadBatch, Store, StoreError};
use os::clock::Clock;

use super::AdoptOutcome;
use allocation::affinity::finish_affinity;
use allocation::alloc::inputs::AllocationInputs;
use allocation::alloc::one_address::assign_address;
use allocation::alloc::request::AssignRequest;
use allocation::block_writes::empty_block_writes;
use allocation::error::{IpamError, Result};
use allocation::reads::find;
use allocation::write_gate::OpenGate;
use os::lock::{HostLock, LONGEST_WAIT};

pub(super) struct BlockWriter<'a, S, C> {
    store: &'a S,
    clock: &'a C,
    own: AffinityOwner,
    lock_file: Option<&'a Path>,
    /// Blocks that do not exist, as far as it is known.
    missing: BTreeSet<Cidr>,
    /// Blocks with addresses of this node's workloads.
    used: BTreeSet<Cidr>,
    /// The nodes with a confirmed affinity, by block; `None` before the affinities are read.
    confirmed: Option<BTreeMap<Cidr, BTreeSet<AffinityOwner>>>,
    /// The blocks of addresses that were allocated since the plan, by handle.
    allocated: BTreeMap<HandleId, BTreeSet<Cidr>>,
    /// The error because of which no further write is tried.
    unavailable: Option<String>,
    notices: Vec<String>,
}

impl<'a, S: Store, C: Clock> BlockWriter<'a, S, C> {
    pub(super) fn new(
        store: &'a S,
        clock: &'a C,
        own: AffinityOwner,
        lock_file: Option<&'a Path>,
    ) -> Self {
        let (missing, used, confirmed) = (BTreeSet::new(), BTreeSet::new(), None);
        let (allocated, unavailable, notices) = (BTreeMap::new(), None, Vec::new());
        BlockWriter {
            store,
            clock,
            own,
            lock_file,
            missing,
            used,
            confirmed,
            allocated,
            unavailable,
            notices,
        }
    }

    /// Returns the blocks of addresses that this adoption allocated, or another process to the same
    /// handle meanwhile, by handle, and the notices.
    pub(super) fn into_results(self) -> (BTreeMap<HandleId, BTreeSet<Cidr>>, Vec<String>) {
        (self.allocated, self.notices)
    }

    /// Records that the block of an address did not exist when the adoption was planned.
    pub(super) fn note_missing(&mut self, block: Cidr) {
        self.missing.insert(block);
    }

    /// Records that a workload of this node has an address of the block.
    pub(super) fn note_used(&mut self, block: Cidr) {
        self.used.insert(block);
    }

    /// Allocates a free address, or finds that it was allocated to the same handle meanwhile.
    pub(super) async fn allocate(
        &mut self,
        request: &AssignRequest,
        ip: IpAddr,
        block: Cidr,
    ) -> AdoptOutcome {
        let not_written = |reason: String| AdoptOutcome::Conflict(Failure::new(reason));
        if let Some(reason) = &self.unavailable {
            return not_written(reason.clone());
        }
        // Without the lock, a DEL of the container might delete the handle before the block is
        // written.
        let _lock = self.lock();
        match self.try_allocate(request, ip, block).await {
            Ok(()) => {
                self.note_allocated(request, block);
                AdoptOutcome::Adopted(block)
            }
            Err(IpamError::AlreadyAssigned { holder, .. }) => {
                if self.is_held(request, ip, block).await {
                    self.note_allocated(request, block);
                    return AdoptOutcome::Held(block);
                }
                let holder =
                    holder.map_or_else(|| "an unknown owner".into(), |holder| holder.whole);
                not_written(format!("allocated meanwhile: {holder}"))
            }
            Err(error) => {
                let reason = format!("cannot allocate it: {}", error.to_string().trim_end());
                let concerns_all = |cause: &StoreError| {
                    !cause.is_of_one_object() || matches!(cause, StoreError::Forbidden { .. })
                };
                if matches!(&error, IpamError::Store(cause) if concerns_all(cause)) {
                    self.unavailable = Some(reason.clone());
                }
                not_written(reason)
            }
        }
    }

    fn note_allocated(&mut self, request: &AssignRequest, block: Cidr) {
        self.used.insert(block);
        self.allocated
            .entry(request.handle.clone())
            .or_default()
            .insert(block);
    }

    /// Takes the node's lock. Without it, the address is allocated too, because each write is a
    /// compare-and-swap.
    pub(super) fn lock(&mut self) -> Option<HostLock> {
        match HostLock::acquire_within(self.lock_file?, LONGEST_WAIT) {
            Ok(lock) => Some(lock),
            Err(error) => {
                self.lock_file = None;
                self.notices
                    .push(format!("continuing without the node's lock: {error}"));
                None
            }
        }
    }

    async fn is_held(&self, request: &AssignRequest, ip: IpAddr, block: Cidr) -> bool {
        let Ok(Some(stored)) = find::<Block>(self.store, &block).await else {
            return false;
        };
        let held = stored
            .value
            .allocation(ip)
            .filter(|held| !held.is_cooling());
        held.is_some_and(|held| held.handle().as_ref() == Some(&request.handle))
    }

    async fn try_allocate(
        &mut self,
        request: &AssignRequest,
        ip: IpAddr,
        block: Cidr,
    ) -> Result<()> {
        if self.missing.remove(&block) {
            self.create_for_confirmed_owner(block).await?;
        }
        let inputs = AllocationInputs::read(self.store, &request.inputs_query()).await?;
        assign_address(self.store, self.clock, request, ip, inputs)
            .await
            .map(drop)
    }

    /// Creates the missing block for another owner that has its confirmed affinity, so that the
    /// block does not get a second owner.
    async fn create_for_confirmed_owner(&mut self, block: Cidr) -> Result<()> {
        if self.confirmed.is_none() {
            self.confirmed = Some(self.read_confirmed().await?);
        }
        let owners = self
            .confirmed
            .iter()
            .find_map(|confirmed| confirmed.get(&block));
        let Some(owner) = owners
            .filter(|owners| !owners.contains(&self.own))
            .and_then(BTreeSet::first)
        else {
            return Ok(());
        };
        let writes = empty_block_writes(Block::new(block, owner, self.clock.now())?, owner, None)?;
        match self.store.write(&writes).await {
            // Another process may have created it.
            Err(error) if !error.cause.is_race() => Err(error.cause.into()),
            _ => Ok(()),
        }
    }

    async fn read_confirmed(&self) -> Result<BTreeMap<Cidr, BTreeSet<AffinityOwner>>, StoreError> {
        let affinities = self
            .store
            .list::<BlockAffinity>(&AffinitySelect::default())
            .await?;
        let mut confirmed = BTreeMap::<Cidr, BTreeSet<AffinityOwner>>::new();
        for affinity in affinities {
            let is_confirmed = !affinity.value.state.is_unfinished();
            if is_confirmed && !affinity.value.deleted {
                confirmed
                    .entry(affinity.key.cidr)
                    .or_default()
                    .insert(affinity.key.owner);
            }
        }
        Ok(confirmed)
    }

    /// Confirms the affinities of this node's blocks that an interrupted call left unfinished.
    pub(super) async fn finish_claims(&mut self) {
        let mut batch = ReadBatch::new();
        let key = |cidr: &Cidr| AffinityKey {
            owner: self.own.clone(),
            cidr: *cidr,
        };
        let tickets: Vec<_> = self
            .used
            .iter()
            .map(|cidr| {
                (
                    key(cidr),
                    batch.get::<BlockAffinity>(&key(cidr)),
                    batch.get::<Block>(cidr),
                )
            })
            .collect();
        if tickets.is_empty() || self.unavailable.is_some() {
            return;
        }
        let answers = match self.store.read(&batch).await {
            Ok(answers) => answers,
            Err(error) => {
                return self.notices.push(format!(
                    "cannot read the affinities of the blocks: {error}; ADDs confirm them"
                ));
            }
        };
        for (key, affinity, block) in &tickets {
            let (Ok(affinity), Ok(Some(block))) = (answers.get(affinity), answers.get(block))
            else {
                continue;
            };
            let is_own = block.value.owner().as_ref() == Some(&self.own);
            let Some(affinity) =
                affinity.filter(|affinity| is_own && affinity.value.state.is_unfinished())
            else {
                continue;
            };
            if let Err(error) =
                finish_affinity(self.store, &OpenGate, key, &affinity.revision).await
            {
                self.notices.push(format!(
                    "cannot confirm the affinity to block {}: {error}; an ADD does so",
                    key.cidr
                ));
            }
        }
    }
}

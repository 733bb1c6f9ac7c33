//! [`assign_address`]: assigns a requested address.

use std::collections::BTreeSet;
use std::net::IpAddr;

use libcalico::ipam::{
    AddressRefusal, AffinityKey, AssignError, Block, BlockAffinity, Holder, Pool, PoolChoiceError,
    PoolRejection, RejectedPool, Reservations, pool_of_address,
};
use libcalico::net::{Cidr, IpVersion};
use libcalico::store::{Entry, Store, StoreError, WriteModel};

use crate::alloc::assignment::{Assignment, BlockAssignment, BlockSource, log_assigned};
use crate::alloc::commit::{Commit, CommitError};
use crate::alloc::inputs::{AllocationInputs, BlockCounts, StoredHandle};
use crate::alloc::predecessor::Predecessor;
use crate::alloc::request::AssignRequest;
use crate::alloc::reserved_handle::release_reserved;
use crate::alloc::snapshot::{BlockRead, MissingReads, Snapshot};
use crate::block_writes::PriorAffinity;
use crate::error::{IpamError, Result};
use crate::handle_refs::decrement;
use crate::retry::{OPERATION_TIME, Retry};
use os::clock::Clock;

/// Assigns `ip` to the request's handle. Pool selectors, reservations, manual assignment and block
/// limits do not apply (IPAM-134, IPAM-137), except the namespace selector and reservations to a
/// restricted request, and the namespace selector to an address of a list. An address that is
/// already used may also be in a disabled pool, in one for another use, and in another owner's
/// block. If the request's predecessor has the address, one write of the block takes the address
/// from it and assigns it, so no other process can get it.
pub async fn assign_address<S: Store, C: Clock>(
    store: &S,
    clock: &C,
    request: &AssignRequest,
    ip: IpAddr,
    inputs: AllocationInputs,
) -> Result<Assignment> {
    let mut snapshot = Snapshot::new(inputs, request.inputs_query(), clock.now())?;
    assign_in(
        store,
        clock,
        request,
        ip,
        &mut snapshot,
        &mut Retry::new(clock, OPERATION_TIME),
    )
    .await?;
    Ok(Assignment {
        ip,
        prefix: IpVersion::of(ip).bits(),
    })
}

/// Assigns `ip` with the objects of `snapshot`, which afterwards contains those that this function
/// read. Returns the block of the address: an existing block of another size, if the pool was
/// created again, precedes a claim.
pub(super) async fn assign_in<S: Store, C: Clock>(
    store: &S,
    clock: &C,
    request: &AssignRequest,
    ip: IpAddr,
    snapshot: &mut Snapshot,
    retry: &mut Retry<'_, C>,
) -> Result<(Cidr, BlockSource)> {
    let of_pool = block_of(&snapshot.inputs, request, ip)?;
    let cidr = snapshot.block_of(ip, of_pool);
    let mut requested = RequestedAddress {
        request,
        ip,
        of_pool,
        cidr,
        snapshot: &mut *snapshot,
    };
    let outcome = requested.assign(store, clock, retry).await;
    let cidr = requested.cidr;
    let unused = snapshot.take_reserved();
    if !unused.is_empty() {
        // The release of the counts changes the handle.
        snapshot.inputs.handle = StoredHandle::Unread;
        release_reserved(store, clock, &request.handle, unused).await;
    }
    let source = outcome?;
    log_assigned(
        &request.handle,
        &snapshot.inputs.pools,
        [(ip, cidr, source)],
    );
    Ok((cidr, source))
}

struct RequestedAddress<'a, 's> {
    request: &'a AssignRequest,
    ip: IpAddr,
    /// The block that is claimed if no block contains the address.
    of_pool: Cidr,
    /// The block that assigns the address.
    cidr: Cidr,
    snapshot: &'s mut Snapshot,
}

impl<'a> RequestedAddress<'a, '_> {
    async fn assign<S: Store, C: Clock>(
        &mut self,
        store: &S,
        clock: &C,
        retry: &mut Retry<'_, C>,
    ) -> Result<BlockSource> {
        let owner = self.request.owner();
        loop {
            self.read(store).await?;
            let Some((assignment, predecessor)) = self.assign_in_memory()? else {
                let block = self.snapshot.readable_block(&self.cidr);
                return Ok(block.map_or(BlockSource::Own, |block| {
                    BlockSource::of_existing(&block.value, &owner)
                }));
            };
            let source = assignment.source(&owner, false);
            tracing::debug!(
                address = %self.ip, block = %self.cidr, reason = source.name(),
                "chose the block of a requested address"
            );
            let mut commit = Commit {
                store,
                clock,
                request: self.request,
                snapshot: &mut *self.snapshot,
            };
            match commit.write(vec![assignment]).await {
                Err(CommitError { committed, cause }) if committed.is_empty() => {
                    if !cause.is_race() && !cause.has_unknown_outcome() {
                        return Err(cause.into());
                    }
                    retry.pause_after_write(&cause).await?;
                    self.snapshot
                        .refresh(store, clock.now(), [self.cidr])
                        .await?;
                    self.of_pool = block_of(&self.snapshot.inputs, self.request, self.ip)?;
                    self.cidr = self.snapshot.block_of(self.ip, self.of_pool);
                }
                _ => {
                    if let Some(predecessor) = predecessor {
                        decrement(store, clock, &predecessor.handle, &[(self.cidr, 1)]).await;
                    }
                    return Ok(source);
                }
            }
        }
    }

    fn affinity_key(&self) -> AffinityKey {
        AffinityKey {
            owner: self.request.owner(),
            cidr: self.cidr,
        }
    }

    /// Reads the block of the address with the node's affinity to it. If the block is missing,
    /// reads the ranges of all blocks, and chooses a block of another size that contains the
    /// address.
    async fn read<S: Store>(&mut self, store: &S) -> Result<(), StoreError> {
        loop {
            self.read_block(store).await?;
            let cidr = self.snapshot.block_of(self.ip, self.of_pool);
            if cidr == self.cidr {
                return Ok(());
            }
            tracing::debug!(
                address = %self.ip, block = %cidr, reason = "another size",
                "using an existing block instead of a range of the pool"
            );
            self.cidr = cidr;
        }
    }

    async fn read_block<S: Store>(&mut self, store: &S) -> Result<(), StoreError> {
        let mut missing = MissingReads::default();
        if self.snapshot.block(&self.cidr).is_none() {
            missing.blocks.insert(self.cidr);
        }
        missing.handle = self.request.max_per_handle > 0 && self.snapshot.is_handle_unread();
        if self.snapshot.affinity(&self.affinity_key()).is_none() {
            missing.affinities.push(self.affinity_key());
        }
        // The blocks of a list are read before.
        let is_first_read = !missing.blocks.is_empty() || self.request.by_list;
        let creates_handle = match store.write_model() {
            WriteModel::Transactional => false,
            WriteModel::PerObject => {
                is_first_read && !missing.handle && self.snapshot.is_handle_unread()
            }
        };
        if creates_handle {
            let reserved = BlockCounts::from([(self.cidr, 1)]);
            self.snapshot
                .read_beside_handle(store, &missing, reserved)
                .await?;
        } else if missing != MissingReads::default() {
            self.snapshot.read(store, &missing).await?;
        }
        // Other blocks matter only if this block is missing, or if its creation was not completed.
        let version = self.cidr.version();
        let is_unconfirmed = self.unconfirmed().is_some();
        let is_claim =
            self.snapshot.block(&self.cidr) == Some(&BlockRead::Absent) || is_unconfirmed;
        // Ranges without this block were read before its creation, so they may lack other blocks
        // too.
        let are_old = |ranges: &BTreeSet<Cidr>| is_unconfirmed && !ranges.contains(&self.cidr);
        if is_claim && self.snapshot.ranges(version).is_none_or(are_old) {
            self.snapshot
                .read(store, &MissingReads::ranges(version))
                .await?;
        }
        Ok(())
    }

    /// Returns the node's affinity to its block, if the block exists and the affinity is not
    /// confirmed.
    fn unconfirmed(&self) -> Option<&Entry<BlockAffinity>> {
        let block = self.snapshot.readable_block(&self.cidr)?;
        let affinity = self.snapshot.affinity(&self.affinity_key()).flatten()?;
        let is_unfinished = affinity.value.state.is_unfinished();
        (is_unfinished && block.value.owner() == Some(self.request.owner())).then_some(affinity)
    }

    /// Assigns the address in memory, and returns also the predecessor that it passes from. Returns
    /// `None` if the handle already has the address and has reached its limit of addresses.
    fn assign_in_memory(&self) -> Result<Option<(BlockAssignment, Option<&'a Predecessor>)>> {
        let affinity = self.snapshot.affinity(&self.affinity_key()).flatten();
        let (mut block, revision, prior_affinity) = match self.snapshot.block(&self.cidr) {
            Some(BlockRead::Present(entry)) => {
                let is_free = entry.value.allocation(self.ip).is_none();
                let unconfirmed = self.unconfirmed();
                let overlapping = unconfirmed.and_then(|_| self.snapshot.overlapping(&self.cidr));
                let other = self
                    .snapshot
                    .other_block_of(self.ip, &self.cidr)
                    .or(overlapping);
                if let Some(other) = other.filter(|_| is_free) {
                    return Err(IpamError::OverlappingBlock {
                        cidr: self.cidr,
                        other,
                    });
                }
                let prior_affinity = unconfirmed.cloned().map(PriorAffinity::Existing);
                (
                    entry.value.clone(),
                    Some(entry.revision.clone()),
                    prior_affinity,
                )
            }
            Some(BlockRead::Absent) => {
                if let Some(other) = self.snapshot.overlapping(&self.cidr) {
                    return Err(IpamError::OverlappingBlock {
                        cidr: self.cidr,
                        other,
                    });
                }
                // The block of a used address had the former size of its pool, and was deleted
                // meanwhile.
                if self.request.already_used.is_some() && !self.has_size_of_pool() {
                    return Err(IpamError::UnreadableBlock(self.cidr));
                }
                let block = Block::new(self.cidr, &self.request.owner(), self.snapshot.now)?;
                (
                    block,
                    None,
                    Some(
                        affinity
                            .cloned()
                            .map_or(PriorAffinity::Absent, PriorAffinity::Existing),
                    ),
                )
            }
            Some(BlockRead::Corrupt | BlockRead::Surveyed(_)) | None => {
                return Err(IpamError::UnreadableBlock(self.cidr));
            }
        };
        if self.is_at_limit()? {
            return Ok(None);
        }
        let predecessor = match &self.request.predecessor {
            Some(predecessor) if predecessor.release_in(&mut block, self.ip)? => Some(predecessor),
            _ => None,
        };
        let strict =
            self.snapshot.inputs.config.strict_affinity && self.request.already_used.is_none();
        let assigned = BlockAssignment::new(block, revision, prior_affinity).assign_ip(
            self.request,
            strict,
            self.ip,
        );
        assigned
            .map(|assignment| Some((assignment, predecessor)))
            .map_err(|error| match error {
                AssignError::AlreadyAssigned(ip) => IpamError::AlreadyAssigned {
                    ip,
                    holder: self.holder().map(Box::new),
                },
                other => other.into(),
            })
    }

    /// Returns true if a pool of the address has blocks of this size.
    fn has_size_of_pool(&self) -> bool {
        let version = self.cidr.version();
        let mut pools = self
            .snapshot
            .inputs
            .pools
            .iter()
            .map(|entry| &entry.value.spec);
        pools.any(|pool| {
            let contains_ip = pool.range().is_ok_and(|range| range.contains(self.ip));
            contains_ip && pool.block_prefix(version) == self.cidr.prefix()
        })
    }

    fn is_at_limit(&self) -> Result<bool> {
        let (limit, id) = (self.request.max_per_handle, &self.request.handle);
        let Some(handle) = self.snapshot.handle().filter(|_| limit > 0) else {
            return Ok(false);
        };
        if handle
            .value
            .check_limit(id, IpVersion::of(self.ip), 1, limit)
            .is_ok()
        {
            return Ok(false);
        }
        let block = self.snapshot.readable_block(&self.cidr);
        if block.is_some_and(|block| block.value.addresses_of(id).contains(&self.ip)) {
            return Ok(true);
        }
        Err(IpamError::HandleFull {
            handle: id.to_string(),
            ip: self.ip,
            limit,
        })
    }

    fn holder(&self) -> Option<Holder> {
        let block = self.snapshot.readable_block(&self.cidr)?;
        let caller = self
            .request
            .selected_namespace()
            .map(|(namespace, _)| namespace);
        block
            .value
            .allocation(self.ip)
            .map(|held| Holder::of(&held, caller))
    }
}

fn block_of(inputs: &AllocationInputs, request: &AssignRequest, ip: IpAddr) -> Result<Cidr> {
    if let Some(block) = request.already_used.filter(|block| block.contains(ip)) {
        let mut pools = inputs.pools.iter().map(|entry| &entry.value.spec);
        let has_pool = pools.any(|pool| pool.range().is_ok_and(|range| range.contains(ip)));
        return if has_pool {
            Ok(block)
        } else {
            Err(IpamError::NotInPool {
                ip,
                refused: Vec::new(),
            })
        };
    }
    pool_of(inputs, request, ip)?
        .block_of(ip)
        .ok_or(IpamError::NotInPool {
            ip,
            refused: Vec::new(),
        })
}

fn pool_of(inputs: &AllocationInputs, request: &AssignRequest, ip: IpAddr) -> Result<Pool> {
    let (reserved, _) = Reservations::of(inputs.reservations.iter().map(|entry| &entry.value));
    let rules = request.address_rules(IpVersion::of(ip), &reserved);
    let pools = inputs.pools.iter().map(|entry| &entry.value);
    pool_of_address(pools, ip, &rules).map_err(|refusal| match refusal {
        AddressRefusal::NotInPool(refused) => IpamError::NotInPool { ip, refused },
        AddressRefusal::Pool(RejectedPool {
            pool,
            refusal: PoolRejection::Use { allowed, wanted },
            ..
        }) => IpamError::UseNotAllowed {
            ip,
            pool,
            wanted,
            allowed,
        },
        AddressRefusal::Pool(refused) => IpamError::Withheld {
            ip,
            reason: refused.to_string(),
        },
        AddressRefusal::Reserved => IpamError::Withheld {
            ip,
            reason: "an IPReservation reserves the address".into(),
        },
        AddressRefusal::Selector(cause) => PoolChoiceError {
            cause,
            refused: Vec::new(),
        }
        .into(),
    })
}

#[cfg(test)]
mod tests;

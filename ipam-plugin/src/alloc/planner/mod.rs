//! Plans the next step for one family of a request, as a function of the snapshot and without I/O.
//!
//! The order is upstream's (IPAM-110): first the node's own blocks in list order ([`affine`]), then another block of
//! the chosen pools ([`claim`]), then other nodes' blocks ([`borrow`]).

mod affine;
mod borrow;
mod claim;
mod search;
mod shortage;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use libcalico::api::{IpPool, Node};
use libcalico::ipam::{Labels, Owner, Pool, PoolChoice, PoolRequest, choose_pools, stale_blocks};
use libcalico::net::{Cidr, IpVersion};
use libcalico::store::{StoreError, identifier};

use crate::alloc::assignment::BlockAssignment;
use crate::alloc::inputs::AllocationInputs;
use crate::alloc::repair::AffinityRepair;
use crate::alloc::request::AssignRequest;
use crate::alloc::snapshot::{BlockRead, MissingReads, Snapshot};
use crate::block_writes::PriorAffinity;
use crate::error::{Exhaustion, IpamError, Shortfall};
use crate::exhausted::Search;

/// Maximum number of blocks of a node, if neither the request nor the cluster sets a limit (IPAM-103).
pub(crate) const DEFAULT_BLOCK_LIMIT: usize = 20;

/// The next step of a plan.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum PlannerStep {
    /// Read these objects.
    Read(MissingReads),
    /// Repair an affinity first.
    Repair(AffinityRepair),
    /// Assign these addresses.
    Assign(BlockAssignment),
    /// Return these addresses: the handle has reached its limit (IPAM-115).
    AlreadyHeld(Vec<IpAddr>),
    /// No further address is available.
    Exhausted(Exhaustion),
}

/// The plan of one family of a request.
#[derive(Debug)]
pub(crate) struct FamilyPlanner<'a> {
    pub(crate) request: &'a AssignRequest,
    pub(crate) version: IpVersion,
    owner: Owner,
    choice: PoolChoice,
    node_labels: Labels,
    search: Search,
    /// Blocks whose affinity could not be repaired.
    spared: BTreeSet<Cidr>,
}

impl<'a> FamilyPlanner<'a> {
    /// Creates the plan and chooses the pools.
    pub(crate) fn new(
        request: &'a AssignRequest,
        inputs: &AllocationInputs,
        version: IpVersion,
    ) -> Result<FamilyPlanner<'a>, IpamError> {
        let owner = request.owner();
        let node_labels = match (&owner, &inputs.node) {
            (Owner::Virtual(_), _) => Labels::new(),
            (Owner::Host(_), Some(node)) => node.value.metadata.labels.clone(),
            (Owner::Host(name), None) => {
                let key = identifier::<Node>(&libcalico::api::ObjectKey::global(name));
                return Err(StoreError::NotFound { key }.into());
            }
        };
        let pools: Vec<IpPool> = inputs.pools.iter().map(|entry| entry.value.clone()).collect();
        let requested = requested_pools(request.pools(version), version, &pools)?;
        let choice = choose_pools(
            &pools,
            &PoolRequest {
                version,
                requested: &requested,
                purpose: request.purpose,
                node: owner.name(),
                node_labels: &node_labels,
                namespace: request.selected_namespace(),
                restricted: request.restricted.contains(&version),
                max_block_prefix: None,
            },
        )?;
        let search = search::of(&owner, version, &choice, inputs);
        Ok(FamilyPlanner { request, version, owner, choice, node_labels, search, spared: BTreeSet::new() })
    }

    /// Chooses the pools again, after the inputs was read again.
    pub(crate) fn choose_again(&mut self, inputs: &AllocationInputs) -> Result<(), IpamError> {
        let fresh = FamilyPlanner::new(self.request, inputs, self.version)?;
        *self = FamilyPlanner { spared: std::mem::take(&mut self.spared), ..fresh };
        Ok(())
    }

    /// Returns the next step towards `remaining` more addresses.
    pub(crate) fn next(&self, snapshot: &Snapshot, remaining: usize) -> Result<PlannerStep, IpamError> {
        if let Some(step) = self.held(snapshot, remaining)? {
            return Ok(step);
        }
        let unknown: Vec<Cidr> = self.looked_at_first(snapshot).filter(|cidr| snapshot.block(cidr).is_none()).collect();
        if !unknown.is_empty() {
            return Ok(PlannerStep::Read(self.look_at(snapshot, unknown)));
        }
        if let Some(step) = self.release_stale(snapshot) {
            return Ok(step);
        }
        if let Some(step) = self.take_from_affine_blocks(snapshot, remaining)? {
            return Ok(step);
        }
        let lagging_blocks: Vec<Cidr> = snapshot.lagging_blocks(self.version).collect();
        if !lagging_blocks.is_empty() {
            // An address may have been released in the meantime, which avoids taking one elsewhere.
            return Ok(PlannerStep::Read(MissingReads::blocks(lagging_blocks)));
        }
        match self.claim_and_take(snapshot, remaining)? {
            Some(step) => Ok(step),
            None if snapshot.config().strict_affinity => Ok(PlannerStep::Exhausted(self.exhaustion(snapshot))),
            None => self.borrow(snapshot, remaining),
        }
    }

    /// Excludes `cidr` from the plan, because its affinity cannot be repaired.
    pub(crate) fn spare(&mut self, cidr: Cidr) {
        self.spared.insert(cidr);
    }

    /// Returns the shortfall for a request that got only `assigned` addresses.
    pub(crate) fn shortfall(&self, snapshot: &Snapshot, assigned: usize, cause: Exhaustion) -> Shortfall {
        let refused = shortage::refused_pools(self, snapshot, &cause);
        Shortfall { version: self.version, wanted: self.request.wanted(self.version), assigned, cause, refused }
    }

    /// Returns the node's blocks that are read before an address is taken from any of them.
    pub(crate) fn looked_at_first<'k>(&'k self, snapshot: &'k Snapshot) -> impl Iterator<Item = Cidr> + 'k {
        self.affine_blocks(snapshot).chain(self.stale(snapshot))
    }

    /// Returns the node's blocks that the request may use. They are read before the node claims another block.
    pub(crate) fn affine_blocks<'k>(&'k self, snapshot: &'k Snapshot) -> impl Iterator<Item = Cidr> + 'k {
        let affine = snapshot.own_affinities(self.version).map(|entry| entry.key.cidr);
        affine
            .filter(|cidr| self.is_allowed(cidr) && !self.spared.contains(cidr) && !snapshot.reservations.covers(cidr))
    }

    /// Returns the node's first unread block that probably has a free address.
    pub(crate) fn likely_block(&self, snapshot: &Snapshot) -> Option<Cidr> {
        let may_have = |cidr: &Cidr| snapshot.block(cidr).is_none() && self.noted_full(snapshot, cidr).is_none();
        self.affine_blocks(snapshot).find(|cidr| may_have(cidr) && self.is_confirmed(snapshot, cidr))
    }

    /// Returns the node's blocks that it should release if they are empty (IPAM-99).
    fn stale(&self, snapshot: &Snapshot) -> Vec<Cidr> {
        let owned: Vec<Cidr> = snapshot.own_affinities(self.version).map(|entry| entry.key.cidr).collect();
        let mut stale = stale_blocks(&owned, &self.choice, &self.node_labels);
        stale.retain(|cidr| !self.spared.contains(cidr));
        stale
    }

    /// Returns a step that releases the first stale block that is empty.
    fn release_stale(&self, snapshot: &Snapshot) -> Option<PlannerStep> {
        let stale = self.stale(snapshot);
        let claims = snapshot.own_affinities(self.version).filter(|entry| stale.contains(&entry.key.cidr));
        claims.into_iter().find_map(|affinity| {
            let block = snapshot.readable_block(&affinity.key.cidr)?;
            if block.value.owner().as_ref() != Some(&self.owner) || !block.value.is_empty() {
                return None;
            }
            // Marking the affinity as pending deletion precedes the compare-and-swap of the block, so the block must be
            // current.
            if snapshot.lags(&block.key) {
                return Some(PlannerStep::Read(MissingReads::blocks([block.key])));
            }
            Some(PlannerStep::Repair(AffinityRepair::GiveUp { affinity: affinity.clone(), block: block.clone() }))
        })
    }

    pub(crate) fn is_allowed(&self, cidr: &Cidr) -> bool {
        self.choice.chosen.iter().any(|pool| pool.cidr.contains(cidr.network()))
    }

    fn pools(&self) -> &[Pool] {
        &self.choice.chosen
    }

    fn take(
        &self,
        snapshot: &Snapshot,
        cidr: &Cidr,
        n: usize,
        claim: Option<PriorAffinity>,
    ) -> Result<Option<BlockAssignment>, IpamError> {
        match snapshot.block(cidr) {
            Some(BlockRead::Present(block)) => {
                BlockAssignment::of_block(self.request, &self.owner, snapshot, block, n, claim)
            }
            Some(BlockRead::Absent) if snapshot.overlapping(cidr).is_some() => Ok(None),
            Some(BlockRead::Absent) => {
                let claim = claim.unwrap_or(PriorAffinity::Nothing);
                BlockAssignment::of_new_block(self.request, &self.owner, snapshot, *cidr, n, claim)
            }
            Some(BlockRead::Corrupt | BlockRead::Surveyed(_)) | None => Ok(None),
        }
    }

    /// Returns the addresses of a handle that has reached its limit, if they are as many as requested (IPAM-115).
    fn held(&self, snapshot: &Snapshot, remaining: usize) -> Result<Option<PlannerStep>, IpamError> {
        let limit = self.request.max_per_handle;
        if limit > 0 && snapshot.handle_is_unread() {
            return Ok(Some(PlannerStep::Read(MissingReads::handle())));
        }
        let Some(handle) = snapshot.handle().filter(|_| limit > 0) else { return Ok(None) };
        let Err(full) = handle.value.check_limit(&self.request.handle, self.version, remaining, limit) else {
            return Ok(None);
        };
        let blocks: Vec<Cidr> =
            handle.value.block.keys().filter(|cidr| cidr.version() == self.version).copied().collect();
        let is_unknown = |cidr: &&Cidr| matches!(snapshot.block(cidr), None | Some(BlockRead::Surveyed(_)));
        let unknown: Vec<Cidr> = blocks.iter().filter(is_unknown).copied().collect();
        if !unknown.is_empty() {
            return Ok(Some(PlannerStep::Read(MissingReads::blocks(unknown))));
        }
        let readable = blocks.iter().filter_map(|cidr| snapshot.readable_block(cidr));
        let mut held: Vec<IpAddr> = readable.flat_map(|block| block.value.addresses_of(&self.request.handle)).collect();
        if held.len() >= remaining {
            held.truncate(remaining);
            return Ok(Some(PlannerStep::AlreadyHeld(held)));
        }
        let is_readable = blocks.iter().all(|cidr| snapshot.block(cidr) != Some(&BlockRead::Corrupt));
        // A killed allocation may have counted addresses that it never took. Without this, a VMI with that handle would
        // wait forever.
        if is_readable && held.len() + remaining <= limit { Ok(None) } else { Err(full.into()) }
    }

    fn block_limit(&self, snapshot: &Snapshot) -> usize {
        let configured = usize::try_from(snapshot.config().max_blocks_per_host).unwrap_or(0);
        let limits = [self.request.max_blocks, configured];
        limits.into_iter().filter(|&limit| limit > 0).min().unwrap_or(DEFAULT_BLOCK_LIMIT)
    }
}

/// Returns the ranges of the pools that a request names. An entry is a CIDR, or the name of a pool (IPAM-34).
fn requested_pools(texts: &[String], version: IpVersion, pools: &[IpPool]) -> Result<Vec<Cidr>, IpamError> {
    let by_name: BTreeMap<&str, &IpPool> = pools.iter().map(|pool| (pool.metadata.name.as_str(), pool)).collect();
    let resolve = |text: &String| {
        let cidr: Cidr = match (text.parse(), by_name.get(text.as_str())) {
            (Ok(cidr), _) => cidr,
            (Err(_), Some(pool)) => {
                pool.spec.range().map_err(|cause| IpamError::PoolName { pool: text.clone(), cause })?
            }
            (Err(cause), None) => return Err(IpamError::PoolName { pool: text.clone(), cause }),
        };
        if cidr.version() == version { Ok(cidr) } else { Err(IpamError::PoolFamily { pool: cidr.network(), version }) }
    };
    texts.iter().map(resolve).collect()
}

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

use crate::error::{Exhaustion, IpamError, Shortfall};
use crate::exhausted::Search;
use crate::knowledge::{Knowledge, Known, Wants};
use crate::mend::Mend;
use crate::prelude::Prelude;
use crate::request::AssignRequest;
use crate::take::{ClaimFrom, Take};

/// Maximum number of blocks of a node, if neither the request nor the cluster sets a limit (IPAM-103).
pub(crate) const DEFAULT_BLOCK_LIMIT: usize = 20;

/// The next step of a plan.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Step {
    /// Read these objects.
    Read(Wants),
    /// Repair an affinity first.
    Mend(Mend),
    /// Assign these addresses.
    Take(Take),
    /// Return these addresses: the handle has reached its limit (IPAM-115).
    Held(Vec<IpAddr>),
    /// No further address is available.
    Short(Exhaustion),
}

/// The plan of one family of a request.
#[derive(Debug)]
pub(crate) struct FamilyPlan<'a> {
    pub(crate) request: &'a AssignRequest,
    pub(crate) version: IpVersion,
    owner: Owner,
    choice: PoolChoice,
    node_labels: Labels,
    search: Search,
    /// Blocks whose affinity could not be repaired.
    spared: BTreeSet<Cidr>,
}

impl<'a> FamilyPlan<'a> {
    /// Creates the plan and chooses the pools.
    pub(crate) fn new(
        request: &'a AssignRequest,
        prelude: &Prelude,
        version: IpVersion,
    ) -> Result<FamilyPlan<'a>, IpamError> {
        let owner = request.owner();
        let node_labels = match (&owner, &prelude.node) {
            (Owner::Virtual(_), _) => Labels::new(),
            (Owner::Host(_), Some(node)) => node.value.metadata.labels.clone(),
            (Owner::Host(name), None) => {
                let key = identifier::<Node>(&libcalico::api::ObjectKey::global(name));
                return Err(StoreError::NotFound { key }.into());
            }
        };
        let pools: Vec<IpPool> = prelude.pools.iter().map(|entry| entry.value.clone()).collect();
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
        let search = search::of(&owner, version, &choice, prelude);
        Ok(FamilyPlan { request, version, owner, choice, node_labels, search, spared: BTreeSet::new() })
    }

    /// Chooses the pools again, after the prelude was read again.
    pub(crate) fn choose_again(&mut self, prelude: &Prelude) -> Result<(), IpamError> {
        let fresh = FamilyPlan::new(self.request, prelude, self.version)?;
        *self = FamilyPlan { spared: std::mem::take(&mut self.spared), ..fresh };
        Ok(())
    }

    /// Returns the next step towards `remaining` more addresses.
    pub(crate) fn next(&self, known: &Knowledge, remaining: usize) -> Result<Step, IpamError> {
        if let Some(step) = self.held(known, remaining)? {
            return Ok(step);
        }
        let unknown: Vec<Cidr> = self.looked_at_first(known).filter(|cidr| known.block(cidr).is_none()).collect();
        if !unknown.is_empty() {
            return Ok(Step::Read(self.look_at(known, unknown)));
        }
        if let Some(step) = self.release_stale(known) {
            return Ok(step);
        }
        if let Some(step) = self.take_from_affine_blocks(known, remaining)? {
            return Ok(step);
        }
        let lagging: Vec<Cidr> = known.lagging(self.version).collect();
        if !lagging.is_empty() {
            // An address may have been released in the meantime, which avoids taking one elsewhere.
            return Ok(Step::Read(Wants::blocks(lagging)));
        }
        match self.claim_and_take(known, remaining)? {
            Some(step) => Ok(step),
            None if known.config().strict_affinity => Ok(Step::Short(self.exhaustion(known))),
            None => self.borrow(known, remaining),
        }
    }

    /// Excludes `cidr` from the plan, because its affinity cannot be repaired.
    pub(crate) fn spare(&mut self, cidr: Cidr) {
        self.spared.insert(cidr);
    }

    /// Returns the shortfall for a request that got only `assigned` addresses.
    pub(crate) fn shortfall(&self, known: &Knowledge, assigned: usize, cause: Exhaustion) -> Shortfall {
        let refused = shortage::refused_pools(self, known, &cause);
        Shortfall { version: self.version, wanted: self.request.wanted(self.version), assigned, cause, refused }
    }

    /// Returns the node's blocks that are read before an address is taken from any of them.
    pub(crate) fn looked_at_first<'k>(&'k self, known: &'k Knowledge) -> impl Iterator<Item = Cidr> + 'k {
        self.affine_blocks(known).chain(self.stale(known))
    }

    /// Returns the node's blocks that the request may use. They are read before the node claims another block.
    pub(crate) fn affine_blocks<'k>(&'k self, known: &'k Knowledge) -> impl Iterator<Item = Cidr> + 'k {
        let affine = known.own_affinities(self.version).map(|entry| entry.key.cidr);
        affine.filter(|cidr| self.is_allowed(cidr) && !self.spared.contains(cidr) && !known.reservations.covers(cidr))
    }

    /// Returns the node's first unread block that probably has a free address.
    pub(crate) fn likely_block(&self, known: &Knowledge) -> Option<Cidr> {
        let may_have = |cidr: &Cidr| known.block(cidr).is_none() && self.noted_full(known, cidr).is_none();
        self.affine_blocks(known).find(|cidr| may_have(cidr) && self.is_confirmed(known, cidr))
    }

    /// Returns the node's blocks that it should release if they are empty (IPAM-99).
    fn stale(&self, known: &Knowledge) -> Vec<Cidr> {
        let owned: Vec<Cidr> = known.own_affinities(self.version).map(|entry| entry.key.cidr).collect();
        let mut stale = stale_blocks(&owned, &self.choice, &self.node_labels);
        stale.retain(|cidr| !self.spared.contains(cidr));
        stale
    }

    /// Returns a step that releases the first stale block that is empty.
    fn release_stale(&self, known: &Knowledge) -> Option<Step> {
        let stale = self.stale(known);
        let claims = known.own_affinities(self.version).filter(|entry| stale.contains(&entry.key.cidr));
        claims.into_iter().find_map(|affinity| {
            let block = known.readable_block(&affinity.key.cidr)?;
            if block.value.owner().as_ref() != Some(&self.owner) || !block.value.is_empty() {
                return None;
            }
            // Marking the affinity as pending deletion precedes the compare-and-swap of the block, so the block must be
            // current.
            if known.lags(&block.key) {
                return Some(Step::Read(Wants::blocks([block.key])));
            }
            Some(Step::Mend(Mend::GiveUp { affinity: affinity.clone(), block: block.clone() }))
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
        known: &Knowledge,
        cidr: &Cidr,
        n: usize,
        claim: Option<ClaimFrom>,
    ) -> Result<Option<Take>, IpamError> {
        match known.block(cidr) {
            Some(Known::There(block)) => Take::of_block(self.request, &self.owner, known, block, n, claim),
            Some(Known::Absent) if known.overlapping(cidr).is_some() => Ok(None),
            Some(Known::Absent) => {
                let claim = claim.unwrap_or(ClaimFrom::Nothing);
                Take::of_new_block(self.request, &self.owner, known, *cidr, n, claim)
            }
            Some(Known::Corrupt | Known::Seen(_)) | None => Ok(None),
        }
    }

    /// Returns the addresses of a handle that has reached its limit, if they are as many as requested (IPAM-115).
    fn held(&self, known: &Knowledge, remaining: usize) -> Result<Option<Step>, IpamError> {
        let limit = self.request.max_per_handle;
        if limit > 0 && known.handle_is_unread() {
            return Ok(Some(Step::Read(Wants::handle())));
        }
        let Some(handle) = known.handle().filter(|_| limit > 0) else { return Ok(None) };
        let Err(full) = handle.value.check_limit(&self.request.handle, self.version, remaining, limit) else {
            return Ok(None);
        };
        let blocks: Vec<Cidr> =
            handle.value.block.keys().filter(|cidr| cidr.version() == self.version).copied().collect();
        let is_unknown = |cidr: &&Cidr| matches!(known.block(cidr), None | Some(Known::Seen(_)));
        let unknown: Vec<Cidr> = blocks.iter().filter(is_unknown).copied().collect();
        if !unknown.is_empty() {
            return Ok(Some(Step::Read(Wants::blocks(unknown))));
        }
        let readable = blocks.iter().filter_map(|cidr| known.readable_block(cidr));
        let mut held: Vec<IpAddr> = readable.flat_map(|block| block.value.addresses_of(&self.request.handle)).collect();
        if held.len() >= remaining {
            held.truncate(remaining);
            return Ok(Some(Step::Held(held)));
        }
        let is_readable = blocks.iter().all(|cidr| known.block(cidr) != Some(&Known::Corrupt));
        // A killed allocation may have counted addresses that it never took. Without this, a VMI with that handle would
        // wait forever.
        if is_readable && held.len() + remaining <= limit { Ok(None) } else { Err(full.into()) }
    }

    fn block_limit(&self, known: &Knowledge) -> usize {
        let configured = usize::try_from(known.config().max_blocks_per_host).unwrap_or(0);
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

//! [`FamilyPlanner`]: plans the next step for one family of a request, as a function of the
//! snapshot and without I/O.
//!
//! The order is upstream's (IPAM-110): first the node's own blocks in the textual order of the
//! paths of their affinities (IPAM-112), then another block of the chosen pools ([`new_block`]),
//! then blocks of other owners or none, to borrow from. A chosen pool gives a free range, which the
//! node claims, a block of the node without an affinity, or an empty block of another node, which
//! the node reclaims.
//!
//! If the pool now has another block size, a node leaves its former blocks ([`own_blocks`]): it
//! gives up the empty ones, and takes an address from the others only after a claim, but before it
//! searches all blocks (IPAM-106).

mod existing_block;
mod new_block;
mod own_blocks;
mod search;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;

use libcalico::api::{IpPool, Node, ObjectKey};
use libcalico::ipam::{
    AffinityOwner, Block, DEFAULT_BLOCK_LIMIT, Labels, Pool, PoolChoice, PoolRejection,
    PoolRequest, choose_pools,
};
use libcalico::net::{Cidr, IpVersion};
use libcalico::store::{StoreError, identifier};

use crate::alloc::assignment::{BlockAssignment, BlockSource};
use crate::alloc::inputs::AllocationInputs;
use crate::alloc::planner::own_blocks::BlockSize;
use crate::alloc::repair::AffinityRepair;
use crate::alloc::request::AssignRequest;
use crate::alloc::snapshot::{BlockRead, MissingReads, Snapshot};
use crate::block_writes::PriorAffinity;
use crate::error::{Exhaustion, IpamError, Result};
use crate::exhausted::Search;

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum PlannerStep {
    Read(MissingReads),
    Repair(AffinityRepair),
    Assign(BlockAssignment),
    /// Return these addresses: the handle has reached its limit (IPAM-115).
    AlreadyHeld(Vec<IpAddr>),
    Exhausted(Exhaustion),
}

#[derive(Debug)]
pub(crate) struct FamilyPlanner<'a> {
    pub(crate) request: &'a AssignRequest,
    pub(crate) version: IpVersion,
    owner: AffinityOwner,
    choice: PoolChoice,
    node_labels: Labels,
    search: Search,
    /// Blocks whose affinity this request failed to repair or release. The planner takes no address
    /// from them as the node's own or as new blocks. It may borrow from them, because borrowing
    /// changes no affinity.
    pub(crate) excluded: BTreeSet<Cidr>,
    /// False once the datastore has forbidden this request to reclaim a block. The planner then
    /// reclaims no other block, because the datastore would probably refuse that too.
    pub(crate) may_reclaim: bool,
}

impl<'a> FamilyPlanner<'a> {
    pub(crate) fn new(
        request: &'a AssignRequest,
        inputs: &AllocationInputs,
        version: IpVersion,
    ) -> Result<Self> {
        let owner = request.owner();
        let node_labels = match (&owner, &inputs.node) {
            (AffinityOwner::Virtual(_), _) => Labels::new(),
            (AffinityOwner::Host(_), Some(node)) => node.value.metadata.labels.clone(),
            (AffinityOwner::Host(name), None) => {
                let key = identifier::<Node>(&ObjectKey::global(name));
                return Err(StoreError::NotFound { key }.into());
            }
        };
        let pools: Vec<IpPool> = inputs
            .pools
            .iter()
            .map(|entry| entry.value.clone())
            .collect();
        let requested = requested_pools(request.pools(version), version, &pools)?;
        let pool_request = PoolRequest {
            version,
            requested: &requested,
            purpose: request.purpose,
            node: owner.name(),
            node_labels: &node_labels,
            namespace: request.selected_namespace(),
            named: request.named_pools(version),
        };
        let choice = choose_pools(&pools, &pool_request)?;
        // Upstream assigns from such a pool.
        for pool in choice
            .refused
            .iter()
            .filter(|pool| matches!(pool.refusal, PoolRejection::Unassignable { .. }))
        {
            tracing::warn!(%pool, "assigning no address from a pool of multicast or loopback");
        }
        let search = search_of(&owner, version, &choice, inputs);
        Ok(FamilyPlanner {
            request,
            version,
            owner,
            choice,
            node_labels,
            search,
            excluded: BTreeSet::new(),
            may_reclaim: true,
        })
    }

    /// Chooses the pools again, after the inputs were read again.
    pub(crate) fn choose_again(&mut self, inputs: &AllocationInputs) -> Result<()> {
        let fresh = FamilyPlanner::new(self.request, inputs, self.version)?;
        let (excluded, may_reclaim) = (std::mem::take(&mut self.excluded), self.may_reclaim);
        *self = FamilyPlanner {
            excluded,
            may_reclaim,
            ..fresh
        };
        Ok(())
    }

    fn pools(&self) -> &[Pool] {
        &self.choice.chosen
    }

    fn assign(
        &self,
        snapshot: &Snapshot,
        cidr: &Cidr,
        n: usize,
        prior_affinity: Option<PriorAffinity>,
    ) -> Result<Option<BlockAssignment>> {
        let (block, revision, prior_affinity) = match snapshot.block(cidr) {
            Some(BlockRead::Present(block)) => (
                block.value.clone(),
                Some(block.revision.clone()),
                prior_affinity,
            ),
            Some(BlockRead::Absent) if snapshot.overlapping(cidr).is_none() => {
                let block = Block::new(*cidr, &self.owner, snapshot.now)?;
                (
                    block,
                    None,
                    Some(prior_affinity.unwrap_or(PriorAffinity::Absent)),
                )
            }
            Some(BlockRead::Absent | BlockRead::Corrupt | BlockRead::Surveyed(_)) | None => {
                return Ok(None);
            }
        };
        BlockAssignment::new(block, revision, prior_affinity).assign(
            self.request,
            &self.owner,
            snapshot,
            n,
        )
    }

    /// Logs a decision with its reason. Reads are logged where they are made.
    pub(crate) fn log_decision(&self, snapshot: &Snapshot, step: &PlannerStep) {
        match step {
            PlannerStep::Read(_) => {}
            PlannerStep::Repair(repair) => tracing::debug!(
                block = %repair.cidr(), reason = repair.reason(&self.owner),
                pool = self.pool_name(&repair.cidr()),
                "chose a repair of a block affinity"
            ),
            PlannerStep::Assign(assignment) => self.log_block(assignment),
            PlannerStep::AlreadyHeld(_) => {
                tracing::debug!(reason = "handle at its limit", "chose no block");
            }
            PlannerStep::Exhausted(cause) => {
                // The owner of the addresses of Services may have many blocks.
                if tracing::enabled!(tracing::Level::DEBUG) {
                    self.log_unused_own_blocks(snapshot);
                }
                tracing::debug!(reason = %cause, "chose no block");
            }
        }
    }

    fn log_unused_own_blocks(&self, snapshot: &Snapshot) {
        for (block, reason) in self.unused_own_blocks(snapshot) {
            tracing::debug!(%block, reason, "taking no address from a block of the node");
        }
    }

    fn log_block(&self, assignment: &BlockAssignment) {
        let (block, source) = (assignment.cidr(), assignment.source(&self.owner, false));
        if source == BlockSource::Claimed {
            tracing::debug!(
                %block, reason = "first free range", pool = self.pool_name(&block),
                "chose a range to claim"
            );
        } else {
            tracing::debug!(
                %block, reason = source.name(), pool = self.pool_name(&block), "chose a block"
            );
        }
    }

    fn pool_name(&self, cidr: &Cidr) -> Option<&str> {
        let mut pools = self.pools().iter();
        pools
            .find(|pool| pool.cidr.contains(cidr.network()))
            .map(|pool| pool.name.as_str())
    }

    fn block_limit(&self, snapshot: &Snapshot) -> usize {
        let configured = usize::try_from(snapshot.inputs.config.max_blocks_per_host).unwrap_or(0);
        let limits = [self.request.max_blocks, configured];
        limits
            .into_iter()
            .filter(|&limit| limit > 0)
            .min()
            .unwrap_or(DEFAULT_BLOCK_LIMIT)
    }
}

impl FamilyPlanner<'_> {
    pub(crate) fn next(&self, snapshot: &Snapshot, remaining: usize) -> Result<PlannerStep> {
        if let Some(step) = self.already_held(snapshot, remaining)? {
            return Ok(step);
        }
        let unread: Vec<Cidr> = self
            .blocks_to_read_first(snapshot)
            .filter(|cidr| snapshot.block(cidr).is_none())
            .collect();
        if !unread.is_empty() {
            return Ok(PlannerStep::Read(
                self.reads_of_own_blocks(snapshot, unread),
            ));
        }
        if let Some(step) = self.release_stale(snapshot) {
            return Ok(step);
        }
        if let Some(step) = self.assign_from_own_blocks(snapshot, BlockSize::Present, remaining)? {
            return Ok(step);
        }
        let lagging_blocks: Vec<Cidr> = snapshot.lagging_blocks(self.version).collect();
        if !lagging_blocks.is_empty() {
            // An address may have been released in the meantime.
            return Ok(PlannerStep::Read(MissingReads::blocks(lagging_blocks)));
        }
        let claim = self.claim_and_assign(snapshot, remaining)?;
        if claim.as_ref().is_none_or(|step| !self.is_at_hand(step))
            && let Some(step) =
                self.assign_from_own_blocks(snapshot, BlockSize::Former, remaining)?
        {
            return Ok(step);
        }
        match claim {
            Some(step) => Ok(step),
            None if snapshot.inputs.config.strict_affinity => {
                Ok(PlannerStep::Exhausted(self.exhaustion(snapshot)))
            }
            None => self.borrow(snapshot, remaining),
        }
    }

    /// Returns the step for a handle at its limit of addresses (IPAM-115), or `None` if the handle
    /// may get `remaining` more. Fails if the handle is at its limit and has fewer addresses than
    /// requested.
    fn already_held(&self, snapshot: &Snapshot, remaining: usize) -> Result<Option<PlannerStep>> {
        let (limit, id) = (self.request.max_per_handle, &self.request.handle);
        if limit > 0 && snapshot.is_handle_unread() {
            return read_step(MissingReads::handle());
        }
        let handle = snapshot
            .handle()
            .map(|entry| &entry.value)
            .filter(|_| limit > 0);
        let Some(handle) = handle else {
            return Ok(None);
        };
        let Err(full) = handle.check_limit(id, self.version, remaining, limit) else {
            return Ok(None);
        };
        let blocks: Vec<Cidr> = handle
            .block
            .keys()
            .filter(|cidr| cidr.version() == self.version)
            .copied()
            .collect();
        let is_unread =
            |cidr: &&Cidr| matches!(snapshot.block(cidr), None | Some(BlockRead::Surveyed(_)));
        let unread: Vec<Cidr> = blocks.iter().filter(is_unread).copied().collect();
        if !unread.is_empty() {
            return read_step(MissingReads::blocks(unread));
        }
        let readable = blocks
            .iter()
            .filter_map(|cidr| snapshot.readable_block(cidr));
        let mut held: Vec<IpAddr> = readable
            .flat_map(|block| block.value.addresses_of(id))
            .collect();
        if held.len() >= remaining {
            held.truncate(remaining);
            return Ok(Some(PlannerStep::AlreadyHeld(held)));
        }
        let is_readable = blocks
            .iter()
            .all(|cidr| snapshot.block(cidr) != Some(&BlockRead::Corrupt));
        // A killed allocation may have counted addresses that it never took, and a VMI with that
        // handle would wait forever.
        if is_readable && held.len() + remaining <= limit {
            Ok(None)
        } else {
            Err(full.into())
        }
    }
}

fn read_step(missing: MissingReads) -> Result<Option<PlannerStep>> {
    Ok(Some(PlannerStep::Read(missing)))
}

/// An entry is a CIDR, or the name of a pool (IPAM-34).
fn requested_pools(texts: &[String], version: IpVersion, pools: &[IpPool]) -> Result<Vec<Cidr>> {
    let by_name: BTreeMap<&str, &IpPool> = pools
        .iter()
        .map(|pool| (pool.metadata.name.as_str(), pool))
        .collect();
    let resolve = |text: &String| {
        let invalid = |cause| IpamError::PoolName {
            pool: text.clone(),
            cause,
        };
        let cidr: Cidr = match (text.parse(), by_name.get(text.as_str())) {
            (Ok(cidr), _) => cidr,
            (Err(_), Some(pool)) => pool.spec.range().map_err(invalid)?,
            (Err(cause), None) => return Err(invalid(cause)),
        };
        if cidr.version() == version {
            return Ok(cidr);
        }
        Err(IpamError::PoolFamily {
            requested: text.clone(),
            pool: cidr.network(),
            version,
        })
    };
    texts.iter().map(resolve).collect()
}

fn search_of(
    owner: &AffinityOwner,
    version: IpVersion,
    choice: &PoolChoice,
    inputs: &AllocationInputs,
) -> Search {
    let strict = inputs.config.strict_affinity;
    let mut key = format!(
        "IPv{version} of {owner}{}",
        if strict { ", strict" } else { "" }
    );
    for pool in &choice.chosen {
        _ = write!(key, ", {} in /{}", pool.cidr, pool.block_prefix);
    }
    let mut state = DefaultHasher::new();
    for pool in &inputs.pools {
        (
            &pool.value.metadata.name,
            &pool.value.metadata.uid,
            &pool.revision,
        )
            .hash(&mut state);
    }
    for reservation in &inputs.reservations {
        (&reservation.value.metadata.name, &reservation.revision).hash(&mut state);
    }
    inputs.config_revision.hash(&mut state);
    Search {
        key,
        state: state.finish(),
    }
}

//! [`ListSearch`]: plans the next step towards an address of a list, as a function of the snapshot
//! and without I/O.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use libcalico::ipam::{
    Block, Candidate, Candidates, Holder, Obstacle, PoolChoiceError, Reservations, Unavailable,
    candidates,
};
use libcalico::net::{Cidr, IpVersion};

use crate::alloc::request::AssignRequest;
use crate::alloc::snapshot::{BlockRead, MissingReads, Snapshot};
use crate::error::{IpamError, Result};

/// Number of blocks in the first read. On an API server each block is a request.
const BLOCKS_OF_FIRST_READ: usize = 3;

#[derive(Debug, Clone, PartialEq)]
pub(super) enum SearchStep {
    Read(MissingReads),
    Take(Candidate),
    Exhausted,
}

#[derive(Debug)]
pub(super) struct ListSearch<'a> {
    request: &'a AssignRequest,
    wanted: &'a [IpAddr],
    /// Addresses that this request failed to take.
    failed: BTreeMap<IpAddr, Obstacle>,
}

/// The state of an address in the snapshot.
enum Look {
    Unread,
    Free,
    Taken(Obstacle),
}

impl<'a> ListSearch<'a> {
    pub(super) fn new(request: &'a AssignRequest, wanted: &'a [IpAddr]) -> Self {
        ListSearch {
            request,
            wanted,
            failed: BTreeMap::new(),
        }
    }

    /// Divides the addresses by the pools of the snapshot. An existing block of another size
    /// replaces the missing block of an address. The limit of blocks holds for the blocks of the
    /// pools, so that it does not depend on the reads.
    pub(super) fn candidates(&self, snapshot: &Snapshot) -> Result<Candidates> {
        let inputs = &snapshot.inputs;
        let (reserved, _) = Reservations::of(inputs.reservations.iter().map(|entry| &entry.value));
        let version = self
            .wanted
            .first()
            .map_or(IpVersion::V4, |ip| IpVersion::of(*ip));
        let rules = self.request.address_rules(version, &reserved);
        let found = candidates(
            inputs.pools.iter().map(|entry| &entry.value),
            &rules,
            self.wanted,
        );
        let mut found = found.map_err(|cause| PoolChoiceError {
            cause,
            refused: Vec::new(),
        })?;
        found.ensure_few_blocks().map_err(IpamError::List)?;
        for candidate in &mut found.permitted {
            candidate.block = snapshot.block_of(candidate.ip, candidate.block);
        }
        Ok(found)
    }

    pub(super) fn step(&self, candidates: &Candidates, snapshot: &Snapshot) -> SearchStep {
        let is_open = |candidate: &&Candidate| !self.failed.contains_key(&candidate.ip);
        let is_skipped = |candidate: &&Candidate| self.request.skipped.contains(&candidate.ip);
        let (last, first): (Vec<&Candidate>, Vec<&Candidate>) = candidates
            .permitted
            .iter()
            .filter(is_open)
            .partition(is_skipped);
        if let Some(predecessor) = &self.request.predecessor {
            let listed = first
                .iter()
                .find(|candidate| predecessor.listed.contains(&candidate.ip));
            if let Some(listed) =
                listed.filter(|candidate| matches!(self.look(candidate, snapshot), Look::Unread))
            {
                return SearchStep::Read(next_reads(listed, candidates, snapshot));
            }
        }
        if let Some(held) = first
            .iter()
            .find(|candidate| self.is_predecessors(candidate, snapshot))
        {
            return SearchStep::Take(**held);
        }
        for candidate in first.into_iter().chain(last) {
            match self.look(candidate, snapshot) {
                Look::Unread => {
                    return SearchStep::Read(next_reads(candidate, candidates, snapshot));
                }
                Look::Free => return SearchStep::Take(*candidate),
                Look::Taken(_) if self.is_predecessors(candidate, snapshot) => {
                    return SearchStep::Take(*candidate);
                }
                Look::Taken(_) => {}
            }
        }
        SearchStep::Exhausted
    }

    /// Returns true if the predecessor has the address, so that the address passes to the request.
    pub(super) fn is_predecessors(&self, candidate: &Candidate, snapshot: &Snapshot) -> bool {
        let Some(predecessor) = &self.request.predecessor else {
            return false;
        };
        // After a repeated ADD the predecessor is this container, which may have just found its
        // address to be busy.
        let is_own = predecessor.handle == self.request.handle;
        if is_own && self.request.skipped.contains(&candidate.ip) {
            return false;
        }
        let block = snapshot.readable_block(&candidate.block);
        block.is_some_and(|block| predecessor.has(&block.value, candidate.ip))
    }

    /// Records that the request did not get an address that was free.
    pub(super) fn give_up(&mut self, candidate: Candidate, snapshot: &Snapshot) {
        let obstacle = match self.look(&candidate, snapshot) {
            Look::Taken(obstacle) => obstacle,
            Look::Unread | Look::Free => Obstacle::Raced,
        };
        self.failed.insert(candidate.ip, obstacle);
    }

    /// Returns the permitted addresses before `taken` in the list that the request did not get, as
    /// far as they were read.
    pub(super) fn passed_over(
        &self,
        candidates: &Candidates,
        snapshot: &Snapshot,
        taken: IpAddr,
    ) -> Vec<Unavailable> {
        let before = candidates
            .permitted
            .iter()
            .take_while(|candidate| candidate.ip != taken);
        before
            .filter_map(|candidate| self.unavailable_one(candidate, snapshot))
            .collect()
    }

    /// Returns each address with the reason why the request does not get it, the permitted
    /// addresses first.
    pub(super) fn unavailable(
        &self,
        candidates: &Candidates,
        snapshot: &Snapshot,
    ) -> Vec<Unavailable> {
        let permitted = candidates
            .permitted
            .iter()
            .filter_map(|candidate| self.unavailable_one(candidate, snapshot));
        permitted
            .chain(candidates.unavailable.iter().cloned())
            .collect()
    }

    fn unavailable_one(&self, candidate: &Candidate, snapshot: &Snapshot) -> Option<Unavailable> {
        let ip = candidate.ip;
        let reason = match (self.failed.get(&ip), self.look(candidate, snapshot)) {
            (Some(obstacle), _) => obstacle.clone(),
            (None, Look::Taken(obstacle)) => obstacle,
            (None, Look::Unread | Look::Free) => return None,
        };
        Some(Unavailable { ip, reason })
    }

    fn look(&self, candidate: &Candidate, snapshot: &Snapshot) -> Look {
        let Candidate { ip, block: cidr } = *candidate;
        match snapshot.block(&cidr) {
            None => Look::Unread,
            // A block of another size may contain the address.
            Some(BlockRead::Absent) if snapshot.ranges(cidr.version()).is_none() => Look::Unread,
            Some(BlockRead::Absent) => match snapshot.overlapping(&cidr) {
                Some(other) => Look::Taken(Obstacle::OtherSize(other)),
                None => Look::Free,
            },
            Some(BlockRead::Corrupt | BlockRead::Surveyed(_)) => {
                Look::Taken(Obstacle::UnusableBlock(cidr))
            }
            Some(BlockRead::Present(block)) => {
                let is_strict = snapshot.inputs.config.strict_affinity;
                match (
                    self.look_into(&block.value, ip, is_strict),
                    snapshot.other_block_of(ip, &cidr),
                ) {
                    (Look::Free, Some(other)) => Look::Taken(Obstacle::OtherSize(other)),
                    (look, _) => look,
                }
            }
        }
    }

    fn look_into(&self, block: &Block, ip: IpAddr, is_strict: bool) -> Look {
        if is_strict && block.owner() != Some(self.request.owner()) {
            return Look::Taken(Obstacle::ForeignBlock(block.cidr));
        }
        match block.allocation(ip) {
            None => Look::Free,
            Some(held) if held.is_cooling() => Look::Taken(Obstacle::Cooling),
            Some(held) => {
                let caller = self.request.selected_namespace().map(|(name, _)| name);
                Look::Taken(Obstacle::Held(Holder::of(&held, caller)))
            }
        }
    }
}

/// Returns the reads for the state of `next`: the ranges of all blocks if its block is missing, and
/// otherwise its block and then unread blocks in the order of the list. A later read has as many
/// blocks as all reads before, because the ADD has the node's lock, and a tenant's list may be in
/// 64 blocks.
fn next_reads(next: &Candidate, candidates: &Candidates, snapshot: &Snapshot) -> MissingReads {
    if snapshot.block(&next.block).is_some() {
        return MissingReads::ranges(next.block.version());
    }
    let all: BTreeSet<Cidr> = candidates
        .permitted
        .iter()
        .map(|candidate| candidate.block)
        .collect();
    let before = all
        .iter()
        .filter(|block| snapshot.block(block).is_some())
        .count();
    let mut blocks = vec![next.block];
    for candidate in &candidates.permitted {
        if blocks.len() == before.max(BLOCKS_OF_FIRST_READ) {
            break;
        }
        if snapshot.block(&candidate.block).is_none() && !blocks.contains(&candidate.block) {
            blocks.push(candidate.block);
        }
    }
    MissingReads::blocks(blocks)
}

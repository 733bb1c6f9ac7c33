//! The blocks of handles, as read, and the plan of the writes that release their addresses.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use libcalico::ipam::{AffinityOwner, Allocation, Block, BlockAffinity, HandleId, allocation_time};
use libcalico::net::Cidr;
use libcalico::store::{Entry, Kind, Revision, Store, StoreError, Write, WriteOp};
use time::OffsetDateTime;

use super::super::{AddressToRelease, missing_blocks};
use super::ReleaseInputs;
use crate::block_writes::write_released;
use crate::error::Result;
use crate::handle_refs;
use crate::reads::find_each;

#[derive(Debug)]
pub(super) struct ReleaseState {
    inputs: ReleaseInputs,
    /// `None` for an unreadable block.
    blocks: BTreeMap<Cidr, Option<Entry<Block>>>,
    /// The affinities to missing blocks whose creation may still be in progress.
    missing: Vec<Entry<BlockAffinity>>,
}

pub(super) struct ReleasePlan {
    pub(super) writes: Vec<Write>,
    pub(super) addresses: usize,
    pub(super) unreadable: Vec<Cidr>,
    pub(super) emptied: Vec<(Cidr, AffinityOwner)>,
}

impl ReleasePlan {
    /// Returns the revision of the last block that the writes updated.
    pub(super) fn last_update(&self, revisions: &[Revision]) -> Option<Revision> {
        let is_update =
            |write: &Write| write.kind == Block::KIND && matches!(write.op, WriteOp::Update(..));
        revisions
            .get(self.writes.iter().rposition(is_update)?)
            .cloned()
    }
}

impl ReleaseState {
    pub(super) async fn read<S: Store>(
        store: &S,
        inputs: ReleaseInputs,
    ) -> Result<ReleaseState, StoreError> {
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

    pub(super) fn into_inputs(self) -> ReleaseInputs {
        self.inputs
    }

    pub(super) fn is_owned(&self) -> bool {
        let mut blocks = self.blocks.values().flatten();
        self.inputs.unless_owned
            && blocks.any(|block| {
                self.inputs
                    .handles
                    .iter()
                    .any(|handle| block.value.has_owner(&handle.key))
            })
    }

    pub(super) fn newer(&self) -> impl Iterator<Item = (IpAddr, OffsetDateTime)> {
        let limit = self.inputs.allocated_before;
        self.held().filter_map(move |(_, held)| {
            let at = allocation_time(&held)?;
            (at >= limit?).then_some((held.ip, at))
        })
    }

    pub(super) fn leaving(&self) -> Vec<AddressToRelease> {
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

    pub(super) fn plan(&self, now: OffsetDateTime) -> Result<ReleasePlan> {
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

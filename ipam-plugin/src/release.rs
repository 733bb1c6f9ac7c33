//! [`release`]: gives back everything that handles hold (IPAM-147).

mod absent;
mod listings;
mod turn;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use libcalico::ipam::{Block, BlockAffinity, Handle, HandleId, IpamConfig, Owner, TheConfig};
use libcalico::net::Cidr;
use libcalico::store::{Answers, Entry, GetTicket, Kind, ReadBatch, Revision, Store, StoreError, Write, WriteOp};
use time::OffsetDateTime;

use crate::affinity::release_if_deselected;
use crate::budget::{Budget, OPERATION};
use crate::clock::Clock;
use crate::error::IpamError;
use crate::handle_count;

pub use self::listings::{Leaving, Listings, NoListings, leaving_of, still_held};
pub use self::turn::Turn;

/// The handles of a container, as read.
#[derive(Debug, Clone)]
pub struct ReleasePrelude {
    cooldown_seconds: i64,
    handles: Vec<Entry<Handle>>,
    /// Who may have been about to create a block for them.
    owner: Option<Owner>,
    unless_owned: bool,
}

/// Where the answers will be.
#[derive(Debug)]
pub struct ReleaseTickets {
    config: GetTicket<IpamConfig>,
    handles: Vec<GetTicket<Handle>>,
}

impl ReleasePrelude {
    /// Adds the questions to a batch that may hold others.
    pub fn ask(batch: &mut ReadBatch, handles: &[HandleId]) -> ReleaseTickets {
        let distinct: BTreeSet<&HandleId> = handles.iter().collect();
        ReleaseTickets {
            config: batch.get(&TheConfig),
            handles: distinct.into_iter().map(|id| batch.get(id)).collect(),
        }
    }

    /// Takes the answers out of what came back for the batch.
    pub fn from_answers(answers: &Answers, tickets: &ReleaseTickets) -> Result<Self, StoreError> {
        let config = answers.get(&tickets.config)?.map_or_else(IpamConfig::absent, |entry| entry.value);
        let found: Result<Vec<_>, _> = tickets.handles.iter().map(|ticket| answers.get(ticket)).collect();
        Ok(ReleasePrelude {
            cooldown_seconds: config.ip_cooldown_seconds,
            handles: found?.into_iter().flatten().collect(),
            owner: None,
            unless_owned: false,
        })
    }

    /// Reads the prelude alone.
    pub async fn read<S: Store>(store: &S, handles: &[HandleId]) -> Result<Self, StoreError> {
        let mut batch = ReadBatch::new();
        let tickets = ReleasePrelude::ask(&mut batch, handles);
        ReleasePrelude::from_answers(&store.read(&batch).await?, &tickets)
    }

    /// The same with these handles, as they are now.
    pub async fn with_handles<S: Store>(self, store: &S, handles: &[HandleId]) -> Result<Self, StoreError> {
        let mut batch = ReadBatch::new();
        let tickets: Vec<_> = handles.iter().map(|id| batch.get(id)).collect();
        let answers = store.read(&batch).await?;
        let found: Result<Vec<_>, _> = tickets.iter().map(|ticket| answers.get(ticket)).collect();
        Ok(ReleasePrelude { handles: found?.into_iter().flatten().collect(), ..self })
    }

    /// The same, of containers that ran on `node`: a block that one of them was about to create there, when it was
    /// killed, takes no address for it any more.
    #[must_use]
    pub fn on_node(mut self, node: &str) -> Self {
        self.owner = Some(Owner::Host(node.to_owned()));
        self
    }

    /// The same, to be given back only as long as no pod is noted as the owner of an address (IPAM-55).
    #[must_use]
    pub(crate) fn unless_owned(mut self) -> Self {
        self.unless_owned = true;
        self
    }

    /// Takes out what was found of a handle.
    pub fn take(&mut self, id: &HandleId) -> Option<Entry<Handle>> {
        let index = self.handles.iter().position(|handle| handle.key == *id)?;
        Some(self.handles.remove(index))
    }

    /// Nothing is held.
    pub fn is_empty(&self) -> bool {
        self.handles.is_empty()
    }
}

/// What a release did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReleasedHandles {
    /// How many addresses were given back.
    pub addresses: usize,
    /// Those of them that blocks name as the handles', for the log.
    pub ips: Vec<IpAddr>,
    /// Blocks that were left alone because they cannot be read: what is held in them is still held, and counted.
    pub unreadable: Vec<Cidr>,
    /// A pod is noted as an owner, and nothing more was given back: the release was to leave such addresses alone.
    pub is_owned: bool,
    /// What the last block that was written got.
    pub last_write: Option<Revision>,
}

/// Gives back everything that the handles hold, and deletes them. Nothing held is success.
///
/// Blocks are written first, handles second (IPAM-128). A handle whose addresses are gone already, which upstream
/// leaves for ever, goes too (D6).
pub async fn release<S: Store, C: Clock>(
    store: &S,
    clock: &C,
    prelude: ReleasePrelude,
) -> Result<ReleasedHandles, IpamError> {
    release_unlisted(store, clock, prelude, &NoListings, &mut Turn::default()).await
}

/// [`release`] after `listings` gave the addresses up, in its `turn` among the processes of the node. Endpoints are
/// asked when the blocks were read, so that a caller can have them written meanwhile.
pub async fn release_unlisted<S: Store, C: Clock, L: Listings>(
    store: &S,
    clock: &C,
    prelude: ReleasePrelude,
    listings: &L,
    turn: &mut Turn<'_>,
) -> Result<ReleasedHandles, IpamError> {
    let ids: Vec<HandleId> = prelude.handles.iter().map(|handle| handle.key.clone()).collect();
    let mut budget = Budget::new(clock, OPERATION);
    let mut prelude = prelude;
    let mut released = ReleasedHandles::default();
    while !prelude.is_empty() {
        let state = State::read(store, prelude).await?;
        // Somebody may have become one since the caller looked.
        if state.is_owned() {
            released.is_owned = true;
            break;
        }
        let leaving = state.leaving();
        listings.unlist(&leaving).await?;
        if turn.take() {
            prelude = state.prelude;
            continue;
        }
        let plan = state.plan(clock.now())?;
        tracing::debug!(
            writes = plan.writes.len(),
            addresses = plan.addresses,
            "writing blocks and handles without the addresses"
        );
        match store.write(&plan.writes).await {
            Ok(revisions) => {
                released.last_write = plan.last_update().and_then(|last| revisions.get(last).cloned());
                released.addresses += plan.addresses;
                released.ips = leaving.into_iter().map(|address| address.ip).collect();
                released.unreadable = plan.unreadable;
                release_if_deselected(store, &plan.emptied).await;
                break;
            }
            // Whatever took effect is seen in the next read.
            Err(error) if error.cause.is_race() || error.cause.has_unknown_outcome() => {
                if !budget.pause().await {
                    return Err(IpamError::Contention);
                }
                prelude = state.prelude.with_handles(store, &ids).await?;
            }
            Err(error) => return Err(error.cause.into()),
        }
    }
    Ok(released)
}

/// Handles, and the blocks they name.
struct State {
    prelude: ReleasePrelude,
    /// `None` for a block that cannot be read.
    blocks: BTreeMap<Cidr, Option<Entry<Block>>>,
    /// Claims to those that are not there.
    absent: Vec<Entry<BlockAffinity>>,
}

struct Plan {
    writes: Vec<Write>,
    addresses: usize,
    unreadable: Vec<Cidr>,
    /// Blocks without addresses, with their owners.
    emptied: Vec<(Cidr, Owner)>,
}

impl Plan {
    /// The last write that leaves a block behind.
    fn last_update(&self) -> Option<usize> {
        let leaves_block = |write: &Write| write.kind == Block::KIND && matches!(write.op, WriteOp::Update(..));
        self.writes.iter().rposition(leaves_block)
    }
}

impl State {
    async fn read<S: Store>(store: &S, prelude: ReleasePrelude) -> Result<State, StoreError> {
        let named: BTreeSet<Cidr> =
            prelude.handles.iter().flat_map(|handle| handle.value.block.keys()).copied().collect();
        let mut batch = ReadBatch::new();
        let tickets: Vec<_> = named.into_iter().map(|cidr| (cidr, batch.get::<Block>(&cidr))).collect();
        let answers = store.read(&batch).await?;
        let (mut blocks, mut absent) = (BTreeMap::new(), Vec::new());
        for (cidr, ticket) in tickets {
            match answers.get(&ticket) {
                Ok(Some(entry)) => _ = blocks.insert(cidr, Some(entry)),
                Ok(None) => absent.push(cidr),
                Err(StoreError::Corrupt { .. }) => _ = blocks.insert(cidr, None),
                Err(error) => return Err(error),
            }
        }
        let absent = absent::claims(store, prelude.owner.as_ref(), &absent).await?;
        Ok(State { prelude, blocks, absent })
    }

    /// An address has an owner that must not lose it.
    fn is_owned(&self) -> bool {
        let mut blocks = self.blocks.values().flatten();
        self.prelude.unless_owned
            && blocks.any(|block| self.prelude.handles.iter().any(|handle| block.value.has_owner(&handle.key)))
    }

    /// What the handles hold in blocks that can be read.
    fn leaving(&self) -> Vec<Leaving> {
        let is_held = |handle: Option<HandleId>| {
            handle.is_some_and(|handle| self.prelude.handles.iter().any(|entry| entry.key == handle))
        };
        let blocks = self.blocks.values().flatten();
        let allocated = blocks.flat_map(|block| block.value.allocated().map(|held| (block.key, held)));
        let held = allocated.filter(|(_, held)| !held.is_cooling() && is_held(held.handle()));
        held.map(|(block, held)| Leaving::of(block, &held)).collect()
    }

    fn plan(&self, now: OffsetDateTime) -> Result<Plan, IpamError> {
        let mut plan = Plan { writes: Vec::new(), addresses: 0, unreadable: Vec::new(), emptied: Vec::new() };
        for claim in &self.absent {
            plan.writes.extend(absent::writes(claim, now)?);
        }
        for (cidr, block) in &self.blocks {
            // A block without addresses of the handle is written too: whoever counted the handle up and is about to
            // take one there, as upstream does it, must lose that race, not the handle (IPAM-128).
            match block.as_ref().map(|entry| self.release_from(entry, now)) {
                None => plan.unreadable.push(*cidr),
                Some((block, n)) => {
                    plan.addresses += n;
                    if let Some(owner) = block.value.owner().filter(|_| n > 0 && block.value.is_empty()) {
                        plan.emptied.push((*cidr, owner));
                    }
                    plan.writes.push(write_released(&block)?);
                }
            }
        }
        for handle in &self.prelude.handles {
            let mut left = handle.clone();
            left.value.block.retain(|cidr, _| plan.unreadable.contains(cidr));
            plan.writes.push(handle_count::write(&left)?);
        }
        Ok(plan)
    }

    /// The block without the handles' addresses, and how many those are.
    fn release_from(&self, entry: &Entry<Block>, now: OffsetDateTime) -> (Entry<Block>, usize) {
        let cooldown = self.prelude.cooldown_seconds;
        let mut entry = entry.clone();
        let (block, mut handles) = (&mut entry.value, self.prelude.handles.iter().map(|handle| &handle.key));
        let outcome = block.collect_garbage(cooldown, now).and_then(|_| {
            handles.try_fold(0, |sum, handle| Ok(sum + block.release_by_handle(handle, None, cooldown, now)?))
        });
        let released = outcome.unwrap_or_else(|problem| {
            tracing::error!(%problem, "releasing what the handle holds; `calico-ipam check` tells how to repair the block");
            let handles = self.prelude.handles.iter();
            handles.map(|handle| entry.value.release_from_corrupt(&handle.key, cooldown, now)).sum()
        });
        (entry, released)
    }
}

/// The write that stores a block after a release: an update, or if it is empty and nobody's its deletion.
pub(crate) fn write_released(block: &Entry<Block>) -> Result<Write, StoreError> {
    if block.value.is_empty() && block.value.owner().is_none() {
        return Ok(Write::delete::<Block>(&block.key, Some(&block.revision)));
    }
    let mut counted = block.value.clone();
    counted.count_write();
    Write::update::<Block>(&block.key, &counted, &block.revision)
}

#[cfg(test)]
mod tests;

//! [`Prelude`]: everything an allocation needs before it looks at blocks, asked for in one batch (IPAM-209).

use std::collections::BTreeMap;

use libcalico::api::{IpPool, IpReservation, Node, ObjectKey, ObjectSelect};
use libcalico::ipam::{AffinitySelect, Block, BlockAffinity, Handle, HandleId, IpamConfig, Owner, TheConfig};
use libcalico::net::Cidr;
use libcalico::store::{Answers, Entry, GetTicket, ListTicket, ReadBatch, Revision, Store, StoreError};

/// A block as it was found, nothing if it was not there.
pub type ReadBlock = Result<Option<Entry<Block>>, StoreError>;

/// Addresses per block.
pub type Counts = BTreeMap<Cidr, usize>;

/// What to ask for.
#[derive(Debug, Clone)]
pub struct PreludeQuery {
    /// The node that asks.
    pub node: String,
    /// Who owns blocks claimed for the request.
    pub owner: Owner,
    /// What will hold the addresses.
    pub handle: HandleId,
    /// Whether the handle is read too. It is hardly ever there, and whoever creates it finds out (IPAM-211).
    pub reads_handle: bool,
    /// Whether this is a first look, which a cache may answer as far as nothing wrong can come of it.
    pub may_lag: bool,
    /// Blocks to read at once, because the address will likely come from them ([`crate::ahead`]).
    pub blocks: Vec<Cidr>,
    /// A revision that a block got: a cache that has seen it may answer for the blocks.
    pub blocks_since: Option<Revision>,
}

impl PreludeQuery {
    /// The query of a workload on `node`.
    pub fn workload(node: impl Into<String>, handle: HandleId) -> Self {
        let node = node.into();
        let owner = Owner::Host(node.clone());
        let (blocks, blocks_since) = (Vec::new(), None);
        PreludeQuery { owner, node, handle, reads_handle: true, may_lag: false, blocks, blocks_since }
    }

    /// A first look: without the handle where reading it costs a request of its own, and from caches.
    pub fn sparing<S: Store>(self, store: &S) -> Self {
        let has_caches = !store.has_transactions();
        PreludeQuery { reads_handle: self.reads_handle && !has_caches, may_lag: has_caches, ..self }
    }
}

/// Where the answers will be.
#[derive(Debug)]
pub struct PreludeTickets {
    config: GetTicket<IpamConfig>,
    reservations: ListTicket<IpReservation>,
    node: GetTicket<Node>,
    pools: ListTicket<IpPool>,
    affinities: ListTicket<BlockAffinity>,
    handle: Option<GetTicket<Handle>>,
    blocks: Vec<(Cidr, GetTicket<Block>)>,
    blocks_lag: bool,
    claims_lag: bool,
}

/// What is known of the handle.
#[derive(Debug, Clone, PartialEq)]
pub enum HandleState {
    /// Nothing yet.
    Unread,
    /// It is not there.
    Absent,
    /// It is there: after a crash, or when the container has an address already (IPAM-22).
    There(Entry<Handle>),
}

impl From<Option<Entry<Handle>>> for HandleState {
    fn from(found: Option<Entry<Handle>>) -> Self {
        found.map_or(HandleState::Absent, HandleState::There)
    }
}

/// The answers.
#[derive(Debug, Clone)]
pub struct Prelude {
    /// Cluster-wide settings; what no record means when there is none (IPAM-77).
    pub config: IpamConfig,
    /// Their revision, if there is a record.
    pub config_revision: Option<Revision>,
    /// Ranges that automatic assignment leaves alone.
    pub reservations: Vec<Entry<IpReservation>>,
    /// The node, if it exists.
    pub node: Option<Entry<Node>>,
    /// Every pool, by name (IPAM-94).
    pub pools: Vec<Entry<IpPool>>,
    /// The owner's claims to blocks of both families, by key (IPAM-112).
    pub affinities: Vec<Entry<BlockAffinity>>,
    /// The handle.
    pub handle: HandleState,
    /// Blocks that were read along.
    pub blocks: Vec<(Cidr, ReadBlock)>,
    /// Whether these may be of a moment ago.
    pub blocks_lag: bool,
    /// Whether the claims may be, so that they are good for finding blocks and not for counting them.
    pub claims_lag: bool,
    /// What the handle counts already of addresses that are yet to be taken.
    pub expected: Counts,
    /// Whether the answers took so long that some of them may be out of date.
    pub is_old: bool,
}

impl Prelude {
    /// Adds the questions to a batch that may hold others.
    pub fn ask(batch: &mut ReadBatch, query: &PreludeQuery) -> PreludeTickets {
        // A claim that is gone or younger than the answer shows before anything is given away: the block names its
        // owner, and each write compares revisions (IPAM-210). How many there are no write would find out: close to the
        // limit they are read as they are now (`plan/claim.rs`).
        let own = AffinitySelect::of(query.owner.clone());
        let affinities = if query.may_lag { batch.list_lagging(&own) } else { batch.list(&own) };
        // So may blocks be old: a write finds out what they do not show. What no write would find out is looked at
        // again, the room that an old one lacks and its owner (`plan.rs`).
        let block = |cidr: &Cidr, batch: &mut ReadBatch| match &query.blocks_since {
            Some(revision) => batch.get_since(cidr, revision),
            None => batch.get(cidr),
        };
        // All else is read as it is now. A pool goes out of service, a range is reserved (IPAM-221); and whoever labels
        // a node and then gives it a pod expects the label to count.
        PreludeTickets {
            config: batch.get(&TheConfig),
            node: batch.get(&ObjectKey::global(&query.node)),
            reservations: batch.list(&ObjectSelect::default()),
            pools: batch.list(&ObjectSelect::default()),
            handle: query.reads_handle.then(|| batch.get(&query.handle)),
            blocks: query.blocks.iter().map(|cidr| (*cidr, block(cidr, batch))).collect(),
            blocks_lag: query.blocks_since.is_some(),
            claims_lag: query.may_lag,
            affinities,
        }
    }

    /// Takes the answers out of what came back for the batch.
    pub fn from_answers(answers: &Answers, tickets: &PreludeTickets) -> Result<Self, StoreError> {
        let config = answers.get(&tickets.config)?;
        Ok(Prelude {
            config_revision: config.as_ref().map(|entry| entry.revision.clone()),
            config: config.map_or_else(IpamConfig::absent, |entry| entry.value),
            reservations: answers.list(&tickets.reservations),
            node: answers.get(&tickets.node)?,
            pools: answers.list(&tickets.pools),
            affinities: answers.list(&tickets.affinities),
            handle: match &tickets.handle {
                None => HandleState::Unread,
                Some(ticket) => answers.get(ticket)?.into(),
            },
            blocks: tickets.blocks.iter().map(|(cidr, ticket)| (*cidr, answers.get(ticket))).collect(),
            blocks_lag: tickets.blocks_lag,
            claims_lag: tickets.claims_lag,
            expected: Counts::new(),
            is_old: false,
        })
    }

    /// Reads the prelude alone, [sparing](PreludeQuery::sparing) the handle.
    pub async fn read<S: Store>(store: &S, query: &PreludeQuery) -> Result<Self, StoreError> {
        let mut batch = ReadBatch::new();
        let tickets = Prelude::ask(&mut batch, &query.clone().sparing(store));
        Prelude::from_answers(&store.read(&batch).await?, &tickets)
    }
}

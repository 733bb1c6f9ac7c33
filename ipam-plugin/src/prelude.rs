//! [`Prelude`]: everything an allocation needs before it looks at blocks, asked for in one batch (IPAM-209).

use libcalico::api::{IpPool, IpReservation, Node, ObjectKey, ObjectSelect};
use libcalico::ipam::{AffinitySelect, BlockAffinity, Handle, HandleId, IpamConfig, Owner, TheConfig};
use libcalico::store::{Answers, Entry, GetTicket, ListTicket, ReadBatch, Store, StoreError};

/// What to ask for.
#[derive(Debug, Clone)]
pub struct PreludeQuery {
    /// The node that asks.
    pub node: String,
    /// Who owns blocks claimed for the request.
    pub owner: Owner,
    /// What will hold the addresses.
    pub handle: HandleId,
}

impl PreludeQuery {
    /// The query of a workload on `node`.
    pub fn workload(node: impl Into<String>, handle: HandleId) -> Self {
        let node = node.into();
        PreludeQuery { owner: Owner::Host(node.clone()), node, handle }
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
    handle: GetTicket<Handle>,
}

/// The answers.
#[derive(Debug, Clone)]
pub struct Prelude {
    /// Cluster-wide settings; what no record means when there is none (IPAM-77).
    pub config: IpamConfig,
    /// Ranges that automatic assignment leaves alone.
    pub reservations: Vec<Entry<IpReservation>>,
    /// The node, if it exists.
    pub node: Option<Entry<Node>>,
    /// Every pool, by name (IPAM-94).
    pub pools: Vec<Entry<IpPool>>,
    /// The owner's claims to blocks of both families, by key (IPAM-112).
    pub affinities: Vec<Entry<BlockAffinity>>,
    /// The handle, if it exists: after a crash, or when the container has an address already (IPAM-22).
    pub handle: Option<Entry<Handle>>,
}

impl Prelude {
    /// Adds the questions to a batch that may hold others.
    pub fn ask(batch: &mut ReadBatch, query: &PreludeQuery) -> PreludeTickets {
        PreludeTickets {
            config: batch.get(&TheConfig),
            reservations: batch.list(&ObjectSelect::default()),
            node: batch.get(&ObjectKey::global(&query.node)),
            pools: batch.list(&ObjectSelect::default()),
            affinities: batch.list(&AffinitySelect { owner: Some(query.owner.clone()), version: None }),
            handle: batch.get(&query.handle),
        }
    }

    /// Takes the answers out of what came back for the batch.
    pub fn from_answers(answers: &Answers, tickets: &PreludeTickets) -> Result<Self, StoreError> {
        Ok(Prelude {
            config: answers.get(&tickets.config)?.map_or_else(IpamConfig::absent, |entry| entry.value),
            reservations: answers.list(&tickets.reservations),
            node: answers.get(&tickets.node)?,
            pools: answers.list(&tickets.pools),
            affinities: answers.list(&tickets.affinities),
            handle: answers.get(&tickets.handle)?,
        })
    }

    /// Reads the prelude alone.
    pub async fn read<S: Store>(store: &S, query: &PreludeQuery) -> Result<Self, StoreError> {
        let mut batch = ReadBatch::new();
        let tickets = Prelude::ask(&mut batch, query);
        Prelude::from_answers(&store.read(&batch).await?, &tickets)
    }
}

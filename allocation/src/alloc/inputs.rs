//! [`AllocationInputs`]: the objects that an allocation needs before it reads blocks, requested in
//! one batch.

use std::collections::BTreeMap;
use std::time::Duration;

use libcalico::api::{IpPool, IpReservation, Node, ObjectKey, ObjectSelect};
use libcalico::ipam::{
    AffinityOwner, AffinitySelect, Block, BlockAffinity, Handle, HandleId, IpamConfig,
    IpamConfigKey,
};
use libcalico::net::Cidr;
use libcalico::store::{
    Answers, Entry, GetTicket, ListTicket, ReadBatch, Revision, Store, StoreError, WriteModel,
};

/// Longest time after which the inputs are still used. Calico's client disables a pool 500 ms
/// before it deletes it, and no process may still use the pool by then (IPAM-100).
pub const LONGEST_VALIDITY: Duration = Duration::from_millis(100);

/// The answer to the read of a block: `Ok(None)` if the block is missing.
pub type ReadBlock = Result<Option<Entry<Block>>, StoreError>;

/// Number of addresses per block.
pub type BlockCounts = BTreeMap<Cidr, usize>;

/// The parameters of the reads of [`AllocationInputs`].
#[derive(Debug, Clone)]
pub struct InputsQuery {
    /// The node that requests addresses.
    pub node: String,
    /// The owner of blocks that are claimed for the request.
    pub owner: AffinityOwner,
    /// The handle of the addresses.
    pub handle: HandleId,
    /// Whether to read the handle too. A blind create detects an existing handle without this read.
    pub reads_handle: bool,
    /// True if caches may answer reads whose stale result is detected later.
    pub may_lag: bool,
    /// Blocks to read in the same batch ([`crate::alloc::prefetch`]).
    pub blocks: Vec<Cidr>,
    /// A cache that contains this revision may answer for the blocks. With `None`, no cache may.
    pub blocks_since: Option<Revision>,
}

impl InputsQuery {
    /// Creates the query for a workload on `node`.
    pub fn workload(node: impl Into<String>, handle: HandleId) -> Self {
        let node = node.into();
        let owner = AffinityOwner::Host(node.clone());
        let (blocks, blocks_since) = (Vec::new(), None);
        InputsQuery {
            owner,
            node,
            handle,
            reads_handle: true,
            may_lag: false,
            blocks,
            blocks_since,
        }
    }

    /// Returns the query for a first read. If the store sends each read as a separate request,
    /// caches may answer and the handle is not read.
    pub fn for_first_read<S: Store>(self, store: &S) -> Self {
        let has_caches = match store.write_model() {
            WriteModel::Transactional => false,
            WriteModel::PerObject => true,
        };
        InputsQuery {
            reads_handle: self.reads_handle && !has_caches,
            may_lag: has_caches,
            ..self
        }
    }
}

/// Positions of the results in the batch's answers.
#[derive(Debug)]
pub struct PendingInputs {
    config: GetTicket<IpamConfig>,
    reservations: ListTicket<IpReservation>,
    node: GetTicket<Node>,
    pools: ListTicket<IpPool>,
    affinities: ListTicket<BlockAffinity>,
    handle: Option<GetTicket<Handle>>,
    blocks: Vec<(Cidr, GetTicket<Block>)>,
    blocks_may_lag: bool,
    affinities_may_lag: bool,
}

/// The handle of an allocation, as read.
#[derive(Debug, Clone, PartialEq)]
pub enum StoredHandle {
    /// Not read yet.
    Unread,
    /// Read and missing.
    Absent,
    /// Created by this operation, or earlier, for example for another address of the same container
    /// (IPAM-22).
    Existing(Entry<Handle>),
}

impl From<Option<Entry<Handle>>> for StoredHandle {
    fn from(found: Option<Entry<Handle>>) -> Self {
        found.map_or(StoredHandle::Absent, StoredHandle::Existing)
    }
}

/// The objects that an allocation reads first.
#[derive(Debug, Clone)]
pub struct AllocationInputs {
    /// The cluster-wide settings, or their defaults if the object is missing (IPAM-77).
    pub config: IpamConfig,
    /// The revision of the settings, if the object exists.
    pub config_revision: Option<Revision>,
    /// Ranges from which automatic assignment takes no address.
    pub reservations: Vec<Entry<IpReservation>>,
    /// The node, if it exists.
    pub node: Option<Entry<Node>>,
    /// All pools, ordered by name (IPAM-94).
    pub pools: Vec<Entry<IpPool>>,
    /// The owner's affinities of both families, in the textual order of their paths (IPAM-112).
    pub affinities: Vec<Entry<BlockAffinity>>,
    /// The handle.
    pub handle: StoredHandle,
    /// Blocks read in the same batch, each with its range.
    pub blocks: Vec<(Cidr, ReadBlock)>,
    /// True if the blocks may be stale.
    pub blocks_may_lag: bool,
    /// True if the affinities may be stale. Stale affinities suffice to find blocks, but not to
    /// count them.
    pub affinities_may_lag: bool,
    /// Addresses that the handle already counts and that this operation has not taken yet.
    pub reserved: BlockCounts,
    /// True if the reads took so long that some objects may be out of date.
    pub is_old: bool,
}

impl AllocationInputs {
    /// Adds the reads to a batch.
    pub fn add_to(batch: &mut ReadBatch, query: &InputsQuery) -> PendingInputs {
        // Stale affinities suffice to find blocks, but not to count them. Close to the node's limit
        // of blocks, the affinities are therefore read again without a cache
        // (`planner/new_block.rs`).
        let own = AffinitySelect::of(query.owner.clone());
        let affinities = if query.may_lag {
            batch.list_lagging(&own)
        } else {
            batch.list(&own)
        };
        // The write detects a stale block. It does not detect a block that looks full or looks like
        // another owner's, so such blocks are read again (`planner`).
        let block = |cidr: &Cidr, batch: &mut ReadBatch| match &query.blocks_since {
            Some(revision) => batch.get_since(cidr, revision),
            None => batch.get(cidr),
        };
        // All other objects are read without a cache. A pool may be disabled or a range reserved
        // meanwhile (IPAM-221), and an operator who labels a node and then creates a pod expects
        // the label to apply.
        PendingInputs {
            config: batch.get(&IpamConfigKey),
            node: batch.get(&ObjectKey::global(&query.node)),
            reservations: batch.list(&ObjectSelect::default()),
            pools: batch.list(&ObjectSelect::default()),
            handle: query.reads_handle.then(|| batch.get(&query.handle)),
            blocks: query
                .blocks
                .iter()
                .map(|cidr| (*cidr, block(cidr, batch)))
                .collect(),
            blocks_may_lag: query.blocks_since.is_some(),
            affinities_may_lag: query.may_lag,
            affinities,
        }
    }

    /// Extracts the objects from the answers to the batch.
    pub fn from_answers(answers: &Answers, tickets: &PendingInputs) -> Result<Self, StoreError> {
        let config = answers.get(&tickets.config)?;
        Ok(AllocationInputs {
            config_revision: config.as_ref().map(|entry| entry.revision.clone()),
            config: config.map_or_else(IpamConfig::absent, |entry| entry.value),
            reservations: answers.list(&tickets.reservations),
            node: answers.get(&tickets.node)?,
            pools: answers.list(&tickets.pools),
            affinities: answers.list(&tickets.affinities),
            handle: match &tickets.handle {
                None => StoredHandle::Unread,
                Some(ticket) => answers.get(ticket)?.into(),
            },
            blocks: tickets
                .blocks
                .iter()
                .map(|(cidr, ticket)| (*cidr, answers.get(ticket)))
                .collect(),
            blocks_may_lag: tickets.blocks_may_lag,
            affinities_may_lag: tickets.affinities_may_lag,
            reserved: BlockCounts::new(),
            is_old: false,
        })
    }

    /// Reads the inputs in a batch of its own, as a [first read](InputsQuery::for_first_read).
    pub async fn read<S: Store>(store: &S, query: &InputsQuery) -> Result<Self, StoreError> {
        let mut batch = ReadBatch::new();
        let tickets = AllocationInputs::add_to(&mut batch, &query.clone().for_first_read(store));
        AllocationInputs::from_answers(&store.read(&batch).await?, &tickets)
    }
}

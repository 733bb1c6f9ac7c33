//! A small cluster in memory, and the checks of its invariants.

use std::collections::BTreeMap;
use std::net::IpAddr;

use libcalico::api::{
    ClusterInformation, ClusterInformationSpec, IpPool, IpPoolSpec, IpReservation,
    IpReservationSpec, Node, NodeSpec, ObjectKey,
};
use libcalico::ipam::{
    AffinityKey, AffinityOwner, AffinitySelect, AffinityState, Block, BlockAffinity, BlockRequest,
    Handle, HandleId, IpamConfig, IpamConfigKey, Reservations,
};
use libcalico::net::Cidr;

use super::{MemoryStore, Pairs, TestClock};
use crate::alloc::inputs::AllocationInputs;
use crate::alloc::request::{AssignRequest, workload_attributes};
use crate::alloc::{Assigned, assign};
use crate::error::IpamError;
use crate::release::{ReleaseInputs, ReleasedHandles, release};

/// A cluster with the nodes `node1` to `node4` and no pool.
#[derive(Debug)]
pub struct Cluster {
    /// The datastore.
    pub store: MemoryStore,
    /// The clock of all calls.
    pub clock: TestClock,
}

impl Default for Cluster {
    /// Creates the cluster on a store with transactions.
    fn default() -> Self {
        Self::on(MemoryStore::transactional())
    }
}

impl Cluster {
    /// Creates the cluster on a store with transactions.
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates the cluster on `store`.
    pub fn on(store: MemoryStore) -> Self {
        let spec = ClusterInformationSpec {
            datastore_ready: Some(true),
            ..ClusterInformationSpec::default()
        };
        store.put(
            &ObjectKey::global("default"),
            &ClusterInformation::new("default", spec),
        );
        let cluster = Cluster {
            store,
            clock: TestClock::default(),
        };
        for name in ["node1", "node2", "node3", "node4"] {
            cluster.node(name, &[]);
        }
        cluster
    }

    /// Creates or replaces a node with labels.
    pub fn node(&self, name: &str, labels: &[(&str, &str)]) {
        let mut node = Node::new(name, NodeSpec::default());
        node.metadata.labels = labels
            .iter()
            .map(|(key, value)| (key.to_string(), value.to_string()))
            .collect();
        self.store.put(&node.key(), &node);
    }

    /// Creates or replaces a pool, after `change` of its other fields.
    pub fn pool_with(
        &self,
        name: &str,
        cidr: &str,
        block_size: u8,
        change: impl FnOnce(&mut IpPoolSpec),
    ) {
        let mut spec = IpPoolSpec {
            cidr: cidr.into(),
            block_size: Some(block_size),
            ..IpPoolSpec::default()
        };
        change(&mut spec);
        let pool = IpPool::new(name, spec);
        self.store.put(&pool.key(), &pool);
    }

    /// Creates or replaces a pool.
    pub fn pool(&self, name: &str, cidr: &str, block_size: u8) {
        self.pool_with(name, cidr, block_size, |_| {});
    }

    /// Reserves ranges, in place of those reserved before.
    pub fn reserve(&self, cidrs: &[&str]) {
        let spec = IpReservationSpec {
            reserved_cidrs: cidrs.iter().map(|cidr| cidr.to_string()).collect(),
            ..IpReservationSpec::default()
        };
        let reservation = IpReservation::new("reserved", spec);
        self.store.put(&reservation.key(), &reservation);
    }

    /// Stores a configuration of IPAM, after `change` of the defaults.
    pub fn configure(&self, change: impl FnOnce(&mut IpamConfig)) {
        let mut config = IpamConfig::absent();
        change(&mut config);
        self.store.put(&IpamConfigKey, &config);
    }

    /// Returns the request of an ADD on a node.
    pub fn request(&self, node: &str, handle: &str) -> AssignRequest {
        use os::clock::Clock;
        let mut request = AssignRequest::workload(HandleId::new(handle), node);
        request.attributes = workload_attributes(node, None, self.clock.now());
        request
    }

    /// Reads the inputs of a request.
    pub async fn inputs(&self, request: &AssignRequest) -> Result<AllocationInputs, IpamError> {
        Ok(AllocationInputs::read(&self.store, &request.inputs_query()).await?)
    }

    /// Serves a request.
    pub async fn assign(&self, request: &AssignRequest) -> Result<Assigned, IpamError> {
        let inputs = self.inputs(request).await?;
        assign(&self.store, &self.clock, request, inputs).await
    }

    /// Assigns one address to a handle, or returns the reason why this is impossible.
    pub async fn one(&self, node: &str, handle: &str) -> Result<IpAddr, IpamError> {
        let mut request = self.request(node, handle);
        request.all_or_nothing = true;
        let assigned = self.assign(&request).await?;
        match assigned.shortfalls.into_iter().next() {
            Some(shortfall) => Err(shortfall.into()),
            None => Ok(assigned.addresses[0].ip),
        }
    }

    /// Releases a handle as a DEL on `node1` does.
    pub async fn release(&self, handle: &str) -> Result<ReleasedHandles, IpamError> {
        let inputs = ReleaseInputs::read(&self.store, &[HandleId::new(handle)]).await?;
        release(&self.store, &self.clock, inputs.on_node("node1")).await
    }

    /// Returns a block, by its range.
    pub fn block(&self, cidr: &str) -> Option<Block> {
        self.store.pairs().get::<Block>(&self::cidr(cidr))
    }

    /// Returns a handle, by its ID.
    pub fn handle(&self, id: &str) -> Option<Handle> {
        self.store.pairs().get::<Handle>(&HandleId::new(id))
    }

    /// Returns the state of a node's affinity to a block, by its range.
    pub fn affinity(&self, node: &str, cidr: &str) -> Option<AffinityState> {
        self.store
            .pairs()
            .get::<BlockAffinity>(&affinity_key(node, cidr))
            .map(|affinity| affinity.state)
    }
}

/// Parses a range.
pub fn cidr(text: &str) -> Cidr {
    text.parse().unwrap()
}

/// Returns the key of a node's affinity to a block, by its range.
pub fn affinity_key(node: &str, block: &str) -> AffinityKey {
    AffinityKey {
        owner: AffinityOwner::Host(node.into()),
        cidr: cidr(block),
    }
}

/// Assigns one address of `block` in memory. Returns false if no address is free.
pub fn take_one(block: &mut Block, node: &str, handle: &HandleId) -> bool {
    let (attributes, owner) = (
        [("node".to_owned(), node.to_owned())].into(),
        AffinityOwner::Host(node.to_owned()),
    );
    let request = BlockRequest {
        handle: Some(handle),
        attributes: &attributes,
        requester: &owner,
        check_affinity: false,
    };
    let is_taken = !block
        .assign(1, &request, &Reservations::none())
        .unwrap()
        .is_empty();
    if is_taken {
        block.count_write();
    }
    is_taken
}

/// Returns the allocated addresses in the blocks, by handle. Panics if a block is inconsistent.
pub fn held(pairs: &Pairs) -> BTreeMap<HandleId, Vec<IpAddr>> {
    let mut held = BTreeMap::<HandleId, Vec<IpAddr>>::new();
    for (cidr, block) in pairs.list::<Block>(&None) {
        block
            .verify()
            .unwrap_or_else(|problem| panic!("{cidr}: {problem}"));
        for allocation in block
            .allocated()
            .filter(|allocation| !allocation.is_cooling())
        {
            held.entry(allocation.handle().expect("every address has a handle"))
                .or_default()
                .push(allocation.ip);
        }
    }
    held
}

/// Asserts that handles count at least the addresses in blocks. With `exact`, they count exactly
/// these, each owned block has a confirmed affinity, and each affinity has its block.
pub fn assert_consistent(pairs: &Pairs, exact: bool) {
    let held = held(pairs);
    let handles: BTreeMap<HandleId, Handle> = pairs.list::<Handle>(&()).into_iter().collect();
    for (id, addresses) in &held {
        let handle = handles
            .get(id)
            .unwrap_or_else(|| panic!("{id} holds {addresses:?} without a handle"));
        for (cidr, block) in pairs.list::<Block>(&None) {
            let truth = block.addresses_of(id).len() as i64;
            let counted = handle.block.get(&cidr).copied().unwrap_or_default();
            assert!(
                counted >= truth,
                "{id} counts {counted} in {cidr}, which holds {truth}"
            );
            assert!(
                !exact || counted == truth,
                "{id} counts {counted} in {cidr}, which holds {truth}"
            );
        }
    }
    if !exact {
        return;
    }
    for id in handles.keys() {
        assert!(held.contains_key(id), "handle {id} holds nothing");
    }
    let owned: BTreeMap<Cidr, Option<AffinityOwner>> = pairs
        .list::<Block>(&None)
        .into_iter()
        .map(|(cidr, block)| (cidr, block.owner()))
        .collect();
    let claims = pairs.list::<BlockAffinity>(&AffinitySelect::default());
    for (key, affinity) in &claims {
        assert_eq!(affinity.state, AffinityState::Confirmed, "{key}");
        assert_eq!(
            owned.get(&key.cidr),
            Some(&Some(key.owner.clone())),
            "{key} is not what its block says"
        );
    }
    for (cidr, owner) in owned {
        let Some(owner) = owner else { continue };
        assert!(
            claims
                .iter()
                .any(|(key, _)| key.cidr == cidr && key.owner == owner),
            "{cidr} has no affinity"
        );
    }
}

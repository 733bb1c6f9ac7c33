//! After a release: a block that became empty is given up if its pool no longer selects the node that owns it
//! (IPAM-149).

use libcalico::api::{IpPool, Node, ObjectKey};
use libcalico::ipam::{AffinityKey, Block, BlockAffinity, Owner, enabled_pool};
use libcalico::net::Cidr;
use libcalico::selector::Selector;
use libcalico::store::{Entry, ReadBatch, Store, StoreError};

use crate::mend::give_up;

/// The pools, and the node that is most likely the owner.
#[derive(Debug, Clone)]
pub(crate) struct PoolView {
    pools: Vec<IpPool>,
    node: Option<Node>,
}

impl PoolView {
    pub(crate) fn new(pools: Vec<Entry<IpPool>>, node: Option<Entry<Node>>) -> Self {
        PoolView { pools: pools.into_iter().map(|entry| entry.value).collect(), node: node.map(|entry| entry.value) }
    }

    pub(crate) fn pools(&self) -> &[IpPool] {
        &self.pools
    }

    /// Whether the pool of `cidr` is in service and selects nodes at all but not this one.
    fn deselects(&self, cidr: &Cidr, node: &Node) -> bool {
        let mut in_service = self.pools.iter().filter_map(|object| enabled_pool(object, cidr.version()).ok());
        in_service.find(|pool| pool.cidr.contains(cidr.network())).is_some_and(|pool| {
            Selector::parse(&pool.node_selector).is_ok_and(|selector| !selector.matches(&node.metadata.labels))
        })
    }

    /// Whether every pool in service selects whoever owns the block: then there is no need to look.
    fn selects_everyone(&self, cidr: &Cidr) -> bool {
        let mut in_service = self.pools.iter().filter_map(|object| enabled_pool(object, cidr.version()).ok());
        in_service
            .find(|pool| pool.cidr.contains(cidr.network()))
            .is_none_or(|pool| matches!(pool.node_selector.trim(), "" | "all()"))
    }
}

/// Gives up those of the emptied blocks that their owner should not keep. The addresses are released already, so
/// failure is only logged.
pub(crate) async fn release_if_deselected<S: Store>(store: &S, view: &PoolView, emptied: &[Cidr]) {
    for cidr in emptied.iter().filter(|cidr| !view.selects_everyone(cidr)) {
        match release_one(store, view, cidr).await {
            Ok(()) => {}
            Err(error) if error.is_race() => tracing::debug!(block = %cidr, %error, "block is in use again"),
            Err(error) => tracing::warn!(block = %cidr, %error, "cannot give up a block its pool deselected"),
        }
    }
}

async fn release_one<S: Store>(store: &S, view: &PoolView, cidr: &Cidr) -> Result<(), StoreError> {
    let block = store.get::<Block>(cidr).await?;
    let Some(owner @ Owner::Host(_)) = block.value.owner().filter(|_| block.value.is_empty()) else { return Ok(()) };
    let key = AffinityKey { owner: owner.clone(), cidr: *cidr };
    let mut batch = ReadBatch::new();
    let affinity = batch.get::<BlockAffinity>(&key);
    let node = batch.get::<Node>(&ObjectKey::global(owner.name()));
    let answers = store.read(&batch).await?;
    let read = answers.get(&node)?.map(|entry| entry.value);
    let cached = view.node.as_ref().filter(|node| node.metadata.name == owner.name());
    let Some(node) = read.as_ref().or(cached) else { return Ok(()) };
    if !view.deselects(cidr, node) {
        return Ok(());
    }
    match answers.get(&affinity)? {
        Some(affinity) => give_up(store, &affinity, &block).await,
        None => Ok(()),
    }
}

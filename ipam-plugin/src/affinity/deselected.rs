//! After a release: a block that became empty is given up if its pool no longer selects the node that owns it
//! (IPAM-149).

use libcalico::api::{IpPool, Node, ObjectKey};
use libcalico::ipam::{AffinityKey, Block, BlockAffinity, Owner, Pool, enabled_pool};
use libcalico::net::Cidr;
use libcalico::selector::Selector;
use libcalico::store::{Entry, ReadBatch, Store, StoreError};

use crate::mend::give_up;

/// The pools.
#[derive(Debug, Clone)]
pub(crate) struct PoolView {
    pools: Vec<IpPool>,
}

impl PoolView {
    pub(crate) fn new(pools: Vec<Entry<IpPool>>) -> Self {
        PoolView { pools: pools.into_iter().map(|entry| entry.value).collect() }
    }

    pub(crate) fn pools(&self) -> &[IpPool] {
        &self.pools
    }

    /// Whether the pool of `cidr` is in service and does not select this node.
    fn deselects(&self, cidr: &Cidr, node: &Node) -> bool {
        self.in_service(cidr).is_some_and(|pool| {
            Selector::parse(&pool.node_selector).is_ok_and(|selector| !selector.matches(&node.metadata.labels))
        })
    }

    /// Whether the pool of `cidr` selects every node, or is not in service: then there is no need to look.
    fn selects_everyone(&self, cidr: &Cidr) -> bool {
        self.in_service(cidr).is_none_or(|pool| matches!(pool.node_selector.trim(), "" | "all()"))
    }

    fn in_service(&self, cidr: &Cidr) -> Option<Pool> {
        let mut in_service = self.pools.iter().filter_map(|object| enabled_pool(object, cidr.version()).ok());
        in_service.find(|pool| pool.cidr.contains(cidr.network()))
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
    match (answers.get(&node)?, answers.get(&affinity)?) {
        (Some(node), Some(affinity)) if view.deselects(cidr, &node.value) => give_up(store, &affinity, &block).await,
        _ => Ok(()),
    }
}

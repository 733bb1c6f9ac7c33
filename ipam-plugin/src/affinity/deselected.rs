//! Releases a block that became empty if its pool no longer selects the owning node (IPAM-149).

use libcalico::api::{IpPool, Node, ObjectKey, ObjectSelect};
use libcalico::ipam::{AffinityKey, Block, BlockAffinity, Owner, enabled_pool};
use libcalico::net::Cidr;
use libcalico::selector::Selector;
use libcalico::store::{ReadBatch, Store, StoreError};

use crate::affinity::repair::release_affinity;

/// Releases those of the emptied blocks whose pools no longer select their nodes. The addresses are released already,
/// so failure is only logged.
pub(crate) async fn release_if_deselected<S: Store>(store: &S, emptied: &[(Cidr, Owner)]) {
    if emptied.is_empty() {
        return;
    }
    let deselected = match deselected(store, emptied).await {
        Ok(deselected) => deselected,
        Err(error) => return tracing::warn!(%error, "cannot tell whether pools still select the nodes of empty blocks"),
    };
    for (cidr, owner) in deselected {
        match release_one(store, cidr, owner).await {
            Ok(()) => {}
            Err(error) if error.is_race() => tracing::debug!(block = %cidr, %error, "block is in use again"),
            Err(error) => tracing::warn!(block = %cidr, %error, "cannot give up a block its pool deselected"),
        }
    }
}

/// Returns the blocks whose pools do not select their nodes.
async fn deselected<'a, S: Store>(
    store: &S,
    emptied: &'a [(Cidr, Owner)],
) -> Result<Vec<(&'a Cidr, &'a Owner)>, StoreError> {
    let of_nodes = || emptied.iter().filter(|(_, owner)| matches!(owner, Owner::Host(_)));
    let mut batch = ReadBatch::new();
    let pools = batch.list::<IpPool>(&ObjectSelect::default());
    let nodes: Vec<_> = of_nodes().map(|(_, owner)| batch.get::<Node>(&ObjectKey::global(owner.name()))).collect();
    let answers = store.read(&batch).await?;
    let pools: Vec<IpPool> = answers.list(&pools).into_iter().map(|entry| entry.value).collect();
    let mut found = Vec::new();
    for ((cidr, owner), node) in of_nodes().zip(&nodes) {
        if answers.get(node)?.is_some_and(|node| deselects(&pools, cidr, &node.value)) {
            found.push((cidr, owner));
        }
    }
    Ok(found)
}

/// Returns true if the pool of `cidr` is enabled and does not select this node.
fn deselects(pools: &[IpPool], cidr: &Cidr, node: &Node) -> bool {
    let mut enabled = pools.iter().filter_map(|object| enabled_pool(object, cidr.version()).ok());
    let pool = enabled.find(|pool| pool.cidr.contains(cidr.network()));
    pool.is_some_and(|pool| {
        Selector::parse(&pool.node_selector).is_ok_and(|selector| !selector.matches(&node.metadata.labels))
    })
}

async fn release_one<S: Store>(store: &S, cidr: &Cidr, owner: &Owner) -> Result<(), StoreError> {
    let mut batch = ReadBatch::new();
    let block = batch.get::<Block>(cidr);
    let affinity = batch.get::<BlockAffinity>(&AffinityKey { owner: owner.clone(), cidr: *cidr });
    let answers = store.read(&batch).await?;
    match (answers.get(&block)?, answers.get(&affinity)?) {
        (Some(block), Some(affinity)) if block.value.is_empty() && block.value.owner().as_ref() == Some(owner) => {
            release_affinity(store, &affinity, &block).await
        }
        _ => Ok(()),
    }
}

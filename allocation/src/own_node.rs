//! Creates the Node object in a datastore that only this node uses. There, neither kubelet nor
//! calico-node creates it, and IPAM assigns no address to a node without one.

use datastore::bootstrap::ensure_node;
use libcalico::api::{Node, NodeSpec, ObjectKey};
use libcalico::store::{Entry, Revision, Sharing, Store, StoreError};
use libcalico::validation::validate_node;

use crate::alloc::inputs::AllocationInputs;

/// Returns true if an ADD creates a missing Node: if only this node uses the datastore.
#[must_use]
pub fn add_creates_node(store: &impl Store) -> bool {
    match store.sharing() {
        Sharing::ThisNode => true,
        Sharing::Cluster => false,
    }
}

/// Creates the missing Node of an ADD if only this node uses the datastore, and adds the Node to
/// `inputs`.
/// A Node with an invalid name stays missing, and the allocation reports that.
///
/// # Errors
/// Returns an error if the datastore's file cannot be written or read.
pub async fn ensure(
    store: &impl Store,
    name: &str,
    inputs: &mut AllocationInputs,
) -> Result<(), StoreError> {
    let node = Node::new(name, NodeSpec::default());
    if inputs.node.is_some() || !add_creates_node(store) || validate_node(&node).is_err() {
        return Ok(());
    }
    if ensure_node(store, node).await? {
        tracing::info!(node = name, "created the Node");
    }
    inputs.node = Some(store.get(&ObjectKey::global(name)).await?);
    Ok(())
}

/// Adds to the inputs the Node that an ADD would create, for a call that only checks if an ADD
/// would work.
pub fn assume(store: &impl Store, name: &str, inputs: &mut AllocationInputs) {
    let node = Node::new(name, NodeSpec::default());
    if inputs.node.is_none() && add_creates_node(store) && validate_node(&node).is_ok() {
        let (key, revision) = (ObjectKey::global(name), Revision(String::new()));
        inputs.node = Some(Entry {
            key,
            value: node,
            revision,
        });
    }
}

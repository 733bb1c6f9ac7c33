//! The Node of a machine whose datastore is the local file. Neither kubelet nor calico-node makes one there, and IPAM
//! gives no address to a node that has none.

use datastore::Datastore;
use datastore::first_use::ensure_node;
use libcalico::api::{Node, NodeSpec, ObjectKey};
use libcalico::store::{Entry, Revision, Store, StoreError};
use libcalico::validation::validate_node;

use crate::prelude::Prelude;

/// Returns true if an ADD makes the Node that it needs.
#[must_use]
pub fn is_made_by_add(store: &Datastore) -> bool {
    matches!(store, Datastore::Local(_))
}

/// Makes the Node that an ADD lacks, if it is to. One whose name is refused stays missing, which the allocation says.
///
/// # Errors
/// The file cannot be written.
pub async fn ensure(store: &Datastore, name: &str, prelude: &mut Prelude) -> Result<(), StoreError> {
    let node = Node::new(name, NodeSpec::default());
    if prelude.node.is_some() || !is_made_by_add(store) || validate_node(&node).is_err() {
        return Ok(());
    }
    if ensure_node(store, node).await? {
        tracing::info!(node = name, "made the Node");
    }
    prelude.node = Some(store.get(&ObjectKey::global(name)).await?);
    Ok(())
}

/// Puts the Node that an ADD would make into what was read, for a call that only asks if an ADD would work.
pub fn assume(store: &Datastore, name: &str, prelude: &mut Prelude) {
    let node = Node::new(name, NodeSpec::default());
    if prelude.node.is_none() && is_made_by_add(store) && validate_node(&node).is_ok() {
        let (key, revision) = (ObjectKey::global(name), Revision(String::new()));
        prelude.node = Some(Entry { key, value: node, revision });
    }
}

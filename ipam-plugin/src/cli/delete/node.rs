//! Deletes a node with all objects that exist for it.

use datastore::Datastore;
use libcalico::api::{Node, ObjectKey};
use libcalico::store::Store;

use crate::cli::error::CliError;
use crate::cli::session::Session;
use crate::clock::SystemClock;
use crate::node_cleanup::{NodeCleanupError, delete_node, endpoints_of_node};

pub(super) async fn delete(name: &str, force: bool, session: &mut Session<'_>) -> Result<(), CliError> {
    let store = session.store;
    let node = store.get::<Node>(&ObjectKey::global(name)).await?;
    if let Datastore::Kubernetes(_) = store {
        // The API server manages Node objects itself. Its refusal comes before any address is released.
        return Ok(store.delete::<Node>(&node.key, None).await?);
    }
    let endpoints = endpoints_of_node(store, name).await?;
    if !force && !endpoints.is_empty() {
        return Err(CliError::NodeInUse { node: name.into(), endpoints: endpoints.len() });
    }
    let forgotten =
        delete_node(store, &SystemClock::start(), &node, &endpoints).await.map_err(|error| match error {
            NodeCleanupError::Ipam(error) => error.into(),
            NodeCleanupError::BlockKept { node, block, cause } => {
                CliError::BlockKept { of: format!("node {node}"), block, cause }
            }
        })?;
    session.notice(format_args!(
        "{} addresses released, {} endpoints deleted, {} blocks given up",
        forgotten.addresses, forgotten.endpoints, forgotten.blocks
    ));
    Ok(())
}

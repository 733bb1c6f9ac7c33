//! [`delete_node`]: deletes a node of the datastore, with the objects that exist for it (KC-472).
//!
//! This is for etcd and the embedded datastore. On an API server, a Node is Kubernetes' own object.

mod addresses;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use libcalico::api::{
    BgpConfiguration, BgpPeer, FelixConfiguration, HostEndpoint, Node, ObjectKey, ObjectSelect,
    WorkloadEndpoint, configuration_of_node,
};
use libcalico::names::EndpointIdentifiers;
use libcalico::net::Cidr;
use libcalico::store::{
    Entry, Kind, RawEntry, ReadBatch, Store, StoreError, Write, ignore_missing,
};

use crate::affinity::remove_host;
use crate::error::IpamError;
use crate::reads::find;
use os::clock::Clock;

/// The numbers of objects that were deleted or released with a node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeCleanup {
    /// Number of released addresses: those of its endpoints and its tunnels.
    pub addresses: usize,
    /// Number of deleted endpoints, including those that another program deleted meanwhile.
    pub endpoints: usize,
    /// Number of released blocks.
    pub blocks: usize,
    /// Number of deleted peers, settings and host endpoints.
    pub owned_objects: usize,
}

/// The reason why the node may still exist. The next attempt continues from there.
#[derive(Debug, thiserror::Error)]
pub enum NodeCleanupError {
    /// An error of the datastore, or of an address.
    #[error(transparent)]
    Ipam(#[from] IpamError),
    /// A block of the node cannot be released.
    #[error("cannot release block {block} of node {node}: {cause}")]
    BlockKept {
        /// The node.
        node: String,
        /// The block.
        block: Cidr,
        /// The error from releasing it.
        cause: Box<IpamError>,
    },
}

impl From<StoreError> for NodeCleanupError {
    fn from(error: StoreError) -> Self {
        NodeCleanupError::Ipam(error.into())
    }
}

/// Deletes `node` with its endpoints, its blocks and the objects that exist for it alone, and the
/// Node last. Removes the addresses from the endpoints before it releases them. If another Node of
/// that name replaced it meanwhile, that Node stays and the result is an error.
pub async fn delete_node<S: Store, C: Clock>(
    store: &S,
    clock: &C,
    node: &Entry<Node>,
    endpoints: &[Entry<WorkloadEndpoint>],
) -> Result<NodeCleanup, NodeCleanupError> {
    let name = node.key.name.as_str();
    let mut cleanup = NodeCleanup::default();
    let endpoints = addresses::unlist(store, endpoints).await?;
    cleanup.addresses += addresses::release_listed(store, clock, &node.value, &endpoints).await?;
    cleanup.addresses += addresses::release_tunnels(store, clock, name).await?;
    for endpoint in &endpoints {
        ignore_missing(
            store
                .delete::<WorkloadEndpoint>(&endpoint.key, Some(&endpoint.revision))
                .await,
        )?;
        cleanup.endpoints += 1;
    }
    let released = remove_host(store, clock, name).await?;
    if let Some((block, cause)) = released.kept.into_iter().next() {
        return Err(NodeCleanupError::BlockKept {
            node: name.into(),
            block,
            cause: Box::new(cause),
        });
    }
    cleanup.blocks = released.released.len();
    cleanup.owned_objects = delete_owned_objects(store, name).await?;
    delete_node_object(store, node).await?;
    Ok(cleanup)
}

/// Returns the endpoints of a node. An unreadable endpoint is logged and skipped.
pub async fn endpoints_of_node<S: Store>(
    store: &S,
    node: &str,
) -> Result<Vec<Entry<WorkloadEndpoint>>, StoreError> {
    let keys = endpoint_keys(store, |name| name == node)
        .await?
        .remove(node)
        .unwrap_or_default();
    read_endpoints(store, node, &keys).await
}

/// Returns the names of the endpoints of those nodes that `is_wanted` selects, by node.
pub async fn endpoint_keys<S: Store>(
    store: &S,
    is_wanted: impl Fn(&str) -> bool,
) -> Result<BTreeMap<String, Vec<ObjectKey>>, StoreError> {
    let mut batch = ReadBatch::new();
    let keys = batch.list_keys::<WorkloadEndpoint>(&ObjectSelect::default());
    let answers = store.read(&batch).await?;
    let mut of_nodes: BTreeMap<String, Vec<ObjectKey>> = BTreeMap::new();
    for key in answers.listed_keys(&keys) {
        if let Ok(ids) = EndpointIdentifiers::parse(&key.name)
            && is_wanted(&ids.node)
        {
            of_nodes.entry(ids.node).or_default().push(key);
        }
    }
    Ok(of_nodes)
}

/// Returns those of the named endpoints that exist and are on `node`. An unreadable endpoint is
/// logged and skipped.
pub async fn read_endpoints<S: Store>(
    store: &S,
    node: &str,
    keys: &[ObjectKey],
) -> Result<Vec<Entry<WorkloadEndpoint>>, StoreError> {
    if keys.is_empty() {
        return Ok(Vec::new());
    }
    let mut batch = ReadBatch::new();
    let tickets: Vec<_> = keys
        .iter()
        .map(|key| batch.get::<WorkloadEndpoint>(key))
        .collect();
    let answers = store.read(&batch).await?;
    let mut endpoints = answers.readable(&tickets, |key, reason| {
        tracing::warn!(
            endpoint = %key, %reason,
            "ignoring an endpoint that cannot be read; the endpoint stays",
        );
    })?;
    endpoints.retain(|endpoint| endpoint.value.spec.node == node);
    Ok(endpoints)
}

/// Deletes the Node, even if other programs write it meanwhile. Fails if another Node of that name
/// replaced it.
async fn delete_node_object<S: Store>(store: &S, node: &Entry<Node>) -> Result<(), StoreError> {
    let mut revision = node.revision.clone();
    loop {
        match store.delete::<Node>(&node.key, Some(&revision)).await {
            Err(StoreError::Conflict { key }) => match find::<Node>(store, &node.key).await? {
                Some(found)
                    if found.value.metadata.uid != node.value.metadata.uid
                        || found.revision == revision =>
                {
                    return Err(StoreError::Conflict { key });
                }
                Some(found) => revision = found.revision,
                None => return Ok(()),
            },
            outcome => return ignore_missing(outcome),
        }
    }
}

async fn delete_owned_objects<S: Store>(store: &S, node: &str) -> Result<usize, StoreError> {
    let mut batch = ReadBatch::new();
    let peers = batch.list::<BgpPeer>(&ObjectSelect::default());
    let endpoints = batch.list::<HostEndpoint>(&ObjectSelect::default());
    let configuration = ObjectKey::global(configuration_of_node(node));
    let felix = batch.get_revision::<FelixConfiguration>(&configuration);
    let bgp = batch.get_revision::<BgpConfiguration>(&configuration);
    let answers = store.read(&batch).await?;
    let mut writes: Vec<Write> = of_node::<BgpPeer>(answers.raw_entries(&peers), node).collect();
    // Without a revision, a late request could delete the settings of a new Node with the same
    // name.
    let delete_felix =
        |revision| Write::delete::<FelixConfiguration>(&configuration, Some(revision));
    let delete_bgp = |revision| Write::delete::<BgpConfiguration>(&configuration, Some(revision));
    writes.extend(answers.revision(&felix).map(delete_felix));
    writes.extend(answers.revision(&bgp).map(delete_bgp));
    writes.extend(of_node::<HostEndpoint>(
        answers.raw_entries(&endpoints),
        node,
    ));
    let mut deleted = 0;
    for write in writes {
        match store.write_one(write).await {
            Ok(_) => deleted += 1,
            Err(StoreError::NotFound { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(deleted)
}

/// Returns deletions of the objects that name the node. An unreadable object stays.
fn of_node<K: Kind>(pairs: &[RawEntry], node: &str) -> impl Iterator<Item = Write> {
    let is_of_node = move |pair: &&RawEntry| {
        let object = pair.value.json();
        object.is_ok_and(|object| object["spec"]["node"] == node)
    };
    let of_node = pairs.iter().filter(is_of_node);
    of_node.filter_map(|pair| {
        Some(Write::delete::<K>(
            &K::parse_path(&pair.path)?,
            Some(&pair.revision),
        ))
    })
}

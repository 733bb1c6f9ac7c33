//! Deleting a node: what its endpoints and tunnels hold, its blocks, then the node.

use libcalico::api::{Node, ObjectKey, ObjectSelect, WorkloadEndpoint};
use libcalico::ipam::{Allocation, ReleaseRequest};
use libcalico::store::{Entry, Store};

use crate::affinity::remove_host;
use crate::cli::error::CliError;
use crate::cli::reading::{self, Reading};
use crate::cli::session::Session;
use crate::clock::SystemClock;
use crate::release_addresses::release_addresses;

pub(super) async fn delete(name: &str, force: bool, session: &mut Session<'_>) -> Result<(), CliError> {
    let store = session.store;
    let node = store.get::<Node>(&ObjectKey::global(name)).await?;
    let mut endpoints = store.list::<WorkloadEndpoint>(&ObjectSelect::default()).await?;
    endpoints.retain(|endpoint| endpoint.value.spec.node == name);
    if !force && !endpoints.is_empty() {
        return Err(CliError::NodeInUse { node: name.into(), endpoints: endpoints.len() });
    }
    let clock = SystemClock::start();
    let requests = held_for(name, &endpoints, &Reading::take(store).await?);
    let released = release_addresses(store, &clock, &requests).await?.released.len();
    for endpoint in &endpoints {
        store.delete::<WorkloadEndpoint>(&endpoint.key, Some(&endpoint.revision)).await?;
    }
    let surrendered = remove_host(store, &clock, name).await?;
    if let Some((block, cause)) = surrendered.kept.into_iter().next() {
        return Err(CliError::BlockKept { of: format!("node {name}"), block, cause: Box::new(cause) });
    }
    session.notice(format_args!(
        "{released} addresses released, {} endpoints deleted, {} blocks given up",
        endpoints.len(),
        surrendered.released.len()
    ));
    Ok(store.delete::<Node>(&node.key, None).await?)
}

/// The addresses of these endpoints, and those of the node's tunnels, which carry a type (IPAM-26).
fn held_for(node: &str, endpoints: &[Entry<WorkloadEndpoint>], reading: &Reading) -> Vec<ReleaseRequest> {
    let of_endpoints: Vec<_> = endpoints.iter().flat_map(|entry| reading::facts(&entry.value).addresses).collect();
    let is_wanted = |allocation: &Allocation<'_>| {
        let of_tunnel = allocation.attributes().is_some_and(|attributes| {
            attributes.contains_key("type") && attributes.get("node").is_some_and(|holder| holder == node)
        });
        !allocation.is_cooling() && (of_tunnel || of_endpoints.contains(&allocation.ip))
    };
    let blocks = reading.blocks.iter();
    let wanted = blocks.flat_map(|block| block.value.allocated().filter(is_wanted));
    let request = |held: Allocation<'_>| ReleaseRequest { ip: held.ip, handle: held.handle(), sequence: held.sequence };
    wanted.map(request).collect()
}

//! The addresses of a node and of its endpoints.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use libcalico::api::{Node, WorkloadEndpoint};
use libcalico::ipam::{
    Allocation, AllocationOwner, Attribute, Block, HandleId, OldHandle, ReleaseRequest, Tunnel,
    tunnels_of,
};
use libcalico::net::Cidr;
use libcalico::store::{Entry, Store, StoreError};

use crate::error::{IpamError, Result};
use crate::reads::blocks_by_name;
use crate::release::{ReleaseInputs, release, release_from_blocks};
use os::clock::Clock;

/// The annotation of an endpoint with the addresses that were removed from it and may not be
/// released yet. It exists only during the deletion of a node, and after an interrupted one.
const UNLISTED: &str = "cni.projectcalico.org/unlistedAddresses";

/// Removes all addresses from these endpoints, and records them in an annotation. Otherwise another
/// pod could get an address while Felix applies the policy of the old endpoint to it. Another
/// attempt finds the addresses in the annotation if this one ends before it releases them. Returns
/// the endpoints as written.
pub(super) async fn unlist<S: Store>(
    store: &S,
    endpoints: &[Entry<WorkloadEndpoint>],
) -> Result<Vec<Entry<WorkloadEndpoint>>> {
    let mut endpoints = endpoints.to_vec();
    for endpoint in &mut endpoints {
        let Entry {
            key,
            value,
            revision,
        } = endpoint;
        if value.spec.ip_networks.is_empty() {
            continue;
        }
        let addresses: BTreeSet<IpAddr> = addresses_of(value).collect();
        let addresses: Vec<String> = addresses.iter().map(IpAddr::to_string).collect();
        value
            .metadata
            .annotations
            .insert(UNLISTED.into(), addresses.join(","));
        value.spec.ip_networks.clear();
        value.spec.ip_nats.clear();
        match store.update::<WorkloadEndpoint>(key, value, revision).await {
            Ok(written) => *revision = written,
            // A DEL deleted the endpoint.
            Err(StoreError::NotFound { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(endpoints)
}

/// Returns the addresses that the endpoint lists, and those that [`unlist`] removed from it.
fn addresses_of(endpoint: &WorkloadEndpoint) -> impl Iterator<Item = IpAddr> {
    let unlisted = endpoint
        .metadata
        .annotations
        .get(UNLISTED)
        .into_iter()
        .flat_map(|text| text.split(','));
    endpoint
        .spec
        .ip_networks
        .iter()
        .map(String::as_str)
        .chain(unlisted)
        .filter_map(address)
}

/// Releases the addresses that these endpoints listed and those of the node's tunnels, as far as
/// they are still allocated to these pods and tunnels on this node. Returns their number.
///
/// A stale endpoint may list an address that has another owner by now. The addresses of VMIs are
/// not released, because a VMI outlives its node.
pub(super) async fn release_listed<S: Store, C: Clock>(
    store: &S,
    clock: &C,
    node: &Node,
    endpoints: &[Entry<WorkloadEndpoint>],
) -> Result<usize> {
    let listed = ListedAddresses::new(node, endpoints);
    let addresses: BTreeSet<IpAddr> = listed
        .by_address
        .keys()
        .chain(&listed.tunnels)
        .copied()
        .collect();
    if addresses.is_empty() {
        return Ok(0);
    }
    let blocks: BTreeSet<Cidr> = blocks_by_name(store, &addresses)
        .await?
        .into_values()
        .collect();
    let outcome = release_from_blocks(store, clock, blocks, |block| listed.requests(block)).await?;
    for (block, error) in outcome.failed {
        let IpamError::Store(StoreError::Corrupt { reason, .. }) = error else {
            return Err(error);
        };
        tracing::warn!(
            %block, %reason, "skipping a block that cannot be read; its addresses stay allocated",
        );
    }
    Ok(outcome.released.len())
}

struct ListedAddresses<'a> {
    node: &'a str,
    by_address: BTreeMap<IpAddr, Vec<&'a Entry<WorkloadEndpoint>>>,
    tunnels: BTreeSet<IpAddr>,
}

impl<'a> ListedAddresses<'a> {
    fn new(node: &'a Node, endpoints: &'a [Entry<WorkloadEndpoint>]) -> Self {
        let mut by_address = BTreeMap::<_, Vec<_>>::new();
        for endpoint in endpoints {
            for ip in addresses_of(&endpoint.value) {
                by_address.entry(ip).or_default().push(endpoint);
            }
        }
        ListedAddresses {
            node: &node.metadata.name,
            by_address,
            tunnels: tunnels_of(node).map(|(ip, _)| ip).collect(),
        }
    }

    /// Returns requests for the addresses of a block that are to be released, each at its present
    /// sequence number.
    fn requests(&self, block: &Block) -> Vec<ReleaseRequest> {
        let to_release = block
            .allocated()
            .filter(|held| !held.is_cooling() && self.is_to_be_released(held));
        let request = |held: Allocation<'_>| {
            let handle = held.handle();
            tracing::info!(address = %held.ip, handle = handle.as_ref().map(display),
                node = self.node,
                pod = held.attribute.and_then(pod), reason = "its node is being deleted",
                "releasing an address");
            ReleaseRequest {
                ip: held.ip,
                handle,
                sequence: held.sequence,
            }
        };
        to_release.map(request).collect()
    }

    fn is_to_be_released(&self, held: &Allocation<'_>) -> bool {
        let (Some(attribute), Some(handle)) = (held.attribute, held.handle()) else {
            return false;
        };
        if handle.may_be_of_vmi() {
            return false;
        }
        let (owner, node) = AllocationOwner::of(attribute);
        let is_on_node = node == Some(self.node);
        let mut endpoints = self
            .by_address
            .get(&held.ip)
            .into_iter()
            .flatten()
            .map(|endpoint| &endpoint.value);
        match owner {
            AllocationOwner::Tunnel => is_on_node && self.tunnels.contains(&held.ip),
            AllocationOwner::Pod { namespace, name } => {
                is_on_node
                    && endpoints.any(|endpoint| {
                        endpoint.metadata.namespace == namespace && endpoint.spec.pod == name
                    })
            }
            // Only the handle identifies the owner of a plain container's address, or of an
            // allocation from before v3.
            AllocationOwner::Unnamed => {
                (is_on_node || attribute.has_no_attributes())
                    && endpoints.any(|endpoint| is_handle_of(&handle, endpoint))
            }
            AllocationOwner::HostReserved
            | AllocationOwner::Service { .. }
            | AllocationOwner::Vmi { .. }
            | AllocationOwner::Foreign => false,
        }
    }
}

fn pod(attribute: &Attribute) -> Option<String> {
    let AllocationOwner::Pod { namespace, name } = AllocationOwner::of(attribute).0 else {
        return None;
    };
    Some(format!("{namespace}/{name}"))
}

/// Returns true if the handle is of the endpoint's container, on any network, or is the pod's
/// handle from before v3.
fn is_handle_of(handle: &HandleId, endpoint: &WorkloadEndpoint) -> bool {
    let (namespace, spec) = (&endpoint.metadata.namespace, &endpoint.spec);
    let container = handle.as_str().rsplit('.').next().unwrap_or_default();
    let old = OldHandle::of_pod(namespace, &spec.pod);
    (!container.is_empty() && container == spec.container_id)
        || old.is_some_and(|old| old.id() == handle)
}

/// Releases the addresses under the handles of the node's tunnels, and returns their number.
pub(super) async fn release_tunnels<S: Store, C: Clock>(
    store: &S,
    clock: &C,
    node: &str,
) -> Result<usize> {
    let handles = Tunnel::ALL.map(|tunnel| tunnel.handle_of(node));
    let inputs = ReleaseInputs::read(store, &handles).await?;
    tracing::info!(handles = ?handles.each_ref().map(HandleId::as_str), node,
        reason = "the node is being deleted",
        "releasing addresses of tunnels, if there are any");
    Ok(release(store, clock, inputs).await?.addresses)
}

fn address(text: &str) -> Option<IpAddr> {
    text.split('/').next()?.parse().ok()
}

//! The addresses that a node and its endpoints hold.

use std::collections::BTreeSet;
use std::net::IpAddr;

use libcalico::api::{IpPool, Node, ObjectSelect, WorkloadEndpoint};
use libcalico::ipam::{Allocation, Block, HandleId, ReleaseRequest, any_pool_of};
use libcalico::net::{Cidr, IpVersion};
use libcalico::store::{Entry, ReadBatch, Store, StoreError};

use crate::clock::Clock;
use crate::error::IpamError;
use crate::release::{ReleasePrelude, release};

/// What the handles of a node's tunnel addresses are called before its name (IPAM-22).
const TUNNELS: [&str; 5] = [
    "ipip-tunnel-addr",
    "vxlan-tunnel-addr",
    "vxlan-v6-tunnel-addr",
    "wireguard-tunnel-addr",
    "wireguard-v6-tunnel-addr",
];

/// Requests for the addresses of these endpoints and those that the node says its tunnels have, as far as they are held by
/// this node: an endpoint that was left behind does not take an address from whoever has it now.
pub(super) async fn by_node<S: Store>(
    store: &S,
    node: &Node,
    endpoints: &[Entry<WorkloadEndpoint>],
) -> Result<Vec<ReleaseRequest>, StoreError> {
    let texts = endpoints.iter().flat_map(|endpoint| endpoint.value.spec.ip_networks.iter().map(String::as_str));
    let addresses: BTreeSet<IpAddr> = texts.chain(tunnels(node)).filter_map(address).collect();
    if addresses.is_empty() {
        return Ok(Vec::new());
    }
    let is_wanted = |allocation: &Allocation<'_>| {
        let holder = allocation.attributes().and_then(|attributes| attributes.get("node"));
        !allocation.is_cooling()
            && addresses.contains(&allocation.ip)
            && holder.is_none_or(|holder| *holder == node.metadata.name)
    };
    let blocks = blocks_of(store, &addresses).await?;
    let held = blocks.iter().flat_map(|block| block.value.allocated().filter(is_wanted));
    let request = |held: Allocation<'_>| ReleaseRequest { ip: held.ip, handle: held.handle(), sequence: held.sequence };
    Ok(held.map(request).collect())
}

/// Gives back what the handles of the node's tunnels hold.
pub(super) async fn release_tunnels<S: Store, C: Clock>(store: &S, clock: &C, node: &str) -> Result<usize, IpamError> {
    let handles = TUNNELS.map(|tunnel| HandleId::new(format!("{tunnel}-{node}")));
    let prelude = ReleasePrelude::read(store, &handles).await?;
    Ok(release(store, clock, prelude).await?.addresses)
}

fn tunnels(node: &Node) -> impl Iterator<Item = &str> {
    let spec = &node.spec;
    let ipip = spec.bgp.iter().map(|bgp| &bgp.ipv4_ipip_tunnel_addr);
    let wireguard =
        spec.wireguard.iter().flat_map(|device| [&device.interface_ipv4_address, &device.interface_ipv6_address]);
    let vxlan = [&spec.ipv4_vxlan_tunnel_addr, &spec.ipv6_vxlan_tunnel_addr];
    ipip.chain(vxlan).chain(wireguard).map(String::as_str)
}

/// An address with or without a prefix length.
fn address(text: &str) -> Option<IpAddr> {
    text.split('/').next()?.parse().ok()
}

/// The blocks with these addresses: where the pools say, and for an address of none by the names of all blocks.
async fn blocks_of<S: Store>(store: &S, addresses: &BTreeSet<IpAddr>) -> Result<Vec<Entry<Block>>, StoreError> {
    let pools: Vec<IpPool> =
        store.list::<IpPool>(&ObjectSelect::default()).await?.into_iter().map(|entry| entry.value).collect();
    let block_of = |ip: IpAddr| any_pool_of(&pools, ip).and_then(|pool| pool.block_of(ip));
    let mut wanted: BTreeSet<Cidr> = addresses.iter().filter_map(|ip| block_of(*ip)).collect();
    let unpooled: Vec<IpAddr> = addresses.iter().copied().filter(|ip| block_of(*ip).is_none()).collect();
    for version in unpooled.iter().map(|ip| IpVersion::of(*ip)).collect::<BTreeSet<_>>() {
        let mut batch = ReadBatch::new();
        let keys = batch.list_keys::<Block>(&Some(version));
        let answers = store.read(&batch).await?;
        wanted.extend(answers.listed_keys(&keys).filter(|cidr| unpooled.iter().any(|ip| cidr.contains(*ip))));
    }
    let mut batch = ReadBatch::new();
    let tickets: Vec<_> = wanted.iter().map(|cidr| batch.get::<Block>(cidr)).collect();
    let answers = store.read(&batch).await?;
    answers.readable(&tickets, |key, reason| {
        tracing::warn!(block = %key, %reason, "leaving a block alone that cannot be read");
    })
}

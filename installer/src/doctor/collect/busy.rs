//! Finds addresses that IPAM may assign to a pod although the kernel has a host route to them, from the notes of ADDs
//! and from the routing table.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::net::IpAddr;

use datastore::Datastore;
use ipam_plugin::busy;
use libcalico::api::{IpPool, ObjectSelect};
use libcalico::ipam::Block;
use libcalico::net::Cidr;
use libcalico::store::Store;
use time::OffsetDateTime;

use super::interfaces::{block_of, or_missing};
use crate::doctor::snapshot::{BusyAddress, Observed, Unobserved};
use crate::host_network::{HostNetwork, Route};
use crate::layout::Layout;

/// Returns the addresses that ADDs noted within the last minute.
pub(super) fn read_notes(layout: &Layout) -> Vec<BusyAddress> {
    let notes = busy::in_force(&layout.path(busy::FILE), OffsetDateTime::now_utc());
    notes.into_iter().map(|note| BusyAddress { address: note.address, route: note.route }).collect()
}

/// Returns the routes to single addresses that belong to a pool and are free in IPAM. Routes through interfaces of pods
/// are left out: another check reports such interfaces without an endpoint.
pub(super) async fn find_routed(store: &Datastore, network: &dyn HostNetwork) -> Observed<Vec<BusyAddress>> {
    let mut interfaces = network.interfaces()?;
    interfaces.retain(|interface| interface.is_pods);
    let is_pods = |route: &Route| route.interfaces.iter().any(|name| interfaces.iter().any(|pods| pods.name == *name));
    let routes = network.routes()?;
    let routes: Vec<&Route> = routes.iter().filter(|route| route.destination.size() == 1 && !is_pods(route)).collect();
    if routes.is_empty() {
        return Ok(Vec::new());
    }
    let pools = store
        .list::<IpPool>(&ObjectSelect::default())
        .await
        .map_err(|error| Unobserved::new(format!("IPPools: {error}")))?;
    let mut blocks: BTreeMap<Cidr, Option<Block>> = BTreeMap::new();
    let mut busy = Vec::new();
    for route in routes {
        let address = route.destination.network();
        let Some(cidr) = block_of(address, pools.iter().map(|pool| &pool.value)) else { continue };
        if let Entry::Vacant(unread) = blocks.entry(cidr) {
            let read = or_missing(store.get::<Block>(&cidr).await).map_err(Unobserved::new)?;
            unread.insert(read.map(|entry| entry.value));
        }
        if is_free(blocks[&cidr].as_ref(), address) {
            busy.push(BusyAddress { address, route: describe(route) });
        }
    }
    Ok(busy)
}

/// Returns true if the block exists and the address in it is free. An address without a block is not at risk: ADDs on
/// this node fill existing blocks first.
fn is_free(block: Option<&Block>, address: IpAddr) -> bool {
    block.is_some_and(|block| block.allocation(address).is_none())
}

fn describe(route: &Route) -> String {
    match &route.interfaces[..] {
        [] => "that drops packets".into(),
        interfaces => format!("through {}", interfaces.join(", ")),
    }
}

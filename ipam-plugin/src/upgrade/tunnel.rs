//! The address of the node's IPIP device. With host-local it is the first address of the node's range. Calico must have
//! it before it assigns others of the range to pods.

use std::net::IpAddr;

use libcalico::api::{AllowedUse, Node, NodeBgp, ObjectKey};
use libcalico::ipam::Tunnel;
use libcalico::kubernetes::PodCidrs;
use libcalico::net::IpVersion;
use libcalico::store::{Store, StoreError};

use super::assign::{PAUSE, TRIES, UpgradeError, assign_unless_assigned};
use crate::alloc::request::AssignRequest;
use crate::clock::Clock;

/// Assigns an address for the node's IPIP device if there is none: the second of its podCIDR's addresses. A node with
/// only an IPv6 range has no such device.
pub(super) async fn ensure_address<S: Store, C: Clock>(store: &S, clock: &C, name: &str) -> Result<(), UpgradeError> {
    let key = ObjectKey::global(name);
    let mut tries = 1;
    loop {
        let mut node = store.get::<Node>(&key).await?;
        if node.value.spec.bgp.as_ref().is_some_and(|bgp| !bgp.ipv4_ipip_tunnel_addr.is_empty()) {
            return Ok(());
        }
        let range = PodCidrs::of(&node.value)?.of_family(IpVersion::V4).ok();
        let Some(ip) = range.and_then(|range| range.nth(1)) else { return Ok(()) };
        assign_tunnel_address(store, clock, name, ip).await?;
        node.value.spec.bgp.get_or_insert_with(NodeBgp::default).ipv4_ipip_tunnel_addr = ip.to_string();
        match store.update(&key, &node.value, &node.revision).await {
            Ok(_) => return Ok(()),
            // The kubelet writes its Node frequently.
            Err(StoreError::Conflict { .. }) if tries < TRIES => tries += 1,
            Err(error) => return Err(error.into()),
        }
        clock.sleep(PAUSE).await;
    }
}

async fn assign_tunnel_address<S: Store, C: Clock>(
    store: &S,
    clock: &C,
    node: &str,
    ip: IpAddr,
) -> Result<(), UpgradeError> {
    let request = AssignRequest {
        attributes: Tunnel::IPIP.attributes_of(node),
        purpose: AllowedUse::Tunnel,
        ..AssignRequest::workload(Tunnel::IPIP.handle_of(node), node)
    };
    assign_unless_assigned(store, clock, &request, ip).await
}

//! The owners that endpoints, pods, tunnels and handles record for an address which its block does
//! not name.

use std::net::IpAddr;

use libcalico::ipam::{Block, HandleId, Lookup, PackedHandle, PodState, RecordedOwner, tunnels_of};
use libcalico::kubernetes::CONTAINER_ID;

use super::ClusterRead;

impl ClusterRead {
    /// Returns the owner of an address that `block` does not name, from endpoints, pods and
    /// tunnels.
    pub(in crate::cli) fn recorded_owner(
        &self,
        block: &Block,
        address: IpAddr,
    ) -> Option<RecordedOwner> {
        let nodes = self.nodes.iter().flatten();
        let tunnel = nodes
            .flat_map(|node| tunnels_of(&node.value))
            .find(|(ip, _)| *ip == address);
        if let Some((_, owner)) = tunnel {
            return Some(owner);
        }
        let endpoint = self.endpoints_of(address).next();
        let of_endpoint =
            endpoint.map(|endpoint| (endpoint.node(), endpoint.pod(), endpoint.container_id()));
        let (node, pod, container) = of_endpoint.or_else(|| {
            self.pods.iter().find_map(|(key, pod)| {
                let Lookup::Present(pod) = pod else {
                    return None;
                };
                let state = PodState::of(pod).address_state(address);
                let runs = state.ended.is_none() && !pod.spec.host_network;
                let container = pod
                    .metadata
                    .annotations
                    .get(CONTAINER_ID)
                    .map(String::as_str);
                (runs && state.has == Some(true)).then_some((
                    state.node,
                    Some(key.clone()),
                    container,
                ))
            })
        })?;
        let pod = pod.iter().flat_map(|key| {
            [
                ("namespace", key.namespace.as_deref().unwrap_or_default()),
                ("pod", key.name.as_str()),
            ]
        });
        let attributes = pod
            .chain([("node", node)])
            .map(|(key, value)| (key.to_owned(), value.to_owned()));
        let handle = container.and_then(|container| self.uncounted_handle(block, container));
        Some(RecordedOwner {
            handle,
            attributes: attributes.collect(),
        })
    }

    /// Returns the handle of a container that counts an address of `block` which the block does not
    /// name. On an API server a tenant can set the container's ID: an ID that two pods have proves
    /// nothing, and no ID may form the handle of a VMI.
    fn uncounted_handle(&self, block: &Block, container: &str) -> Option<HandleId> {
        let named = self
            .endpoints
            .iter()
            .filter(|endpoint| endpoint.container_id() == Some(container))
            .count();
        let is_containers =
            |handle: &HandleId| handle.is_of_container(container) && !handle.may_be_of_vmi();
        let mut handles = self.uncounted(block).filter(|handle| is_containers(handle));
        handles
            .next()
            .filter(|_| named <= 1 && !container.contains('.'))
    }

    /// Returns the stored handles that count more addresses of `block` than the block names.
    fn uncounted(&self, block: &Block) -> impl Iterator<Item = HandleId> {
        let counts_more = |handle: &&PackedHandle| {
            let named =
                || i64::try_from(block.addresses_of(&handle.id()).len()).unwrap_or(i64::MAX);
            handle
                .count(&block.cidr)
                .is_some_and(|counted| counted > named())
        };
        self.handles
            .iter()
            .filter(counts_more)
            .map(PackedHandle::id)
    }

    /// Returns the handle of a VMI that counts an address which `block` does not name. A stopped VM
    /// has neither pod nor endpoint.
    pub(in crate::cli) fn uncounted_vmi(&self, block: &Block) -> Option<HandleId> {
        self.uncounted(block).find(|handle| handle.may_be_of_vmi())
    }
}

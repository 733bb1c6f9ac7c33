//! Releases the addresses that a failed allocation had already assigned. Upstream leaves them allocated until the DEL.

use std::collections::BTreeSet;

use libcalico::ipam::{Block, ReleaseRequest};
use libcalico::net::Cidr;
use libcalico::store::Store;

use crate::alloc::assignment::{BlockAssignment, is_as_assigned};
use crate::alloc::request::AssignRequest;
use crate::clock::Clock;
use crate::release::release_batch;
use crate::write_gate::OpenGate;

/// Releases the addresses of `assignments` whose allocations are unchanged. A VMI's address may have passed to another
/// launcher pod under the same handle. Failure is only logged: the handle still counts the addresses, so DEL finds
/// them.
pub(crate) async fn undo<S: Store, C: Clock>(
    store: &S,
    clock: &C,
    request: &AssignRequest,
    assignments: &[BlockAssignment],
) {
    let blocks: BTreeSet<Cidr> = assignments.iter().map(BlockAssignment::cidr).collect();
    let blocks: Vec<Cidr> = blocks.into_iter().collect();
    let requests = |block: &Block| {
        let here = assignments.iter().filter(|assignment| assignment.cidr() == block.cidr);
        let held = here.flat_map(|assignment| &assignment.addresses).filter_map(|ip| block.allocation(*ip));
        held.filter(|held| is_as_assigned(request, held))
            .map(|held| ReleaseRequest { ip: held.ip, handle: held.handle(), sequence: held.sequence })
            .collect()
    };
    let handle = &request.handle;
    let error = match release_batch(store, clock, &OpenGate, &blocks, requests, blocks.len()).await {
        Ok(outcome) => outcome.failed.into_iter().next().map(|(_, error)| error),
        Err(error) => Some(error),
    };
    if let Some(error) = error {
        tracing::error!(%handle, %error, "cannot release what a failed allocation took; DEL will");
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use libcalico::ipam::OwnerSlot;

    use super::*;
    use crate::alloc::one_address::assign_address;
    use crate::alloc::request::workload_attributes;
    use crate::testing::{Cluster, MemoryStore, held};

    /// Another launcher of the VMI uses the VMI's handle and has become the owner.
    #[tokio::test]
    async fn undo_of_an_address_that_passed_to_another_launcher_leaves_it() {
        let ip: IpAddr = "10.65.0.9".parse().unwrap();
        // The other address of the assignment was released in the meantime.
        let free: IpAddr = "10.65.0.10".parse().unwrap();
        for (owner, kept) in [("launcher-1", false), ("launcher-2", true)] {
            let cluster = Cluster::on(MemoryStore::sequential());
            cluster.pool("pool4", "10.65.0.0/16", 26);
            let mut request = cluster.request("node1", "net.vmi.ns.db");
            let pod = Some(("ns", "launcher-1"));
            request.attributes = workload_attributes("node1", pod, cluster.clock.now());
            let inputs = cluster.inputs(&request).await.unwrap();
            assign_address(&cluster.store, &cluster.clock, &request, ip, inputs).await.unwrap();
            let mut block = cluster.block("10.65.0.0/26").unwrap();
            let assignment = BlockAssignment {
                addresses: vec![free, ip],
                block: block.clone(),
                revision: None,
                prior_affinity: None,
            };
            let attributes = match owner {
                "launcher-1" => request.attributes.clone(),
                _ => workload_attributes("node2", Some(("ns", owner)), cluster.clock.now()),
            };
            block.set_owner(&request.handle, OwnerSlot::Active, &attributes);
            let stored = cluster.store.get::<Block>(&block.cidr).await.unwrap();
            cluster.store.update(&block.cidr, &block, &stored.revision).await.unwrap();
            undo(&cluster.store, &cluster.clock, &request, &[assignment]).await;
            assert_eq!(!held(&cluster.store.pairs()).is_empty(), kept, "owned by {owner}");
        }
    }
}

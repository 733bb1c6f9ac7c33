//! `calico-ipam adopt`: allocates the addresses that running workloads of a node use and that IPAM
//! does not have.
//!
//! ```text
//! pods, endpoints ─┐
//! interfaces ──────┼▶ FoundClaim ─▶ plan_adoption (pure) ─▶ write ─▶ AdoptedAddress
//! runtime ─────────┘
//! ```
//!
//! Read `pods` first, then `evidence`, then `write`.

mod endpoints;
mod evidence;
mod handles;
mod pods;
mod read;
#[cfg(test)]
mod tests;
mod write;

use std::net::IpAddr;
use std::path::Path;

use libcalico::api::AllowedUse;
use libcalico::failure::Failure;
use libcalico::ipam::{Adoption, Claim, Claimant, HandleId, plan_adoption};
use libcalico::kubernetes::VmiPod;
use libcalico::net::Cidr;
use libcalico::store::{Store, StoreError};
use os::clock::Clock;

use self::pods::ClusterPods;
use self::read::{ReadObjects, Workloads};
use self::write::BlockWriter;
use allocation::alloc::request::{AssignRequest, owner_for, workload_attributes};

pub(crate) use self::evidence::NodeEvidence;

/// The source of the claims of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ClaimSource {
    /// The pods in the datastore, from which endpoints are derived.
    Pods,
    /// The endpoints in the datastore, which the plugin writes.
    Endpoints,
}

/// The parameters of an adoption.
#[derive(Debug)]
pub(crate) struct AdoptRequest<'a> {
    pub(crate) node: &'a str,
    pub(crate) source: ClaimSource,
    pub(crate) evidence: NodeEvidence<'a>,
    /// The lock file by which processes of this node take turns; `None` disables the lock.
    pub(crate) lock_file: Option<&'a Path>,
    /// Whether to leave the datastore unchanged.
    pub(crate) dry_run: bool,
}

/// An address with the workload that uses it and the proven owner.
#[derive(Debug, Clone)]
struct FoundClaim {
    claim: Claim,
    /// The virtual machine of the pod, if it keeps the address.
    vmi: Option<VmiPod>,
}

impl FoundClaim {
    fn result(self, outcome: AdoptOutcome) -> AdoptedAddress {
        let Claim {
            address, claimant, ..
        } = self.claim;
        AdoptedAddress {
            address,
            claimant,
            outcome,
        }
    }

    /// Returns the allocation as the ADD of the workload requests it.
    fn assign_request(
        &self,
        node: &str,
        clock: &impl Clock,
        handle: HandleId,
        block: Cidr,
    ) -> AssignRequest {
        let pod = match &self.claim.claimant {
            Claimant::Pod { namespace, name } => Some((namespace.as_str(), name.as_str())),
            Claimant::Container(_) | Claimant::Tunnel(_) => None,
        };
        let mut attributes = workload_attributes(node, pod, clock.now());
        attributes.extend(self.vmi.iter().flat_map(VmiPod::attributes));
        AssignRequest {
            attributes,
            already_used: Some(block),
            ..AssignRequest::workload(handle, node)
        }
    }
}

/// The result of an adoption.
#[derive(Debug, Default)]
pub(crate) struct Adopted {
    pub(crate) addresses: Vec<AdoptedAddress>,
    /// Problems that do not concern a single address.
    pub(crate) notices: Vec<String>,
}

/// A used address, and the result for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AdoptedAddress {
    pub(crate) address: IpAddr,
    pub(crate) claimant: Claimant,
    pub(crate) outcome: AdoptOutcome,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum AdoptOutcome {
    /// Allocated now; with `dry_run`, it would be.
    Adopted(Cidr),
    /// Allocated to the workload already.
    Held(Cidr),
    Conflict(Failure),
}

/// Adopts the addresses of the workloads of a node, in the order of the addresses. A repeated call
/// completes an interrupted one. `api` is the API server with the pods, which may be `store`
/// itself; `None` without one.
///
/// # Errors
/// Returns an error if an object that the plan needs cannot be read.
pub(crate) async fn adopt<S: Store, A: Store, C: Clock>(
    store: &S,
    api: Option<&A>,
    clock: &C,
    request: &AdoptRequest<'_>,
) -> Result<Adopted, StoreError> {
    let pods = match api {
        Some(api) => Some(ClusterPods::read(api).await?),
        None => None,
    };
    let Workloads { mut claims, users } =
        Workloads::read(store, api, pods.as_ref(), request).await?;
    claims.sort_by_cached_key(|found| (found.claim.address, found.claim.claimant.clone()));
    let objects = ReadObjects::read(store, &claims).await?;
    let inputs = objects.inputs(&users, clock.now());
    let planned: Vec<(FoundClaim, Adoption)> = claims
        .into_iter()
        .map(|found| {
            let adoption = plan_adoption(&inputs, &found.claim);
            (found, adoption)
        })
        .collect();
    if request.dry_run {
        let addresses = planned
            .into_iter()
            .map(|(found, adoption)| found.result(outcome_of(adoption)));
        return Ok(Adopted {
            addresses: addresses.collect(),
            notices: Vec::new(),
        });
    }
    let own = owner_for(AllowedUse::Workload, request.node);
    let mut writer = BlockWriter::new(store, clock, own, request.lock_file);
    let is_conflict =
        |(_, adoption): &(FoundClaim, Adoption)| matches!(adoption, Adoption::Conflict(_));
    // Another run may have counted an address whose block it has not created yet.
    let lock = if planned.iter().all(is_conflict) {
        None
    } else {
        writer.lock()
    };
    let mut notices = handles::repair(store, &objects, &planned).await;
    drop(lock);
    for (_, adoption) in &planned {
        match adoption {
            Adoption::Allocate { block, .. } if !objects.exists(block) => {
                writer.note_missing(*block)
            }
            Adoption::Held { block } => writer.note_used(*block),
            Adoption::Allocate { .. } | Adoption::Conflict(_) => {}
        }
    }
    let mut addresses = Vec::new();
    for (found, adoption) in planned {
        let outcome = match adoption {
            Adoption::Allocate { handle, block } => {
                let assign = found.assign_request(request.node, clock, handle, block);
                writer.allocate(&assign, found.claim.address, block).await
            }
            other => outcome_of(other),
        };
        addresses.push(found.result(outcome));
    }
    writer.finish_claims().await;
    let (allocated, of_writes) = writer.into_results();
    notices.extend(handles::repair_allocated(store, allocated).await);
    notices.extend(of_writes);
    Ok(Adopted { addresses, notices })
}

fn outcome_of(adoption: Adoption) -> AdoptOutcome {
    match adoption {
        Adoption::Allocate { block, .. } => AdoptOutcome::Adopted(block),
        Adoption::Held { block } => AdoptOutcome::Held(block),
        Adoption::Conflict(reason) => AdoptOutcome::Conflict(reason),
    }
}

//! Assigns the addresses in a pod's annotation `ipAddrs` (CNI-124).

use std::collections::BTreeMap;
use std::net::IpAddr;

use allocation::alloc::inputs::AllocationInputs;
use allocation::alloc::predecessor::Predecessor;
use allocation::exhausted::ReleaseGuard;
use ipam_plugin::cni::{self, IpamRequest};
use libcalico::api::WorkloadEndpoint;
use libcalico::workload::WorkloadIdentity;
use netconf::result::{IpConfig, IpNet};
use netconf::{CniError, CniResult};
use os::clock::Clock as _;

use super::{AssignedAddresses, CalicoRequest, IpamCall};
use crate::cni_error::store_error;
use crate::world::World;

/// Addresses that the pod's endpoint lists for an earlier sandbox and that the pod no longer
/// requests.
#[derive(Debug)]
pub struct EarlierAddresses {
    sandbox: Predecessor,
    addresses: Vec<IpAddr>,
}

/// Assigns the requested addresses. An address that is allocated to the pod's earlier sandbox is
/// reallocated to the new sandbox in a single write, so that the address is not free in between. If
/// the pod's VMI has addresses, the pod gets these instead of the requested ones.
pub(super) async fn assign(
    ipam: IpamCall<'_, impl World>,
    workload: &WorkloadIdentity,
    calico: CalicoRequest,
    existing: Option<&WorkloadEndpoint>,
) -> Result<AssignedAddresses, CniError> {
    let CalicoRequest {
        mut request,
        inputs,
        requested,
        ..
    } = calico;
    if let Some(ip) = request.ip {
        tracing::error!(%ip, "IP in CNI_ARGS is overridden by the pod's annotation ipAddrs");
    }
    request.predecessor = existing.and_then(|existing| earlier_sandbox(&request, existing));
    let mut inputs = Some(inputs);
    let (store, clock) = (ipam.store, ipam.clock.restarted());
    let mut addresses = Vec::with_capacity(requested.len());
    let mut replaced_owner = None;
    for address in requested {
        request.ip = Some(address);
        let assigned = match inputs.take() {
            Some(inputs) => cni::add(store, &clock, &request, inputs, None).await,
            // The inputs read for the first address lack the writes since then.
            None => match AllocationInputs::read(store, &request.inputs_query()).await {
                Ok(inputs) => cni::add(store, &clock, &request, inputs, None).await,
                Err(error) => Err(store_error(
                    "read the objects needed to assign an address",
                    &error,
                )),
            },
        };
        match assigned {
            Ok(assigned) => {
                addresses.extend(assigned.result.ips.iter().map(|ip| ip.address.addr()));
                // When the VMI's second address is assigned, this pod is the owner already. Only
                // the first assignment returns the replaced owner.
                replaced_owner.get_or_insert(assigned.replaced);
            }
            Err(error) => {
                let assigned = assigned_so_far(&addresses, request, replaced_owner);
                if let Err(error) = assigned.unassign(ipam, workload).await {
                    tracing::warn!(
                        %error,
                        hint = "the DEL of the container tries again, except for a VMI's addresses",
                        "cannot release the addresses of the failed ADD"
                    );
                }
                let msg = format!("error getting IP from IPAM: {}", error.msg);
                return Err(CniError { msg, ..error });
            }
        }
    }
    let earlier = request.predecessor.clone().map(|sandbox| {
        let addresses = sandbox
            .listed
            .iter()
            .filter(|ip| !addresses.contains(ip))
            .copied()
            .collect();
        EarlierAddresses { sandbox, addresses }
    });
    let earlier = earlier.filter(|earlier| !earlier.addresses.is_empty());
    Ok(AssignedAddresses {
        earlier,
        ..assigned_so_far(&addresses, request, replaced_owner)
    })
}

fn assigned_so_far(
    addresses: &[IpAddr],
    request: IpamRequest,
    replaced_owner: Option<BTreeMap<String, String>>,
) -> AssignedAddresses {
    let assigned = AssignedAddresses::new(result(addresses), Some(Box::new(request)));
    AssignedAddresses {
        replaced_owner: replaced_owner.unwrap_or_default(),
        ..assigned
    }
}

/// Returns the result for requested addresses. It has no routes, as in upstream (CNI-127).
pub(super) fn result(addresses: &[IpAddr]) -> CniResult {
    let config = |ip: &IpAddr| IpConfig {
        interface: None,
        address: IpNet::host(*ip),
        gateway: None,
    };
    CniResult {
        ips: addresses.iter().map(config).collect(),
        ..CniResult::default()
    }
}

/// Returns the sandbox that the pod's endpoint names, usually an earlier one, and the addresses
/// that the endpoint lists for it. Returns `None` for a VMI, whose addresses are passed from pod to
/// pod in another way, and if the endpoint names no sandbox.
pub(super) fn earlier_sandbox(
    call: &IpamRequest,
    existing: &WorkloadEndpoint,
) -> Option<Predecessor> {
    let pod = call.pod.as_ref().filter(|_| call.vmi.is_none())?;
    let annotated = &existing.spec.container_id;
    let mut sandbox =
        Predecessor::from_annotation(&call.network, annotated, &pod.namespace.name, &pod.name)?;
    (_, sandbox.listed) = existing.spec.host_link();
    Some(sandbox)
}

impl EarlierAddresses {
    /// Releases the addresses that are allocated to the earlier sandbox; another address stays
    /// (CNI-246).
    pub async fn release(&self, ipam: IpamCall<'_, impl World>) {
        let EarlierAddresses { sandbox, addresses } = self;
        let _releasing = ReleaseGuard::of_node(ipam.files);
        let clock = ipam.clock.restarted();
        match sandbox.release(ipam.store, &clock, addresses).await {
            Ok(released) => {
                for ip in addresses.iter().filter(|ip| !released.contains(ip)) {
                    tracing::warn!(
                        %ip, handle = %sandbox.handle,
                        "keeping an address that the earlier sandbox does not have"
                    );
                }
            }
            Err(error) => {
                tracing::warn!(
                    handle = %sandbox.handle, %error,
                    hint = "the DEL of that sandbox tries again",
                    "cannot release all unrequested addresses of the earlier sandbox"
                );
            }
        }
    }
}

//! Addresses that a pod chooses itself (CNI-122, CNI-124).

use std::net::IpAddr;

use ipam_plugin::clock::SystemClock;
use ipam_plugin::cni::{self, IpamCall};
use ipam_plugin::error::IpamError;
use ipam_plugin::prelude::Prelude;
use ipam_plugin::release_addresses::release_addresses;
use libcalico::api::WorkloadEndpoint;
use libcalico::ipam::{HandleId, ReleaseError, ReleaseRequest};
use libcalico::store::Store;
use netconf::result::{IpConfig, IpNet};
use netconf::{CniError, CniResult};

use super::Lease;
use crate::attach::host_link_of;
use crate::session::{Session, store_error};

/// Has the allocator keep `addresses` for the pod. Those of its earlier sandbox are given back first: as a rule they are
/// the same ones. A pod whose virtual machine has addresses gets these, whatever it asks for.
pub(super) async fn assign(
    session: &Session,
    mut call: IpamCall,
    prelude: Prelude,
    before: Option<&WorkloadEndpoint>,
    addresses: &[IpAddr],
) -> Result<CniResult, CniError> {
    if let Some(ip) = call.ip {
        tracing::error!(%ip, "IP in CNI_ARGS is overridden by the pod's annotation ipAddrs");
    }
    let mut prelude = match before {
        Some(before) if release_earlier(session, &call, before).await? => None,
        _ => Some(prelude),
    };
    let clock = SystemClock::start();
    let mut given = Vec::with_capacity(addresses.len());
    for address in addresses {
        call.ip = Some(*address);
        let assigned = match prelude.take() {
            Some(prelude) => cni::add(&session.store, &clock, &call, prelude, None).await,
            // What was written since is in the datastore only.
            None => match Prelude::read(&session.store, &call.prelude_query()).await {
                Ok(prelude) => cni::add(&session.store, &clock, &call, prelude, None).await,
                Err(error) => Err(store_error("read what is needed to assign an address", &error)),
            },
        };
        match assigned {
            Ok(assigned) => given.extend(assigned.ips.iter().map(|ip| ip.address.addr())),
            Err(error) => {
                if let Err(left) = super::give_back(session, &Lease::of(result(&given))).await {
                    tracing::warn!(error = %left, "an address of the failed ADD stays allocated; DEL will release it");
                }
                let msg = format!("error getting IP from IPAM: {}", error.msg);
                return Err(CniError { msg, ..error });
            }
        }
    }
    Ok(result(&given))
}

/// The result for addresses that were chosen: without routes, as upstream's.
pub(super) fn result(addresses: &[IpAddr]) -> CniResult {
    let config = |ip: &IpAddr| IpConfig { interface: None, address: IpNet::host(*ip), gateway: None };
    CniResult { ips: addresses.iter().map(config).collect(), ..CniResult::default() }
}

/// Gives back what the pod's earlier sandbox held; whether there was anything. Only from that sandbox: an address that
/// is another's by now stays that one's (CNI-246).
async fn release_earlier(session: &Session, call: &IpamCall, before: &WorkloadEndpoint) -> Result<bool, CniError> {
    let (_, held) = host_link_of(&before.spec);
    let sandbox = &before.spec.container_id;
    // A virtual machine keeps its addresses from pod to pod, and is known by them.
    if sandbox.is_empty() || call.machine.is_some() {
        return Ok(false);
    }
    let handle = HandleId::for_container(&call.network, sandbox);
    for ip in &held {
        match release(&session.store, *ip, &handle).await {
            Ok(()) => {}
            Err(IpamError::Release(mismatch @ ReleaseError::Handle { .. })) => {
                tracing::warn!(%ip, error = %mismatch, "an address of the earlier sandbox is another's by now");
            }
            Err(error) => {
                let error = cni::cni_error(&error);
                let msg = format!("failed to release ipAddrs: {}", error.msg);
                return Err(CniError { msg, ..error });
            }
        }
    }
    Ok(!held.is_empty())
}

async fn release<S: Store>(store: &S, ip: IpAddr, handle: &HandleId) -> Result<(), IpamError> {
    let request = ReleaseRequest { ip, handle: Some(handle.clone()), sequence: None };
    let released = release_addresses(store, &SystemClock::start(), &[request]).await?;
    if released.unallocated.contains(&ip) {
        tracing::warn!(%ip, "an address of the earlier sandbox was free already");
    }
    Ok(())
}

//! Addresses that a pod chooses itself (CNI-122, CNI-124).

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipam_plugin::clock::SystemClock;
use ipam_plugin::cni::{self, IpamCall};
use ipam_plugin::exhausted::Releasing;
use ipam_plugin::predecessor::Predecessor;
use ipam_plugin::prelude::Prelude;
use libcalico::api::WorkloadEndpoint;
use netconf::result::{IpConfig, IpNet};
use netconf::{CniError, CniResult};

use super::Lease;
use crate::attach::host_link_of;
use crate::session::{Session, store_error};

/// Addresses that the pod's endpoint lists of its earlier sandbox, and that the pod does not ask for any more. Released
/// once the endpoint lists the new ones.
#[derive(Debug)]
pub struct Outgoing {
    sandbox: Predecessor,
    addresses: Vec<IpAddr>,
}

/// Has the allocator keep `addresses` for the pod. Those that its earlier sandbox holds, as a rule all, pass to the new
/// one by the write that allocates them, so that an address which the endpoint lists is never free. A pod whose virtual
/// machine has addresses gets these, whatever it asks for.
pub(super) async fn assign(
    session: &Session,
    mut call: IpamCall,
    prelude: Prelude,
    before: Option<&WorkloadEndpoint>,
    addresses: &[IpAddr],
) -> Result<Lease, CniError> {
    if let Some(ip) = call.ip {
        tracing::error!(%ip, "IP in CNI_ARGS is overridden by the pod's annotation ipAddrs");
    }
    call.predecessor = before.and_then(|before| earlier_sandbox(&call, before));
    let mut prelude = Some(prelude);
    let clock = SystemClock::start();
    let mut given = Vec::with_capacity(addresses.len());
    let mut replaced = None;
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
            Ok(assigned) => {
                given.extend(assigned.result.ips.iter().map(|ip| ip.address.addr()));
                // The second address of a machine finds this pod itself.
                replaced.get_or_insert(assigned.replaced);
            }
            Err(error) => {
                if let Err(left) = super::give_back(session, &lease(&given, replaced)).await {
                    tracing::warn!(error = %left, "an address of the failed ADD stays allocated; DEL will release it");
                }
                let msg = format!("error getting IP from IPAM: {}", error.msg);
                return Err(CniError { msg, ..error });
            }
        }
    }
    let outgoing = call.predecessor.zip(before).map(|(sandbox, before)| {
        let (_, mut listed) = host_link_of(&before.spec);
        listed.retain(|ip| !given.contains(ip));
        Outgoing { sandbox, addresses: listed }
    });
    Ok(Lease { outgoing: outgoing.filter(|outgoing| !outgoing.addresses.is_empty()), ..lease(&given, replaced) })
}

fn lease(given: &[IpAddr], replaced: Option<BTreeMap<String, String>>) -> Lease {
    Lease { replaced: replaced.unwrap_or_default(), ..Lease::of(result(given)) }
}

/// The result for addresses that were chosen: without routes, as upstream's.
pub(super) fn result(addresses: &[IpAddr]) -> CniResult {
    let config = |ip: &IpAddr| IpConfig { interface: None, address: IpNet::host(*ip), gateway: None };
    CniResult { ips: addresses.iter().map(config).collect(), ..CniResult::default() }
}

/// The pod's earlier sandbox. A virtual machine keeps its addresses from pod to pod, and is known by them.
fn earlier_sandbox(call: &IpamCall, before: &WorkloadEndpoint) -> Option<Predecessor> {
    let pod = call.pod.as_ref().filter(|_| call.machine.is_none())?;
    Predecessor::of_annotation(&call.network, &before.spec.container_id, &pod.namespace.name, &pod.name)
}

impl Outgoing {
    /// Releases the addresses. What is not allocated to the sandbox and to this pod stays (CNI-246). After a failure
    /// the sandbox's DEL releases them.
    pub(super) async fn release(&self, session: &Session) {
        let Outgoing { sandbox, addresses } = self;
        let _releasing = Releasing::here();
        match sandbox.release(&session.store, &SystemClock::start(), addresses).await {
            Ok(released) => {
                for ip in addresses.iter().filter(|ip| !released.contains(ip)) {
                    tracing::warn!(%ip, handle = %sandbox.handle, "the annotated address is not allocated to this pod's earlier sandbox; leaving it");
                }
            }
            Err(error) => {
                tracing::warn!(handle = %sandbox.handle, %error, "addresses of the earlier sandbox stay allocated to it; its DEL releases them");
            }
        }
    }
}

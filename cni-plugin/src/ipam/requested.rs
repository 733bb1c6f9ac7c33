//! Addresses that a pod chooses itself (CNI-122, CNI-124).

use std::net::IpAddr;

use ipam_plugin::clock::SystemClock;
use ipam_plugin::cni::{self, IpamCall, Pod};
use ipam_plugin::error::IpamError;
use ipam_plugin::prelude::Prelude;
use ipam_plugin::release_addresses::release_chosen;
use libcalico::api::WorkloadEndpoint;
use libcalico::ipam::{Block, Handle, HandleId};
use libcalico::store::{Store, StoreError};
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

/// Gives back what the pod's earlier sandbox held; whether there was anything. The sandbox and its addresses come from the
/// pod's annotations, which are the tenant's. So only an address that is allocated to the sandbox and to this pod, by the
/// allocation's own attributes, is given back (CNI-246).
async fn release_earlier(session: &Session, call: &IpamCall, before: &WorkloadEndpoint) -> Result<bool, CniError> {
    let (_, held) = host_link_of(&before.spec);
    // A virtual machine keeps its addresses from pod to pod, and is known by them.
    let (Some(pod), None) = (&call.pod, &call.machine) else { return Ok(false) };
    let Some(handle) = sandbox_handle(&call.network, &before.spec.container_id) else { return Ok(false) };
    let released = release(&session.store, &handle, pod, &held).await.map_err(|error| {
        let error = cni::cni_error(&error);
        CniError { msg: format!("failed to release ipAddrs: {}", error.msg), ..error }
    })?;
    for ip in held.iter().filter(|ip| !released.contains(ip)) {
        tracing::warn!(%ip, %handle, "the annotated address is not allocated to this pod's earlier sandbox; leaving it");
    }
    Ok(!held.is_empty())
}

/// The handle of the sandbox that an annotation names; `None` for none, and for a text with a dot: no runtime calls a sandbox
/// so, and together with the network's name it may be the handle of a virtual machine.
fn sandbox_handle(network: &str, annotated: &str) -> Option<HandleId> {
    let is_sandbox = !annotated.is_empty() && !annotated.contains('.');
    is_sandbox.then(|| HandleId::for_container(network, annotated))
}

/// Gives back those of `addresses` that the handle holds for the pod.
async fn release<S: Store>(
    store: &S,
    handle: &HandleId,
    pod: &Pod,
    addresses: &[IpAddr],
) -> Result<Vec<IpAddr>, IpamError> {
    let found = match store.get::<Handle>(handle).await {
        Err(StoreError::NotFound { .. }) => return Ok(Vec::new()),
        found => found?,
    };
    let requests = |block: &Block| {
        let mut requests = block.requests_of(handle, |held| held.names_pod(&pod.namespace.name, &pod.name));
        requests.retain(|request| addresses.contains(&request.ip));
        requests
    };
    release_chosen(store, &SystemClock::start(), &found.value, requests).await
}

#[cfg(test)]
mod tests {
    use datastore::Local;
    use datastore::config::LocalConfig;
    use ipam_plugin::request::Namespace;
    use libcalico::ipam::{AssignRequest, Owner, Reservations};

    use super::*;

    /// A store with one block, of which the handle holds an address for each pod, as its attributes say.
    async fn store(directory: &tempfile::TempDir, handle: &HandleId, pods: &[&[(&str, &str)]]) -> Local {
        let config = LocalConfig { path: directory.path().join("db"), deadline: std::time::Duration::from_secs(10) };
        let (store, owner) = (Local::new(&config), Owner::Host("n1".into()));
        let mut block = Block::new("10.0.0.0/28".parse().unwrap(), &owner, time::OffsetDateTime::UNIX_EPOCH).unwrap();
        let mut counts = Handle::default();
        for pod in pods {
            let attributes = pod.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect();
            let request = AssignRequest {
                handle: Some(handle),
                attributes: &attributes,
                requester: &owner,
                check_affinity: false,
            };
            block.assign(1, &request, &Reservations::default()).unwrap();
            counts.increment(block.cidr, 1);
        }
        store.create(&block.cidr, &block).await.unwrap();
        store.create(handle, &counts).await.unwrap();
        store
    }

    #[tokio::test]
    async fn only_what_is_allocated_to_the_pod_itself_is_given_back() {
        let directory = tempfile::tempdir().unwrap();
        let handle = sandbox_handle("net", "c1").unwrap();
        let own = [("namespace", "ns"), ("pod", "web")];
        let pods: [&[(&str, &str)]; 5] =
            [&own, &[("namespace", "ns"), ("pod", "db")], &[("namespace", "other"), ("pod", "web")], &[], &own];
        let store = store(&directory, &handle, &pods).await;
        let pod = Pod { namespace: Namespace { name: "ns".into(), ..Namespace::default() }, name: "web".into() };
        // Not annotated: the last one.
        let annotated: Vec<IpAddr> = (0..4).map(|n| format!("10.0.0.{n}").parse().unwrap()).collect();
        for expected in [vec![annotated[0]], vec![]] {
            assert_eq!(release(&store, &handle, &pod, &annotated).await.unwrap(), expected);
        }
        assert_eq!(store.get::<Handle>(&handle).await.unwrap().value.total(libcalico::net::IpVersion::V4), 4);
        let gone = sandbox_handle("net", "gone").unwrap();
        assert_eq!(release(&store, &gone, &pod, &annotated).await.unwrap(), Vec::<IpAddr>::new());
    }

    #[test]
    fn an_annotation_makes_no_handle_of_a_machine() {
        assert_eq!(sandbox_handle("net", "vmi.prod.db"), None);
        assert_eq!(sandbox_handle("net", ""), None);
        assert_eq!(sandbox_handle("net", "c1").unwrap().as_str(), "net.c1");
    }
}

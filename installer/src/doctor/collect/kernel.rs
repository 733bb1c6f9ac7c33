//! Compares the kernel's interfaces and routes with the endpoints and blocks in the datastore.
//!
//! etcd and the embedded datastore store an endpoint for each interface. On Kubernetes the endpoint is derived from the
//! pod, and the plugins' account may not list pods. There the addresses of host routes are looked up in the blocks,
//! which name the pod, and the pod is read.

use std::collections::{BTreeMap, btree_map};
use std::net::IpAddr;
use std::time::Duration;

use datastore::Datastore;
use libcalico::api::{IpPool, ObjectKey, ObjectSelect, WorkloadEndpoint, WorkloadEndpointSpec};
use libcalico::ipam::{AllocationOwner, Block};
use libcalico::names::{EndpointIdentifiers, pod_interface};
use libcalico::net::{Cidr, IpVersion};
use libcalico::store::{Entry, ReadBatch, Store, StoreError};
use netconf::NetConf;
use tokio::time::sleep;

use crate::doctor::snapshot::{BusyAddresses, Observed, PodInterface, Unobserved};
use crate::host_network::{HostNetwork, Route, addresses_behind, pod_interface_prefix};
use crate::layout::CALICO_IPAM;

/// The reason for a missing observation about a node without a name.
pub(super) const UNKNOWN_NODE: &str = "the name of this node is unknown";

/// Time for a running ADD to write the endpoint of an interface that it already created.
const ENDPOINT_WRITE_TIME: Duration = Duration::from_secs(1);

/// The addresses of endpoints by interface name.
type Endpoints = BTreeMap<String, Vec<IpAddr>>;

/// Returns the interfaces of this node's pods. If an endpoint seems to be missing or incomplete, reads all a second
/// time, because an ADD creates the interface before the endpoint.
pub(super) async fn read_pod_interfaces(
    conf: &NetConf,
    store: &Datastore,
    node: &str,
    network: &dyn HostNetwork,
) -> Observed<Vec<PodInterface>> {
    if node.is_empty() {
        return Err(UNKNOWN_NODE.into());
    }
    if matches!(store, Datastore::Kubernetes(_)) && conf.ipam.ipam_type != CALICO_IPAM {
        let plugin = &conf.ipam.ipam_type;
        return Err(Unobserved::new(format!("addresses are assigned by {plugin}, which does not record their pods")));
    }
    let found = compare(store, node, network).await?;
    if found.iter().all(|found| found.endpoint.is_some() && found.stray_addresses().next().is_none()) {
        return Ok(found);
    }
    sleep(ENDPOINT_WRITE_TIME).await;
    compare(store, node, network).await
}

async fn compare(store: &Datastore, node: &str, network: &dyn HostNetwork) -> Observed<Vec<PodInterface>> {
    let mut interfaces = read_kernel_interfaces(network)?;
    let endpoints = match store {
        Datastore::Kubernetes(_) => read_pod_endpoints(store, node, &interfaces).await.map_err(Unobserved::new)?,
        Datastore::Etcd(_) | Datastore::Local(_) => read_endpoints(store, node).await.map_err(Unobserved::new)?,
    };
    for interface in &mut interfaces {
        interface.endpoint = endpoints.get(&interface.name).cloned();
    }
    Ok(interfaces)
}

/// Returns the kernel's interfaces of pods, without their endpoints.
fn read_kernel_interfaces(network: &dyn HostNetwork) -> Observed<Vec<PodInterface>> {
    let prefix = pod_interface_prefix();
    let routes = network.routes().map_err(Unobserved::new)?;
    let mut interfaces = network.interfaces().map_err(Unobserved::new)?;
    interfaces.retain(|interface| interface.is_pod_interface && interface.name.starts_with(&prefix));
    let with_addresses = interfaces.into_iter().map(|interface| {
        let addresses = addresses_behind(&interface.name, &routes);
        PodInterface { addresses, name: interface.name, endpoint: None }
    });
    Ok(with_addresses.collect())
}

/// Returns the addresses of the endpoints that the datastore stores for this node.
async fn read_endpoints(store: &Datastore, node: &str) -> Result<Endpoints, StoreError> {
    let mut names = ReadBatch::new();
    let keys = names.list_keys::<WorkloadEndpoint>(&ObjectSelect::default());
    let answers = store.read(&names).await?;
    let of_node = |name: &str| EndpointIdentifiers::parse(name).is_ok_and(|found| found.node == node);
    let mut batch = ReadBatch::new();
    let keys = answers.listed_keys(&keys).filter(|key| of_node(&key.name));
    let tickets: Vec<_> = keys.map(|key| batch.get::<WorkloadEndpoint>(&key)).collect();
    let answers = store.read(&batch).await?;
    let mut endpoints = Endpoints::new();
    for ticket in &tickets {
        let Some(endpoint) = answers.get(ticket)? else { continue };
        let spec = endpoint.value.spec;
        let addresses = addresses_of(&spec);
        endpoints.entry(spec.interface_name).or_default().extend(addresses);
    }
    Ok(endpoints)
}

/// Returns the addresses of the endpoints of the pods to which IPAM assigned the addresses of the interfaces `found`.
async fn read_pod_endpoints(store: &Datastore, node: &str, found: &[PodInterface]) -> Result<Endpoints, StoreError> {
    let pools = store.list::<IpPool>(&ObjectSelect::default()).await?;
    let mut blocks: BTreeMap<Cidr, Option<Block>> = BTreeMap::new();
    let mut endpoints = Endpoints::new();
    for interface in found {
        for address in &interface.addresses {
            let Some(cidr) = block_of(*address, pools.iter().map(|pool| &pool.value)) else { continue };
            let block = match blocks.entry(cidr) {
                btree_map::Entry::Occupied(entry) => entry.into_mut(),
                btree_map::Entry::Vacant(entry) => {
                    entry.insert(or_missing(store.get::<Block>(&cidr).await)?.map(|entry| entry.value))
                }
            };
            let allocation = block.as_ref().and_then(|block| block.allocation(*address));
            let Some((namespace, pod)) = allocation.and_then(|held| pod_of(held.attribute?)) else { continue };
            if pod_interface(&pod_interface_prefix(), namespace, pod) != interface.name {
                continue;
            }
            if let Some(endpoint) = endpoint_of(store, node, namespace, pod).await? {
                let endpoint_addresses = endpoints.entry(interface.name.clone()).or_default();
                endpoint_addresses.push(*address);
                endpoint_addresses.extend(addresses_of(&endpoint.spec));
            }
        }
    }
    Ok(endpoints)
}

pub(super) async fn list_pools(store: &Datastore) -> Observed<Vec<Entry<IpPool>>> {
    let pools = store.list::<IpPool>(&ObjectSelect::default()).await;
    pools.map_err(|error| Unobserved::new(format!("IPPools: {error}")))
}

/// Returns the range of the block of an address. The block may not exist.
fn block_of<'p>(address: IpAddr, pools: impl Iterator<Item = &'p IpPool>) -> Option<Cidr> {
    let version = IpVersion::of(address);
    let mut pools = pools.filter(|pool| pool.spec.range().is_ok_and(|range| range.contains(address)));
    Cidr::new(address, pools.next()?.spec.block_prefix(version))
}

fn pod_of(attribute: &libcalico::ipam::Attribute) -> Option<(&str, &str)> {
    let owner = [&attribute.active_owner, &attribute.alternate_owner].into_iter().find(|owner| !owner.is_empty())?;
    match AllocationOwner::of(attribute).0 {
        AllocationOwner::Pod { namespace, name } => Some((namespace, name)),
        // The owner is a virtual machine, but the interface is that of the pod in which the VMI runs.
        AllocationOwner::Vmi { .. } => Some((owner.get("namespace")?.as_str(), owner.get("pod")?.as_str())),
        _ => None,
    }
}

/// Returns the addresses of an endpoint and its external (NAT) addresses. Felix creates routes to both.
fn addresses_of(spec: &WorkloadEndpointSpec) -> Vec<IpAddr> {
    let own = spec.networks().map(|network| network.network());
    own.chain(spec.ip_nats.iter().filter_map(|nat| nat.external_ip.parse().ok())).collect()
}

/// Returns the endpoint of a pod on this node, also of a pod that has ended: its interface remains until its sandbox is
/// removed.
async fn endpoint_of(
    store: &Datastore,
    node: &str,
    namespace: &str,
    pod: &str,
) -> Result<Option<WorkloadEndpoint>, StoreError> {
    let identifiers = EndpointIdentifiers {
        node: node.to_owned(),
        orchestrator: "k8s".into(),
        endpoint: "eth0".into(),
        pod: pod.to_owned(),
        ..EndpointIdentifiers::default()
    };
    let Ok(name) = identifiers.name() else { return Ok(None) };
    let key = ObjectKey::namespaced(namespace, name);
    Ok(or_missing(store.get::<WorkloadEndpoint>(&key).await)?.map(|endpoint| endpoint.value))
}

fn or_missing<T>(outcome: Result<T, StoreError>) -> Result<Option<T>, StoreError> {
    match outcome {
        Ok(value) => Ok(Some(value)),
        Err(StoreError::NotFound { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Returns the routes to addresses that belong to an existing block and are free in IPAM, except those through
/// interfaces of pods.
pub(super) async fn find_routed(store: &Datastore, network: &dyn HostNetwork) -> Observed<BusyAddresses> {
    let mut pods = network.interfaces().map_err(Unobserved::new)?;
    pods.retain(|interface| interface.is_pod_interface);
    let leads_to_pod = |route: &Route| route.interfaces.iter().any(|name| pods.iter().any(|pod| pod.name == *name));
    let mut routes = network.routes().map_err(Unobserved::new)?;
    routes.retain(|route| route.destination.size() == 1 && !leads_to_pod(route));
    if routes.is_empty() {
        return Ok(BusyAddresses::new());
    }
    let pools = list_pools(store).await?;
    let mut blocks: BTreeMap<Cidr, Option<Block>> = BTreeMap::new();
    let mut busy = BusyAddresses::new();
    for route in routes {
        let address = route.destination.network();
        let Some(cidr) = block_of(address, pools.iter().map(|pool| &pool.value)) else { continue };
        if let btree_map::Entry::Vacant(entry) = blocks.entry(cidr) {
            let read = or_missing(store.get::<Block>(&cidr).await).map_err(Unobserved::new)?;
            entry.insert(read.map(|entry| entry.value));
        }
        // An address without a block is not reported: ADDs on this node fill the node's blocks first.
        if blocks[&cidr].as_ref().is_some_and(|block| block.allocation(address).is_none()) {
            let description = match &route.interfaces[..] {
                [] => "that drops packets".into(),
                interfaces => format!("through {}", interfaces.join(", ")),
            };
            busy.insert(address, description);
        }
    }
    Ok(busy)
}

#[cfg(test)]
mod tests {
    use libcalico::api::{IpNat, IpPoolSpec};

    use super::*;
    use crate::host_network::Interface;
    use crate::host_network::testing::{FixedNetwork, interface, route};

    #[test]
    fn pod_addresses_are_read_from_host_routes() {
        let pods = |name: &str| Interface { is_pod_interface: true, ..interface(name, 1500) };
        let network = FixedNetwork {
            interfaces: vec![pods("cali1"), pods("cali2"), interface("cali-theirs", 1500), pods("veth1")],
            routes: vec![
                route("10.65.0.1/32", &["cali1"]),
                route("fd65::1/128", &["cali1"]),
                route("10.65.0.2/32", &["cali-theirs"]),
                route("fe80::/64", &["cali1"]),
            ],
        };
        let found = read_kernel_interfaces(&network).unwrap();
        let found: Vec<_> = found.iter().map(|found| (found.name.as_str(), found.addresses.len())).collect();
        assert_eq!(found, [("cali1", 2), ("cali2", 0)]);
    }

    #[test]
    fn endpoint_addresses_include_external_nat_addresses() {
        let nat = IpNat { internal_ip: "10.65.0.1".into(), external_ip: "192.0.2.7".into(), ..IpNat::default() };
        let ip_networks = vec!["10.65.0.1/32".into(), "fd65::1/128".into()];
        let spec = WorkloadEndpointSpec { ip_networks, ip_nats: vec![nat], ..WorkloadEndpointSpec::default() };
        assert_eq!(addresses_of(&spec), ["10.65.0.1", "fd65::1", "192.0.2.7"].map(|ip| ip.parse::<IpAddr>().unwrap()));
    }

    #[test]
    fn block_of_an_address_has_the_block_size_of_its_pool() {
        let pool = |cidr: &str, block_size| {
            IpPool::new("p", IpPoolSpec { cidr: cidr.into(), block_size, ..IpPoolSpec::default() })
        };
        let pools = [pool("10.65.0.0/16", Some(28)), pool("fd65::/64", None)];
        let block = |address: &str| block_of(address.parse().unwrap(), pools.iter()).map(|block| block.to_string());
        assert_eq!(block("10.65.0.19").as_deref(), Some("10.65.0.16/28"));
        assert_eq!(block("fd65::7f").as_deref(), Some("fd65::40/122"));
        assert_eq!(block("10.66.0.1"), None);
    }
}

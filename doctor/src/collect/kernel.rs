//! Compares the kernel's interfaces and routes with the endpoints and blocks in the datastore.

use std::collections::{BTreeMap, btree_map};
use std::net::IpAddr;
use std::time::Duration;

use datastore::Datastore;
use libcalico::api::{IpPool, ObjectSelect};
use libcalico::ipam::Block;
use libcalico::names::InterfaceAlias;
use libcalico::net::{Cidr, IpVersion};
use libcalico::store::{Entry, Store, StoreError};
use netconf::NetConf;
use tokio::time::sleep;

use crate::snapshot::{BusyAddresses, DefaultRoutes, Observed, PodInterface, Unobserved, Unrouted};
use dataplane::host_network::{
    HostNetwork, HostRoute, addresses_behind, families_with_default, pod_interface_prefix,
};
use installation::pod_endpoints::{FoundEndpoints, WantedEndpoint, pod_endpoints};

/// The reason for a missing observation about a node without a name.
pub(super) const UNKNOWN_NODE: &str = "the name of this node is unknown";

/// Time for a running ADD to write the endpoint of an interface that it already created.
const ENDPOINT_WRITE_TIME: Duration = Duration::from_secs(1);

/// An interface, and its alias if an ADD of this plugin set one.
type KernelInterface = (PodInterface, Option<InterfaceAlias>);

pub(super) fn read_default_routes(network: &dyn HostNetwork) -> Observed<DefaultRoutes> {
    let main = families_with_default(&network.routes().map_err(Unobserved::new)?);
    let any = families_with_default(&network.routes_of_all_tables().map_err(Unobserved::new)?);
    Ok(DefaultRoutes { main, any })
}

/// Returns the interfaces of this node's pods. If an interface seems to differ from its endpoint,
/// reads all a second time, because an ADD creates the interface before the endpoint.
pub(super) async fn read_pod_interfaces(
    conf: &NetConf,
    store: &Datastore,
    node: &str,
    network: &dyn HostNetwork,
) -> Observed<Vec<PodInterface>> {
    if node.is_empty() {
        return Err(UNKNOWN_NODE.into());
    }
    let found = compare(conf, store, node, network).await?;
    if found.iter().all(PodInterface::is_complete) {
        return Ok(found);
    }
    sleep(ENDPOINT_WRITE_TIME).await;
    compare(conf, store, node, network).await
}

async fn compare(
    conf: &NetConf,
    store: &Datastore,
    node: &str,
    network: &dyn HostNetwork,
) -> Observed<Vec<PodInterface>> {
    let routes = network.routes().map_err(Unobserved::new)?;
    let found = read_kernel_interfaces(network, &routes)?;
    let wanted = found.iter().map(|(interface, alias)| WantedEndpoint {
        interface: &interface.name,
        addresses: &interface.addresses,
        alias: alias.as_ref(),
    });
    let found_endpoints = pod_endpoints(conf, store, node, &wanted.collect::<Vec<_>>()).await;
    let FoundEndpoints {
        mut by_interface,
        mut routed,
        ..
    } = found_endpoints.map_err(Unobserved::new)?;
    let with_endpoint = |(interface, alias): KernelInterface| {
        let endpoint = by_interface.remove(&interface.name);
        let routed = routed.remove(&interface.name).unwrap_or_default();
        // Only an alias shows that an ADD of this plugin set the interface up. Without an address
        // to which the host has to have a route, the family of the settings is unknown.
        let changes = match &alias {
            Some(_) if !routed.is_empty() => network.changes_of_pod_link(&interface.name, &routed),
            _ => Ok(Vec::new()),
        };
        let unrouted = Unrouted::find(&interface.name, &routed, &routes);
        Ok(PodInterface {
            endpoint,
            unrouted,
            changes: changes.map_err(Unobserved::new)?,
            ..interface
        })
    };
    found.into_iter().map(with_endpoint).collect()
}

/// Returns the kernel's interfaces of pods, without their endpoints.
fn read_kernel_interfaces(
    network: &dyn HostNetwork,
    routes: &[HostRoute],
) -> Observed<Vec<KernelInterface>> {
    let prefix = pod_interface_prefix();
    let mut links = network.pod_links().map_err(Unobserved::new)?;
    links.retain(|link| link.name.starts_with(&prefix));
    let with_addresses = links.into_iter().map(|link| {
        let addresses = addresses_behind(&link.name, routes);
        (
            PodInterface {
                addresses,
                name: link.name,
                ..PodInterface::default()
            },
            link.alias,
        )
    });
    Ok(with_addresses.collect())
}

pub(super) async fn list_pools(store: &Datastore) -> Observed<Vec<Entry<IpPool>>> {
    let pools = store.list::<IpPool>(&ObjectSelect::default()).await;
    pools.map_err(|error| Unobserved::new(format!("IPPools: {error}")))
}

/// Returns the range of the block of an address. The block may not exist.
fn block_of<'p>(address: IpAddr, pools: impl Iterator<Item = &'p IpPool>) -> Option<Cidr> {
    let version = IpVersion::of(address);
    let mut pools =
        pools.filter(|pool| pool.spec.range().is_ok_and(|range| range.contains(address)));
    Cidr::new(address, pools.next()?.spec.block_prefix(version))
}

fn or_missing<T>(outcome: Result<T, StoreError>) -> Result<Option<T>, StoreError> {
    match outcome {
        Ok(value) => Ok(Some(value)),
        Err(StoreError::NotFound { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Returns the routes to addresses that belong to an existing block and are free in IPAM, except
/// those through interfaces of pods.
pub(super) async fn find_routed(
    store: &Datastore,
    network: &dyn HostNetwork,
) -> Observed<BusyAddresses> {
    let mut pods = network.interfaces().map_err(Unobserved::new)?;
    pods.retain(|interface| interface.is_pod_interface);
    let leads_to_pod = |route: &HostRoute| {
        route
            .interfaces
            .iter()
            .any(|name| pods.iter().any(|pod| pod.name == *name))
    };
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
        let Some(cidr) = block_of(address, pools.iter().map(|pool| &pool.value)) else {
            continue;
        };
        if let btree_map::Entry::Vacant(entry) = blocks.entry(cidr) {
            let read = or_missing(store.get::<Block>(&cidr).await).map_err(Unobserved::new)?;
            entry.insert(read.map(|entry| entry.value));
        }
        // An address without a block is not reported: ADDs on this node fill the node's blocks
        // first.
        if blocks[&cidr]
            .as_ref()
            .is_some_and(|block| block.allocation(address).is_none())
        {
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
    use libcalico::api::IpPoolSpec;

    use super::*;
    use dataplane::host_network::Interface;
    use dataplane::host_network::testing::{FixedNetwork, interface, route};

    #[test]
    fn pod_addresses_are_read_from_host_routes() {
        let pods = |name: &str| Interface {
            is_pod_interface: true,
            ..interface(name, 1500)
        };
        let network = FixedNetwork {
            interfaces: vec![
                pods("cali1"),
                pods("cali2"),
                interface("cali-theirs", 1500),
                pods("veth1"),
            ],
            routes: vec![
                route("10.65.0.1/32", &["cali1"]),
                route("fd65::1/128", &["cali1"]),
                route("10.65.0.2/32", &["cali-theirs"]),
                route("fe80::/64", &["cali1"]),
            ],
        };
        let found = read_kernel_interfaces(&network, &network.routes).unwrap();
        let found: Vec<_> = found
            .iter()
            .map(|(found, _)| (found.name.as_str(), found.addresses.len()))
            .collect();
        assert_eq!(found, [("cali1", 2), ("cali2", 0)]);
    }

    #[test]
    fn block_of_an_address_has_the_block_size_of_its_pool() {
        let pool = |cidr: &str, block_size| {
            IpPool::new(
                "p",
                IpPoolSpec {
                    cidr: cidr.into(),
                    block_size,
                    ..IpPoolSpec::default()
                },
            )
        };
        let pools = [pool("10.65.0.0/16", Some(28)), pool("fd65::/64", None)];
        let block = |address: &str| {
            block_of(address.parse().unwrap(), pools.iter()).map(|block| block.to_string())
        };
        assert_eq!(block("10.65.0.19").as_deref(), Some("10.65.0.16/28"));
        assert_eq!(block("fd65::7f").as_deref(), Some("fd65::40/122"));
        assert_eq!(block("10.66.0.1"), None);
    }
}

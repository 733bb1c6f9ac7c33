//! Serves an ADD of a pod's container that already has an interface of this network, under another
//! name (CNI-90).

use std::collections::BTreeSet;
use std::net::IpAddr;

use allocation::reads::blocks_of;
use libcalico::api::WorkloadEndpoint;
use libcalico::ipam::{Block, HandleId};
use libcalico::store::Entry;
use netconf::result::{IpConfig, IpNet, Route};
use netconf::{CniError, CniResult};

use super::result::interface_ends;
use crate::cni_error::store_error;
use crate::context::Context;
use crate::interface::InterfaceConfig;
use crate::ipam::AddressRequest;
use crate::world::World;
use crate::{endpoint, interface_names};
use dataplane::{ConflictReason, ConflictingInterface, ExistingInterface};

/// Returns the result of the container's first ADD, if `found` is the interface of that ADD: the
/// pod's end is in CNI_NETNS, and the alias names this network, pod and container. An interface
/// without alias, such as upstream's, is that of this network if IPAM has allocated all its
/// addresses to the handle of this call. Returns `None` for any other ADD. Changes nothing but the
/// record of the name on the node.
///
/// The endpoint may come from annotations of the pod, which a tenant can write. So the host must
/// have a route through the interface to each address of the endpoint. `mtu` is that of the
/// interface in bytes.
pub(super) async fn first_result(
    cx: &Context<impl World>,
    found: &ExistingInterface,
    endpoint: Option<&WorkloadEndpoint>,
    request: &AddressRequest,
    mtu: u32,
) -> Result<Option<CniResult>, CniError> {
    let config = cx.interface();
    let ExistingInterface::Conflicting(found) = found else {
        return Ok(None);
    };
    let (ConflictReason::OtherInterface(first), Some(endpoint)) = (&found.reason, endpoint) else {
        return Ok(None);
    };
    if !is_of_first_add(config, found, endpoint)
        || !interface_names::has_other_first(cx, first, &endpoint.spec.endpoint)?
    {
        return Ok(None);
    }
    let addresses = endpoint.spec.host_link().1;
    let calico = if let AddressRequest::Calico(calico) = request {
        Some(calico)
    } else {
        None
    };
    let blocks = match calico {
        Some(_) => blocks_of(&cx.store, &[], &addresses, BTreeSet::new()).await,
        None => Ok(Vec::new()),
    };
    let blocks = blocks.map_err(|error| store_error("read the address blocks", &error))?;
    if found.alias.is_none()
        && !calico
            .is_some_and(|calico| are_allocated(&blocks, &addresses, &calico.request.handle()))
    {
        return Ok(None);
    }
    let ips = addresses.iter().map(|ip| IpConfig {
        address: IpNet::host(*ip),
        gateway: None,
        interface: Some(1),
    });
    let mac = found
        .peer_mac
        .map(|mac| mac.to_string())
        .unwrap_or_default();
    let mut result = CniResult {
        ips: ips.collect(),
        interfaces: interface_ends(&found.ifname, first, &mac, mtu, &cx.call),
        ..CniResult::default()
    };
    if let Some(calico) = calico {
        let has_chosen = calico.requested.is_empty() && calico.request.ip.is_none();
        result.routes.extend(addresses.iter().filter_map(|ip| {
            let block = blocks
                .iter()
                .find(|block| block.key.contains(*ip))
                .filter(|_| has_chosen);
            block
                .map_or(Some(IpNet::host(*ip)), |block| {
                    IpNet::new(*ip, block.key.prefix())
                })
                .map(Route::to)
        }));
    }
    interface_names::record_further(cx)?;
    tracing::warn!(
        first,
        requested = cx.call.ifname,
        "the pod already has an interface of this network; returning its result"
    );
    Ok(Some(result))
}

/// Returns true if the interface and the endpoint are those of an earlier ADD of this pod's
/// container. The alias may be missing.
fn is_of_first_add(
    config: InterfaceConfig<'_>,
    found: &ConflictingInterface,
    endpoint: &WorkloadEndpoint,
) -> bool {
    let addresses = endpoint.spec.host_link().1;
    config.is_of_pod()
        && found
            .alias
            .as_ref()
            .is_none_or(|alias| *alias == config.alias())
        && endpoint::is_of_container(endpoint, &config.call.container_id, None)
        && !addresses.is_empty()
        && addresses.iter().all(|ip| found.addresses.contains(ip))
}

/// Returns true if each address is allocated to the handle, which contains the name of the network.
fn are_allocated(blocks: &[Entry<Block>], addresses: &[IpAddr], handle: &HandleId) -> bool {
    let is_allocated = |ip: &IpAddr| {
        let held = blocks
            .iter()
            .find_map(|block| block.value.allocation(*ip))
            .filter(|held| !held.is_cooling());
        held.and_then(|held| held.handle()).as_ref() == Some(handle)
    };
    addresses.iter().all(is_allocated)
}

#[cfg(test)]
mod tests {
    use libcalico::api::WorkloadEndpointSpec;
    use libcalico::names::InterfaceAlias;
    use libcalico::store::Revision;
    use serde_json::json;

    use super::*;
    use crate::testing::open;
    use dataplane::MacAddr;

    #[test]
    fn interface_without_alias_needs_all_addresses_under_the_handle_of_the_call() {
        let block = |handle: &str, released: Option<&str>| {
            let block = json!({
                "cidr": "10.65.0.0/30", "affinity": "host:node1", "allocations": [0, 1, null, null],
                "unallocated": [2, 3], "attributes": [
                    { "handle_id": "net1.c1" }, { "handle_id": handle, "releasedAt": released },
                ], "deleted": false,
            });
            let (value, key) = (
                serde_json::from_value(block).unwrap(),
                "10.65.0.0/30".parse().unwrap(),
            );
            [Entry {
                key,
                value,
                revision: Revision("7".into()),
            }]
        };
        let (first, both) = (["10.65.0.0"], ["10.65.0.0", "10.65.0.1"]);
        let held = |block: &[Entry<Block>], addresses: &[&str]| {
            let addresses: Vec<_> = addresses.iter().map(|ip| ip.parse().unwrap()).collect();
            are_allocated(block, &addresses, &HandleId::new("net1.c1"))
        };
        assert!(held(&block("net2.c1", None), &first) && held(&block("net1.c1", None), &both));
        assert!(
            !held(&block("net2.c1", None), &both),
            "an address of another network"
        );
        assert!(
            !held(&block("net1.c1", Some("2026-11-28T20:00:00Z")), &both),
            "a released address"
        );
        assert!(!held(&[], &first), "an address without a block");
    }

    #[tokio::test]
    async fn second_add_returns_the_first_result_for_the_same_network_and_container_only() {
        let files = tempfile::tempdir().unwrap();
        let conf = json!({
            "datastore_type": "local", "datastore_path": files.path().join("db"),
        });
        let cx = open(
            "ADD",
            "K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web",
            conf,
            files.path(),
        );
        let found = ConflictingInterface {
            index: 7,
            ifname: "cali1".into(),
            container: Some("c1".into()),
            alias: Some(InterfaceAlias::for_pod("net1", "shop", "web", "c1")),
            peer_mac: Some(MacAddr::HOST_SIDE),
            addresses: vec!["10.65.0.2".parse().unwrap()],
            reason: ConflictReason::OtherInterface("first0".into()),
        };
        let endpoint = |name: &str, container: &str, address: &str| {
            let (endpoint, container_id, ip_networks) =
                (name.into(), container.into(), vec![address.into()]);
            let spec = WorkloadEndpointSpec {
                endpoint,
                container_id,
                ip_networks,
                ..WorkloadEndpointSpec::default()
            };
            WorkloadEndpoint::new("n", spec)
        };
        let own = endpoint("first0", "c1", "10.65.0.2/32");
        let result = async |found: &ConflictingInterface, endpoint: &WorkloadEndpoint| {
            let found = ExistingInterface::Conflicting(found.clone());
            let request = AddressRequest::Exec(None);
            first_result(&cx, &found, Some(endpoint), &request, 1400)
                .await
                .unwrap()
        };
        let first = result(&found, &own).await.unwrap();
        let names: Vec<_> = first
            .interfaces
            .iter()
            .map(|end| (end.name.as_str(), end.mac.as_str(), end.mtu))
            .collect();
        assert_eq!(
            names,
            [("cali1", "", 0), ("first0", "ee:ee:ee:ee:ee:ee", 1400)]
        );
        assert_eq!(first.ips[0].address.to_string(), "10.65.0.2/32");
        assert!(
            interface_names::is_further(&cx).unwrap(),
            "the DEL of this name changes nothing"
        );

        let with_alias = |alias| ConflictingInterface {
            alias,
            ..found.clone()
        };
        let other_network = InterfaceAlias::for_pod("net2", "shop", "web", "c1");
        let other_container = InterfaceAlias::for_pod("net1", "shop", "web", "c2");
        for alias in [None, Some(other_network), Some(other_container)] {
            assert_eq!(
                result(&with_alias(alias.clone()), &own).await,
                None,
                "{alias:?}"
            );
        }
        let elsewhere = ConflictingInterface {
            reason: ConflictReason::Unproven,
            ..found.clone()
        };
        assert_eq!(result(&elsewhere, &own).await, None);
        for (name, container, address) in [
            ("eth0", "c1", "10.65.0.2/32"),
            ("first0", "c2", "10.65.0.2/32"),
            ("first0", "c1", "10.65.0.3/32"),
        ] {
            assert_eq!(
                result(&found, &endpoint(name, container, address)).await,
                None,
                "{name} {container} {address}"
            );
        }
    }
}

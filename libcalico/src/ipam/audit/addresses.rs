//! Compares allocated addresses with the endpoints that use them.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

use time::OffsetDateTime;
use time::macros::format_description;

use super::{AuditedEndpoint, Finding, HeldAddress, Inventory, Pods};
use crate::api::ObjectKey;
use crate::ipam::{Allocation, Claim, ClaimKind, HandleId, HolderFacts, Holding, Keeper, PodState, Sight, holding};

type Holders<'a> = BTreeMap<IpAddr, Vec<&'a AuditedEndpoint>>;
type Taken<'a> = HashMap<IpAddr, Vec<HeldAddress>>;

pub(super) fn findings(inventory: &Inventory<'_>) -> Vec<Finding> {
    let holders = holders(inventory.endpoints);
    let containers = Containers::new(inventory, &holders);
    let mut taken = Taken::new();
    let mut findings = Vec::new();
    for block in inventory.blocks.iter().map(|entry| &entry.value) {
        for allocation in block.allocated().filter(|allocation| !allocation.is_cooling()) {
            let held = HeldAddress::new(block.cidr, &allocation);
            findings.extend(of_allocation(&allocation, &held, &holders, &containers, inventory));
            taken.entry(allocation.ip).or_default().push(held);
        }
    }
    findings.extend(of_endpoints(&holders, &taken, inventory));
    findings.extend(doubles(&holders, &taken));
    findings
}

fn holders(endpoints: &[AuditedEndpoint]) -> Holders<'_> {
    let mut holders = Holders::new();
    for endpoint in endpoints {
        for &address in &endpoint.addresses {
            holders.entry(address).or_default().push(endpoint);
        }
    }
    holders
}

fn of_allocation(
    allocation: &Allocation<'_>,
    held: &HeldAddress,
    holders: &Holders<'_>,
    containers: &Containers,
    inventory: &Inventory<'_>,
) -> Option<Finding> {
    match holders.get(&allocation.ip).map(Vec::as_slice) {
        None if needs_no_endpoint(allocation, inventory.pods) || is_in_flight(allocation, inventory) => None,
        None if containers.have_a_second_interface(allocation) => None,
        None => Some(Finding::AddressWithoutEndpoint(held.clone())),
        Some([endpoint]) => {
            let (handle, container_id) = (allocation.handle()?, endpoint.container_id.clone()?);
            (!holds_for(&handle, &container_id)).then(|| Finding::AddressOfAnother {
                held: held.clone(),
                endpoint: endpoint.name.clone(),
                container_id,
            })
        }
        // `doubles` reports this address once, as a double allocation.
        Some(_) => None,
    }
}

/// Handles with an address that an endpoint uses, by container ID.
///
/// Kubelet reports one interface of a pod. The addresses of the other interfaces appear only in annotations, which a
/// tenant can remove at any time. A container with one address in use therefore keeps its addresses on other networks.
struct Containers(HashMap<String, HandleId>);

impl Containers {
    fn new(inventory: &Inventory<'_>, holders: &Holders<'_>) -> Self {
        let allocations = inventory.blocks.iter().flat_map(|entry| entry.value.allocated());
        let in_use = allocations.filter(|allocation| !allocation.is_cooling() && holders.contains_key(&allocation.ip));
        let handles = in_use.filter_map(|allocation| allocation.handle());
        Containers(handles.filter_map(|handle| Some((container_of(&handle)?.to_owned(), handle))).collect())
    }

    fn have_a_second_interface(&self, allocation: &Allocation<'_>) -> bool {
        let handle = allocation.handle();
        let first = handle.as_ref().and_then(container_of).and_then(|container| self.0.get(container));
        first.is_some_and(|first| Some(first) != handle.as_ref())
    }
}

/// Returns the container ID in a handle `<network>.<container ID>`; `None` for other handles.
fn container_of(handle: &HandleId) -> Option<&str> {
    let (_, id) = handle.as_str().rsplit_once('.')?;
    (id.len() == 64 && id.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))).then_some(id)
}

/// Returns true if the owner of the allocation keeps the address although no endpoint has it. A pod that has not
/// reported an address yet also keeps its allocation, but its missing endpoint is reported.
fn needs_no_endpoint(allocation: &Allocation<'_>, pods: &Pods) -> bool {
    matches!(judge(allocation, pods).1, Holding::Held(keeper) if keeper != Keeper::SilentPod)
}

/// Returns the reason why the pod named in an allocation keeps the address although its endpoint does not have it. An
/// endpoint's addresses depend on annotations, which a tenant writes. A missing endpoint address therefore does not
/// free an address that the pod's status reports.
pub fn pod_keeper(allocation: &Allocation<'_>, pods: &Pods) -> Option<Keeper> {
    match judge(allocation, pods) {
        (ClaimKind::Pod, Holding::Held(keeper)) => Some(keeper),
        _ => None,
    }
}

/// Decides about an address that no endpoint has. Only pods are looked up. Virtual machines keep addresses while
/// stopped, and no objects of Services and tunnels are read, so the addresses of all three count as in use.
fn judge(allocation: &Allocation<'_>, pods: &Pods) -> (ClaimKind, Holding) {
    let (claim, node) = allocation.attribute.map_or((Claim::Unnamed, None), Claim::of);
    let found = match claim {
        Claim::Pod { namespace, name } => pods.get(&ObjectKey::namespaced(namespace, name)),
        _ => None,
    };
    let pod = match found {
        None => Sight::Absent,
        Some(Sight::Present(pod)) => Sight::Present(PodState::of(pod).sight(allocation.ip)),
        Some(_) => Sight::Unknown,
    };
    let facts = HolderFacts { pod, node, unnamed: Sight::Absent, ..HolderFacts::default() };
    (claim.kind(), holding(claim.kind(), &facts))
}

fn is_in_flight(allocation: &Allocation<'_>, inventory: &Inventory<'_>) -> bool {
    let since = allocation.attributes().and_then(|attributes| parse_timestamp(attributes.get("timestamp")?));
    since.is_some_and(|since| inventory.now - since < inventory.in_flight)
}

/// Returns true if the handle fits the container. A container's handle ends in the container ID. The handle of a VMI
/// outlives the containers, so any container may use it (IPAM-24).
fn holds_for(handle: &HandleId, container_id: &str) -> bool {
    let handle = handle.as_str();
    let of_container = handle.strip_suffix(container_id).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'));
    of_container || handle.contains(".vmi.")
}

fn of_endpoints<'a>(
    holders: &'a Holders<'_>,
    taken: &'a Taken<'_>,
    inventory: &'a Inventory<'_>,
) -> impl Iterator<Item = Finding> + 'a {
    // Addresses from other IPAM plugins are in no pool.
    let ours = |address: IpAddr| inventory.pools.iter().any(|pool| pool.contains(address));
    let free = holders.iter().filter(move |(address, _)| ours(**address) && !taken.contains_key(*address));
    free.flat_map(|(&address, endpoints)| {
        endpoints.iter().map(move |endpoint| Finding::EndpointWithoutAddress {
            address,
            endpoint: endpoint.name.clone(),
            node: endpoint.node.clone(),
        })
    })
}

fn doubles(holders: &Holders<'_>, taken: &Taken<'_>) -> Vec<Finding> {
    let by_endpoints = holders.iter().filter(|(_, endpoints)| endpoints.len() > 1).map(|(&address, endpoints)| {
        (address, endpoints.iter().map(|endpoint| format!("endpoint {}", endpoint.name)).collect())
    });
    let by_blocks = taken.iter().filter(|(_, held)| held.len() > 1).map(|(&address, held)| {
        let name = |held: &HeldAddress| {
            format!("block {} for handle {}", held.block, held.handle.as_deref().unwrap_or("(none)"))
        };
        (address, held.iter().map(name).collect::<Vec<String>>())
    });
    let mut all: BTreeMap<IpAddr, Vec<String>> = by_blocks.collect();
    for (address, names) in by_endpoints {
        let names: Vec<String> = names;
        all.entry(address).or_default().extend(names);
    }
    all.into_iter().map(|(address, holders)| Finding::DoubleAllocation { address, holders }).collect()
}

/// Parses the `timestamp` attribute, which is a UTC time in Go's default text form (IPAM-28).
fn parse_timestamp(text: &str) -> Option<OffsetDateTime> {
    let utc = text.strip_suffix(" UTC")?;
    let format = format_description!(
        version = 2,
        "[year]-[month]-[day] [hour]:[minute]:[second][optional [.[subsecond]]] [offset_hour sign:mandatory][offset_minute]"
    );
    OffsetDateTime::parse(utc, &format).ok()
}

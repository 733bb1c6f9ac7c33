//! Compares allocated addresses with the endpoints that use them.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::IpAddr;

use time::OffsetDateTime;
use time::macros::format_description;

use super::by_address::{AllocationsByAddress, EndpointsByAddress};
use super::{AllocatedAddress, Finding, Inventory, Owners, PackedAllocation, PackedBlock, Pods};
use crate::api::ObjectKey;
use crate::ipam::{
    AddressInPod, Allocation, AllocationOwner, HandleId, InUseReason, Lookup, OwnerFacts,
    OwnerKind, OwnerPodsLookup, PodState, Verdict, assess,
};
use crate::kubernetes::Pod;

pub(super) fn findings(inventory: &Inventory<'_>) -> Vec<Finding> {
    let endpoints = EndpointsByAddress::of_endpoints(inventory.endpoints);
    let containers = Containers::new(inventory, &endpoints);
    let recorded: HashSet<IpAddr> = inventory
        .owners
        .addresses
        .iter()
        .map(|owned| owned.address)
        .collect();
    let mut allocations =
        Vec::with_capacity(inventory.blocks.iter().map(PackedBlock::in_use).sum());
    let mut findings = Vec::new();
    for block in inventory.blocks {
        for allocation in block
            .allocated()
            .filter(|allocation| !allocation.is_cooling())
        {
            let held = || allocation.read(|held| AllocatedAddress::new(block.cidr, held));
            findings.extend(allocation_finding(
                &allocation,
                held,
                &endpoints,
                &recorded,
                &containers,
                inventory,
            ));
            allocations.push((allocation.ip, block));
        }
    }
    let allocations = AllocationsByAddress::of(allocations);
    findings.extend(endpoint_findings(&endpoints, &allocations, inventory));
    findings.extend(double_allocations(&endpoints, &allocations));
    findings
}

fn allocation_finding(
    allocation: &PackedAllocation<'_>,
    held: impl Fn() -> AllocatedAddress,
    endpoints: &EndpointsByAddress<'_>,
    recorded: &HashSet<IpAddr>,
    containers: &Containers<'_>,
    inventory: &Inventory<'_>,
) -> Option<Finding> {
    match endpoints.get(allocation.ip) {
        [] if recorded.contains(&allocation.ip) => None,
        [] if allocation
            .read(|held| needs_no_endpoint(held, inventory) || is_in_flight(held, inventory)) =>
        {
            None
        }
        [] if containers.has_second_interface(allocation) => None,
        [] => Some(Finding::AddressWithoutEndpoint(held())),
        [(_, endpoint)] => {
            let (handle, container_id) = (allocation.handle()?, endpoint.container_id()?);
            (!belongs_to_container(&handle, container_id)).then(|| Finding::AddressOfAnother {
                held: held(),
                endpoint: endpoint.name().to_owned(),
                container_id: container_id.to_owned(),
            })
        }
        // `double_allocations` reports this address.
        [_, _, ..] => None,
    }
}

/// The handles, by container ID, of which an endpoint has an address.
///
/// A container with one address in use keeps its addresses on other networks: these may appear only
/// in annotations, which a tenant can remove.
struct Containers<'a>(HashMap<&'a str, &'a str>);

impl<'a> Containers<'a> {
    /// Reads only the containers of addresses without endpoint.
    fn new(inventory: &Inventory<'a>, endpoints: &EndpointsByAddress<'_>) -> Self {
        let allocations = || {
            let allocated = inventory.blocks.iter().flat_map(PackedBlock::allocated);
            let allocated = allocated.filter(|allocation| !allocation.is_cooling());
            allocated.map(|allocation| {
                (
                    allocation.handle_text(),
                    endpoints.get(allocation.ip).is_empty(),
                )
            })
        };
        let unused = allocations()
            .filter_map(|(handle, is_unused)| container_of(handle.filter(|_| is_unused)?));
        let wanted: HashSet<&str> = unused.collect();
        let used = allocations().filter_map(|(handle, is_unused)| handle.filter(|_| !is_unused));
        let containers = used.filter_map(|handle| Some((container_of(handle)?, handle)));
        Containers(
            containers
                .filter(|(container, _)| wanted.contains(container))
                .collect(),
        )
    }

    fn has_second_interface(&self, allocation: &PackedAllocation<'_>) -> bool {
        let handle = allocation.handle_text();
        let first = handle
            .and_then(container_of)
            .and_then(|container| self.0.get(container));
        first.is_some_and(|first| Some(*first) != handle)
    }
}

/// Returns the container ID in a handle `<network>.<64 lower-case hexadecimal digits>`.
fn container_of(handle: &str) -> Option<&str> {
    let (_, id) = handle.rsplit_once('.')?;
    (id.len() == 64
        && id
            .bytes()
            .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')))
    .then_some(id)
}

/// Returns true if the address is in use and needs no endpoint. A pod whose addresses are
/// incomplete should have an endpoint.
fn needs_no_endpoint(allocation: &Allocation<'_>, inventory: &Inventory<'_>) -> bool {
    let (_, verdict) = assess_address(allocation, inventory.pods, inventory.owners);
    matches!(verdict, Verdict::InUse(reason) if reason != InUseReason::PodWithoutAddress)
}

/// Returns the reason why the pod that owns an allocation keeps the address without an endpoint.
/// The addresses of an endpoint depend on annotations, which a tenant can write, so they alone do
/// not free an address.
pub fn pod_in_use_reason(allocation: &Allocation<'_>, pods: &Pods) -> Option<InUseReason> {
    match assess_address(allocation, pods, &Owners::default()) {
        (OwnerKind::Pod, Verdict::InUse(reason)) => Some(reason),
        _ => None,
    }
}

/// Decides whether an address that no endpoint has is in use. The addresses of tunnels count as in
/// use, and so do those of Services and virtual machines that were not looked up.
fn assess_address(
    allocation: &Allocation<'_>,
    pods: &Pods,
    owners: &Owners,
) -> (OwnerKind, Verdict) {
    let (owner, node) = allocation
        .attribute
        .map_or((AllocationOwner::Unnamed, None), AllocationOwner::of);
    let pod = |namespace: &str, name: &str| match pods.get(&ObjectKey::namespaced(namespace, name))
    {
        None => Lookup::Absent,
        Some(pod) => address_in_pod(pod, allocation.ip),
    };
    let owner_pods = allocation
        .attribute
        .into_iter()
        .flat_map(AllocationOwner::owners);
    // The Calico node has the name of the Kubernetes node wherever pods are looked up.
    let facts = OwnerFacts {
        pod: match owner {
            AllocationOwner::Pod { namespace, name } => pod(namespace, name),
            _ => Lookup::Absent,
        },
        vmi: owners.machine(&owner),
        owner: match owner {
            AllocationOwner::Vmi { .. } => {
                OwnerPodsLookup::of(owner_pods.map(|(namespace, name)| pod(namespace, name)))
            }
            _ => OwnerPodsLookup::Absent,
        },
        service: owners.service(&owner),
        unnamed: Lookup::Absent,
        node,
        ..OwnerFacts::default()
    };
    (owner.kind(), assess(owner.kind(), &facts))
}

fn address_in_pod(pod: &Lookup<Pod>, address: IpAddr) -> Lookup<AddressInPod<'_>> {
    match pod {
        Lookup::Present(pod) => Lookup::Present(PodState::of(pod).address_state(address)),
        Lookup::Absent | Lookup::Unknown => Lookup::Unknown,
    }
}

fn is_in_flight(allocation: &Allocation<'_>, inventory: &Inventory<'_>) -> bool {
    allocation_time(allocation).is_some_and(|since| inventory.now - since < inventory.in_flight)
}

/// Returns the time at which an address was allocated; `None` if it is missing or invalid.
pub fn allocation_time(allocation: &Allocation<'_>) -> Option<OffsetDateTime> {
    owner_time(allocation.attributes()?)
}

/// Returns the time at which the owner with these attributes got its address; `None` if it is
/// missing or invalid.
pub(in crate::ipam) fn owner_time(owner: &BTreeMap<String, String>) -> Option<OffsetDateTime> {
    parse_timestamp(owner.get("timestamp")?)
}

impl AllocatedAddress {
    /// Returns the time of the allocation; `None` if it is missing or invalid.
    pub fn allocation_time(&self) -> Option<OffsetDateTime> {
        owner_time(&self.attributes)
    }
}

/// Returns true if the handle fits the container. The handle of a VMI outlives the containers, so
/// any may use it (IPAM-24).
fn belongs_to_container(handle: &HandleId, container_id: &str) -> bool {
    let handle = handle.as_str();
    let is_of_container = handle
        .strip_suffix(container_id)
        .is_some_and(|rest| rest.is_empty() || rest.ends_with('.'));
    is_of_container || handle.contains(".vmi.")
}

fn endpoint_findings<'a>(
    endpoints: &'a EndpointsByAddress<'_>,
    allocations: &'a AllocationsByAddress<'_>,
    inventory: &'a Inventory<'_>,
) -> impl Iterator<Item = Finding> + 'a {
    // Addresses from other IPAM plugins are usually in no pool.
    let is_in_pool = |address: IpAddr| inventory.pools.iter().any(|pool| pool.contains(address));
    let unallocated = endpoints
        .pairs()
        .filter(move |(ip, _)| is_in_pool(*ip) && allocations.get(*ip).is_empty());
    unallocated.map(|&(address, endpoint)| {
        let (endpoint, node) = (endpoint.name().to_owned(), endpoint.node().to_owned());
        Finding::EndpointWithoutAddress {
            address,
            endpoint,
            node,
        }
    })
}

fn double_allocations(
    endpoints: &EndpointsByAddress<'_>,
    allocations: &AllocationsByAddress<'_>,
) -> Vec<Finding> {
    let mut all: BTreeMap<IpAddr, Vec<String>> = BTreeMap::new();
    for (address, blocks) in allocations.groups().filter(|(_, blocks)| blocks.len() > 1) {
        let name = |(_, block): &(IpAddr, &PackedBlock)| {
            let handle = block
                .allocation(address)
                .and_then(|allocation| allocation.handle_text());
            format!(
                "block {} for handle {}",
                block.cidr,
                handle.unwrap_or("(none)")
            )
        };
        all.entry(address)
            .or_default()
            .extend(blocks.iter().map(name));
    }
    for (address, endpoints) in endpoints
        .groups()
        .filter(|(_, endpoints)| endpoints.len() > 1)
    {
        let names = endpoints
            .iter()
            .map(|(_, endpoint)| format!("endpoint {}", endpoint.name()));
        all.entry(address).or_default().extend(names);
    }
    all.into_iter()
        .map(|(address, holders)| Finding::DoubleAllocation { address, holders })
        .collect()
}

/// Parses the `timestamp` attribute, which is a UTC time in Go's default text form (IPAM-28).
fn parse_timestamp(text: &str) -> Option<OffsetDateTime> {
    let utc = text.strip_suffix(" UTC")?;
    let format = format_description!(
        version = 2,
        "[year]-[month]-[day] [hour]:[minute]:[second][optional [.[subsecond]]] [offset_hour \
         sign:mandatory][offset_minute]"
    );
    OffsetDateTime::parse(utc, &format).ok()
}

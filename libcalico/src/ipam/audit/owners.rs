//! [`Owners`]: the owners of addresses other than endpoints: tunnels, Services and virtual
//! machines.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fmt;
use std::net::IpAddr;

use super::{Finding, Inventory};
use crate::api::{Node, ObjectKey};
use crate::ipam::{AllocationOwner, Lookup, PackedBlock, VmiLookup, tunnels_of};
use crate::kubernetes::{AssignIps, Service};

/// The owners of addresses other than endpoints, as far as they were read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Owners {
    /// The addresses of the nodes' tunnels, and those that managed Services publish.
    pub addresses: Vec<OwnedAddress>,
    /// Namespace and name of every Service; `None` if the Services were not read.
    pub services: Option<BTreeSet<ObjectKey>>,
    /// The results for the VMIs that allocations name. A missing one was not looked up.
    pub machines: BTreeMap<ObjectKey, VmiLookup>,
}

/// An address that an object records as its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnedAddress {
    /// The address.
    pub address: IpAddr,
    /// The object.
    pub owner: AddressOwner,
}

/// An object that records an address. Its text is the one in calicoctl's reports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AddressOwner {
    /// The node of a tunnel.
    Node(String),
    /// A Service of type LoadBalancer whose addresses Calico manages.
    Service(ObjectKey),
}

impl fmt::Display for AddressOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AddressOwner::Node(name) => write!(f, "Node({name})"),
            AddressOwner::Service(key) => write!(f, "Service({key})"),
        }
    }
}

impl Owners {
    /// Adds the addresses of a node's tunnels.
    pub fn add_tunnels(&mut self, node: &Node) {
        let owner = || AddressOwner::Node(node.metadata.name.clone());
        self.addresses
            .extend(tunnels_of(node).map(|(address, _)| OwnedAddress {
                address,
                owner: owner(),
            }));
    }

    /// Adds all Services. `assign` is the setting by which Calico manages a Service, and `None` if
    /// Calico manages none.
    pub fn set_services<'s>(
        &mut self,
        services: impl IntoIterator<Item = &'s Service>,
        assign: Option<AssignIps>,
    ) {
        let mut existing = BTreeSet::new();
        for service in services {
            existing.insert(service.key());
            let request = service.load_balancer_request();
            if assign
                .is_some_and(|assign| request.is_some_and(|request| request.is_managed(assign)))
            {
                let owner = || AddressOwner::Service(service.key());
                self.addresses
                    .extend(service.published().map(|address| OwnedAddress {
                        address,
                        owner: owner(),
                    }));
            }
        }
        self.services = Some(existing);
    }

    /// Adds a Service that exists and cannot be read, after [`Owners::set_services`]. It keeps its
    /// addresses.
    pub fn add_unreadable_service(&mut self, key: ObjectKey) {
        self.services.get_or_insert_default().insert(key);
    }

    /// Returns the objects that record `address`.
    pub fn of(&self, address: IpAddr) -> impl Iterator<Item = &AddressOwner> {
        self.addresses
            .iter()
            .filter(move |owned| owned.address == address)
            .map(|owned| &owned.owner)
    }

    /// Returns the objects that record each address.
    pub(in crate::ipam) fn by_address(&self) -> BTreeMap<IpAddr, Vec<&AddressOwner>> {
        let mut by_address = BTreeMap::<IpAddr, Vec<&AddressOwner>>::new();
        for OwnedAddress { address, owner } in &self.addresses {
            by_address.entry(*address).or_default().push(owner);
        }
        by_address
    }

    /// Returns the result of looking up the Service that an allocation names.
    pub(super) fn service(&self, owner: &AllocationOwner<'_>) -> Lookup<()> {
        match (&self.services, owner.names()) {
            (Some(services), Some((namespace, name))) => {
                let exists = services.contains(&ObjectKey::namespaced(namespace, name));
                if exists {
                    Lookup::Present(())
                } else {
                    Lookup::Absent
                }
            }
            _ => Lookup::Unknown,
        }
    }

    /// Returns the result of looking up the VMI that an allocation names.
    pub(super) fn machine(&self, owner: &AllocationOwner<'_>) -> VmiLookup {
        let key = owner
            .names()
            .map(|(namespace, name)| ObjectKey::namespaced(namespace, name));
        key.and_then(|key| self.machines.get(&key).copied())
            .unwrap_or_default()
    }
}

/// Returns a finding for each address that an object records, that an active pool contains, and
/// that is free.
pub(super) fn findings(inventory: &Inventory<'_>) -> Vec<Finding> {
    let blocks = inventory.blocks.iter().flat_map(PackedBlock::allocated);
    let allocated: HashSet<IpAddr> = blocks
        .filter(|allocation| !allocation.is_cooling())
        .map(|allocation| allocation.ip)
        .collect();
    let is_in_pool = |address: IpAddr| {
        inventory
            .active_pools
            .iter()
            .any(|pool| pool.contains(address))
    };
    let free = inventory
        .owners
        .addresses
        .iter()
        .filter(|owned| !allocated.contains(&owned.address));
    let in_pool = free.filter(|owned| is_in_pool(owned.address));
    let finding = |OwnedAddress { address, owner }: &OwnedAddress| Finding::OwnerWithoutAddress {
        address: *address,
        owner: owner.to_string(),
    };
    in_pool.map(finding).collect()
}

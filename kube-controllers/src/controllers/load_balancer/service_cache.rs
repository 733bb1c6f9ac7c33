use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use libcalico::api::{IpPool, ObjectKey};
use libcalico::ipam::{AffinityOwner, Allocation, Block};
use libcalico::net::Cidr;
use libcalico::store::Entry;
use time::OffsetDateTime;
use tokio::time::Instant;

use super::decision::{HeldAddress, MissingAddress};
use super::pools::LoadBalancerPool;
use super::service::LoadBalancerService;
use super::waiting::WaitingServices;
use crate::controllers::cached::SharedCache;
use crate::watched::Service;
use crate::watches::{Cache, Event};

#[derive(Debug, Default)]
pub(super) struct ServiceCache {
    services: Cache<ObjectKey, LoadBalancerService>,
    pools: Cache<ObjectKey, LoadBalancerPool>,
    blocks: Cache<Cidr, ServiceBlock>,
    /// The addresses of each Service, by block. Contains only Services that hold an address.
    held: BTreeMap<ObjectKey, BTreeMap<Cidr, Vec<HeldAddress>>>,
    in_block: BTreeMap<Cidr, BTreeSet<ObjectKey>>,
    /// Services that wait for an address. Some are reconciled again when another Service loses an address.
    pub(super) waiting: SharedCache<WaitingServices>,
    /// True once all kinds have been listed and all Services have been queued.
    is_ready: bool,
}

/// The allocated addresses of a block for Services.
#[derive(Debug, PartialEq)]
struct ServiceBlock {
    /// The addresses that Services hold, each with the key of its Service.
    held: Vec<(ObjectKey, HeldAddress)>,
    /// The addresses that are cooling down, each with the time of its release.
    cooling: Vec<(IpAddr, OffsetDateTime)>,
}

#[derive(Debug)]
pub(super) struct ServiceState {
    /// The Service, if it exists and has the type LoadBalancer.
    pub(super) service: Option<LoadBalancerService>,
    /// The addresses of the Service, or of an earlier Service with the same name.
    pub(super) held: Vec<HeldAddress>,
    pub(super) pools: Vec<LoadBalancerPool>,
}

impl ServiceCache {
    pub(super) fn apply_service(&mut self, event: &Event<'_, Service>) -> Vec<ObjectKey> {
        let changed = self.services.apply(event, LoadBalancerService::watched);
        for key in changed.iter().filter(|key| self.services.get(key).is_none()) {
            self.waiting.lock().set(key, "", None, Instant::now());
        }
        self.keys_if_ready(changed)
    }

    /// Applies an event. Returns the Services to reconcile: after the first lists, all if a pool for Services changed
    /// and otherwise none.
    pub(super) fn apply_pool(&mut self, event: &Event<'_, Entry<IpPool>>) -> Vec<ObjectKey> {
        let changed = self.pools.apply(event, |entry| LoadBalancerPool::from_pool(&entry.value));
        let touched = if changed.is_empty() { Vec::new() } else { self.services() };
        self.keys_if_ready(touched)
    }

    /// Applies an event. Returns the Services to reconcile: after the first lists, those that have or had addresses in
    /// a changed block, and those that wait for an address that a Service may have lost.
    pub(super) fn apply_block(&mut self, event: &Event<'_, Entry<Block>>) -> Vec<ObjectKey> {
        let changed = self.blocks.apply(event, |entry| ServiceBlock::of(&entry.value));
        let mut touched = BTreeSet::new();
        let mut has_freed = false;
        for cidr in changed {
            let before = self.addresses_in(&cidr);
            for key in self.in_block.remove(&cidr).unwrap_or_default() {
                if let Some(by_block) = self.held.get_mut(&key) {
                    by_block.remove(&cidr);
                    if by_block.is_empty() {
                        self.held.remove(&key);
                    }
                }
                touched.insert(key);
            }
            for (key, held) in self.blocks.get(&cidr).into_iter().flat_map(|block| &block.held) {
                self.held.entry(key.clone()).or_default().entry(cidr).or_default().push(held.clone());
                self.in_block.entry(cidr).or_default().insert(key.clone());
                touched.insert(key.clone());
            }
            let after = self.addresses_in(&cidr);
            has_freed |= before.iter().any(|ip| !after.contains(ip));
        }
        if has_freed {
            touched.extend(self.waiting.lock().for_a_released_address().cloned());
        }
        self.keys_if_ready(touched.into_iter().collect())
    }

    fn addresses_in(&self, block: &Cidr) -> Vec<IpAddr> {
        let services = self.in_block.get(block).into_iter().flatten();
        let by_block = services.filter_map(|key| self.held.get(key)?.get(block));
        by_block.flatten().map(|held| held.ip).collect()
    }

    /// Returns the Services to reconcile: none before all kinds have been listed, all Services once when the lists are
    /// complete, and afterwards `touched`.
    fn keys_if_ready(&mut self, touched: Vec<ObjectKey>) -> Vec<ObjectKey> {
        if self.is_ready {
            return touched;
        }
        self.is_ready = self.services.is_synced() && self.pools.is_synced() && self.blocks.is_synced();
        if self.is_ready { self.services() } else { Vec::new() }
    }

    /// Returns every Service that exists or holds an address.
    pub(super) fn services(&self) -> Vec<ObjectKey> {
        let services = self.services.iter().map(|(key, _)| key);
        services.chain(self.held.keys()).collect::<BTreeSet<_>>().into_iter().cloned().collect()
    }

    /// Returns the times at which the addresses that are cooling down, and that may end the wait for `missing`, were
    /// released.
    pub(super) fn releases_for(&self, missing: &[MissingAddress], pools: &[LoadBalancerPool]) -> Vec<OffsetDateTime> {
        let is_suitable = |ip: IpAddr| missing.iter().any(|missing| missing.accepts(ip, pools));
        let cooling = self.blocks.iter().flat_map(|(_, block)| &block.cooling);
        cooling.filter(|(ip, _)| is_suitable(*ip)).map(|(_, released)| *released).collect()
    }

    /// Returns the state of a Service, or `None` before all kinds have been listed.
    pub(super) fn state_of(&self, key: &ObjectKey) -> Option<ServiceState> {
        self.is_ready.then(|| ServiceState {
            service: self.services.get(key).cloned(),
            held: self.held.get(key).into_iter().flat_map(BTreeMap::values).flatten().cloned().collect(),
            pools: self.pools.iter().map(|(_, pool)| pool.clone()).collect(),
        })
    }
}

impl ServiceBlock {
    /// Returns the addresses of a block; `None` for a deleted block and for a block that is not for Services.
    fn of(block: &Block) -> Option<Self> {
        if block.deleted || block.owner() != Some(AffinityOwner::of_services()) {
            return None;
        }
        let service_address = |held: Allocation<'_>| {
            let attributes = held.attributes()?;
            let key = ObjectKey::namespaced(attributes.get("namespace")?, attributes.get("service")?);
            Some((key, HeldAddress::from_allocation(&held)?))
        };
        let cooling = block.allocated().filter_map(|held| Some((held.ip, held.released_at()?)));
        Some(ServiceBlock { held: block.allocated().filter_map(service_address).collect(), cooling: cooling.collect() })
    }
}

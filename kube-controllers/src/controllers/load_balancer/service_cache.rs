use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use libcalico::api::{IpPool, ObjectKey};
use libcalico::ipam::{AffinityOwner, Allocation, Block};
use libcalico::net::Cidr;
use libcalico::store::Entry;
use time::OffsetDateTime;
use tokio::time::Instant;

use super::decision::{HeldAddress, MissingAddress, may_take};
use super::offers::Offers;
use super::pools::LoadBalancerPool;
use super::request::AddressRequest;
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
    /// Services that wait for an address. Some are reconciled again when another Service loses an
    /// address.
    pub(super) waiting: SharedCache<WaitingServices>,
    /// The addresses that Services lost, until another Service has them or no waiting Service takes
    /// them.
    offers: Offers,
    /// The addresses that the controller is releasing for each waiting Service. Their loss does not
    /// end its wait.
    releasing: BTreeMap<ObjectKey, Vec<IpAddr>>,
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
        let mut next = Vec::new();
        for key in changed
            .iter()
            .filter(|key| self.services.get(key).is_none())
            .cloned()
            .collect::<Vec<_>>()
        {
            self.waiting.lock().set(&key, "", None, Instant::now());
            self.releasing.remove(&key);
            next.extend(self.pass_on(&key));
        }
        self.keys_if_ready(changed.into_iter().chain(next).collect())
    }

    /// Applies an event. Returns the Services to reconcile: after the first lists, all if a pool
    /// for Services changed and otherwise none.
    pub(super) fn apply_pool(&mut self, event: &Event<'_, Entry<IpPool>>) -> Vec<ObjectKey> {
        let changed = self
            .pools
            .apply(event, |entry| LoadBalancerPool::from_pool(&entry.value));
        let touched = if changed.is_empty() {
            Vec::new()
        } else {
            self.services()
        };
        self.keys_if_ready(touched)
    }

    /// Applies an event. Returns the Services to reconcile: after the first lists, those that
    /// gained or lost addresses in a changed block, and for each address that a Service lost one
    /// Service that waits for it.
    pub(super) fn apply_block(&mut self, event: &Event<'_, Entry<Block>>) -> Vec<ObjectKey> {
        let changed = self
            .blocks
            .apply(event, |entry| ServiceBlock::of(&entry.value));
        let (mut touched, mut freed) = (BTreeSet::new(), Vec::new());
        for cidr in changed {
            let mut before: BTreeMap<ObjectKey, Vec<HeldAddress>> = BTreeMap::new();
            for key in self.in_block.remove(&cidr).unwrap_or_default() {
                if let Some(by_block) = self.held.get_mut(&key) {
                    before.insert(key.clone(), by_block.remove(&cidr).unwrap_or_default());
                    if by_block.is_empty() {
                        self.held.remove(&key);
                    }
                }
            }
            for (key, held) in self
                .blocks
                .get(&cidr)
                .into_iter()
                .flat_map(|block| &block.held)
            {
                self.held
                    .entry(key.clone())
                    .or_default()
                    .entry(cidr)
                    .or_default()
                    .push(held.clone());
                self.in_block.entry(cidr).or_default().insert(key.clone());
                self.offers.withdraw(&held.ip);
            }
            let after = self.in_block.get(&cidr).cloned().unwrap_or_default();
            let owners: BTreeSet<&ObjectKey> = before.keys().chain(&after).collect();
            let held_now =
                |key: &ObjectKey| self.held.get(key).and_then(|by_block| by_block.get(&cidr));
            let in_use: BTreeSet<IpAddr> = after
                .iter()
                .filter_map(held_now)
                .flatten()
                .map(|held| held.ip)
                .collect();
            for key in owners {
                let was = before.get(key).map_or(&[][..], Vec::as_slice);
                let now = held_now(key).map_or(&[][..], Vec::as_slice);
                if was != now && !self.is_own_release(key, was, now) {
                    touched.insert(key.clone());
                }
            }
            let lost = before
                .into_iter()
                .flat_map(|(key, held)| held.into_iter().map(move |held| (key.clone(), held.ip)));
            freed.extend(lost.filter(|(_, ip)| !in_use.contains(ip)));
            if self.blocks.get(&cidr).is_none() {
                touched.extend(self.waiting_within(&cidr));
            }
        }
        for (owner, ip) in freed {
            if let Some(releasing) = self.releasing.get_mut(&owner) {
                releasing.retain(|released| *released != ip);
            }
            touched.extend(self.offer(ip, Some(&owner)));
        }
        self.releasing.retain(|_, ips| !ips.is_empty());
        self.keys_if_ready(touched.into_iter().collect())
    }

    /// Returns true if a waiting Service lost only addresses that the controller releases for it.
    /// It has been decided with the addresses that it has now, so it need not be reconciled.
    fn is_own_release(&self, key: &ObjectKey, was: &[HeldAddress], now: &[HeldAddress]) -> bool {
        let Some(releasing) = self.releasing.get(key) else {
            return false;
        };
        let kept = was.iter().filter(|held| !releasing.contains(&held.ip));
        kept.eq(now) && self.waiting.lock().waits_for_a_release(key)
    }

    /// Returns the Services that wait for an address in `block`, a block that no longer exists. The
    /// range may be free now for a block of another size.
    fn waiting_within(&self, block: &Cidr) -> Vec<ObjectKey> {
        let pools = self.pools();
        let requests_within = |key: &ObjectKey| {
            let request = self
                .services
                .get(key)
                .and_then(|service| AddressRequest::parse(service, &pools).ok());
            request.is_some_and(|request| request.addresses.iter().any(|ip| block.contains(*ip)))
        };
        let waiting = self.waiting.lock();
        let keys = waiting.for_a_released_address().map(|(key, _)| key);
        keys.filter(|key| requests_within(key)).cloned().collect()
    }

    /// Offers a free address to the Service that has waited longest of those that may take it: to
    /// the first one after its release by `owner`, and to the next one without. Returns the Service
    /// to reconcile.
    fn offer(&mut self, ip: IpAddr, owner: Option<&ObjectKey>) -> Option<ObjectKey> {
        if !self.is_ready {
            return None;
        }
        let pools = self.pools();
        let waiting = self.waiting.lock();
        let held = |key: &ObjectKey| {
            self.held
                .get(key)
                .into_iter()
                .flat_map(BTreeMap::values)
                .flatten()
                .map(|held| held.ip)
        };
        let suits = |key: &ObjectKey| {
            self.services
                .get(key)
                .is_none_or(|service| may_take(service, &pools, ip, held(key)))
        };
        let suitable = waiting
            .for_a_released_address()
            .filter(|(key, _)| suits(key));
        match owner {
            Some(owner) => self.offers.offer(ip, Some(owner), suitable),
            None => self.offers.offer_to_next(ip, suitable),
        }
    }

    /// Records that a Service has these addresses.
    pub(super) fn took(&mut self, key: &ObjectKey, ips: &[IpAddr]) {
        self.offers.took(key, ips);
    }

    /// Offers the addresses that a Service did not take to other Services, but while the Service
    /// waits only those that are not cooling down. Returns the Services to reconcile.
    pub(super) fn pass_on(&mut self, key: &ObjectKey) -> Vec<ObjectKey> {
        let (waits, now) = (self.waiting.lock().waits_for_a_release(key), Instant::now());
        let offers = self.offers.of(key).into_iter();
        let ips = offers
            .filter(|(_, end)| !waits || end.is_none_or(|end| end <= now))
            .map(|(ip, _)| ip);
        ips.collect::<Vec<_>>()
            .into_iter()
            .filter_map(|ip| self.offer(ip, None))
            .collect()
    }

    /// Records the addresses that the controller is about to release for a Service; empty if a
    /// release failed.
    pub(super) fn set_releasing(&mut self, key: &ObjectKey, mut ips: Vec<IpAddr>) {
        let held: Vec<IpAddr> = self
            .held
            .get(key)
            .into_iter()
            .flat_map(BTreeMap::values)
            .flatten()
            .map(|held| held.ip)
            .collect();
        // The watch has delivered the release of the others already.
        ips.retain(|ip| held.contains(ip));
        self.releasing.remove(key);
        if !ips.is_empty() {
            self.releasing.insert(key.clone(), ips);
        }
    }

    /// Returns the Services to reconcile: none before all kinds have been listed, all Services once
    /// when the lists are complete, and afterwards `touched`.
    fn keys_if_ready(&mut self, touched: Vec<ObjectKey>) -> Vec<ObjectKey> {
        if self.is_ready {
            return touched;
        }
        self.is_ready =
            self.services.is_synced() && self.pools.is_synced() && self.blocks.is_synced();
        if self.is_ready {
            self.services()
        } else {
            Vec::new()
        }
    }

    /// Returns every Service that exists or holds an address.
    pub(super) fn services(&self) -> Vec<ObjectKey> {
        let services = self.services.iter().map(|(key, _)| key);
        services
            .chain(self.held.keys())
            .collect::<BTreeSet<_>>()
            .into_iter()
            .cloned()
            .collect()
    }

    /// Returns the addresses that are cooling down, and that may end the wait for `missing`, each
    /// with the time of its release.
    pub(super) fn cooling_for(
        &self,
        missing: &[MissingAddress],
        pools: &[LoadBalancerPool],
    ) -> Vec<(IpAddr, OffsetDateTime)> {
        let is_suitable = |ip: IpAddr| missing.iter().any(|missing| missing.accepts(ip, pools));
        let cooling = self.blocks.iter().flat_map(|(_, block)| &block.cooling);
        cooling
            .filter(|(ip, _)| is_suitable(*ip))
            .copied()
            .collect()
    }

    /// Offers one of `ends`, addresses with the ends of their cooldowns, to a waiting Service.
    /// Returns the end of that cooldown, or `None` if other waiting Services have the offers of all
    /// these addresses.
    pub(super) fn reserve(
        &mut self,
        key: &ObjectKey,
        ends: &[(IpAddr, Instant)],
    ) -> Option<Instant> {
        let waiting = self.waiting.lock();
        self.offers
            .reserve(key, ends, |other| waiting.waits_for_a_release(other))
    }

    /// Returns the state of a Service, or `None` before all kinds have been listed.
    pub(super) fn state_of(&self, key: &ObjectKey) -> Option<ServiceState> {
        self.is_ready.then(|| ServiceState {
            service: self.services.get(key).cloned(),
            held: self
                .held
                .get(key)
                .into_iter()
                .flat_map(BTreeMap::values)
                .flatten()
                .cloned()
                .collect(),
            pools: self.pools(),
        })
    }

    fn pools(&self) -> Vec<LoadBalancerPool> {
        self.pools.iter().map(|(_, pool)| pool.clone()).collect()
    }
}

impl ServiceBlock {
    /// Returns the addresses of a block; `None` for a deleted block and for a block that is not for
    /// Services.
    fn of(block: &Block) -> Option<Self> {
        if block.deleted || block.owner() != Some(AffinityOwner::of_services()) {
            return None;
        }
        let service_address = |held: Allocation<'_>| {
            let attributes = held.attributes()?;
            let key =
                ObjectKey::namespaced(attributes.get("namespace")?, attributes.get("service")?);
            Some((key, HeldAddress::from_allocation(&held)?))
        };
        let cooling = block
            .allocated()
            .filter_map(|held| Some((held.ip, held.released_at()?)));
        Some(ServiceBlock {
            held: block.allocated().filter_map(service_address).collect(),
            cooling: cooling.collect(),
        })
    }
}

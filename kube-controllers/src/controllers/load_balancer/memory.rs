//! [`Memory`]: the Services, the pools for them, and which of them holds what.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use libcalico::api::{IpPool, ObjectKey};
use libcalico::ipam::{Block, Owner};
use libcalico::names::LOAD_BALANCER_HOST;
use libcalico::net::Cidr;
use libcalico::store::Entry;

use super::decision::Held;
use super::pools::LoadBalancerPool;
use super::service::Balanced;
use crate::feed::{Cache, Event};
use crate::watched::Service;

/// What was heard.
#[derive(Debug, Default)]
pub(super) struct Memory {
    services: Cache<ObjectKey, Balanced>,
    pools: Cache<ObjectKey, LoadBalancerPool>,
    blocks: Cache<Cidr, Vec<(ObjectKey, Held)>>,
    /// What each Service holds, by block (KC-506). No Service is here that holds nothing (B-32).
    held: BTreeMap<ObjectKey, BTreeMap<Cidr, Vec<Held>>>,
    /// The Services whose addresses each block has.
    in_block: BTreeMap<Cidr, BTreeSet<ObjectKey>>,
    /// Services that lack an address: looked at again when one becomes free.
    unserved: BTreeSet<ObjectKey>,
    /// Everything was heard of, and the Services were told to the queue.
    ready: bool,
}

/// What is known of one Service.
#[derive(Debug)]
pub(super) struct Seen {
    /// The Service, if it is there and of the type.
    pub(super) service: Option<Balanced>,
    /// What it, or a namesake of it, holds.
    pub(super) held: Vec<Held>,
    /// The pools.
    pub(super) pools: Vec<LoadBalancerPool>,
}

impl Memory {
    /// Takes notice; returns the Services to look at.
    pub(super) fn hear_service(&mut self, event: &Event<'_, Service>) -> Vec<ObjectKey> {
        let changed = self.services.follow(event, Balanced::watched);
        for key in &changed {
            if self.services.get(key).is_none() {
                self.unserved.remove(key);
            }
        }
        self.told(changed)
    }

    /// Takes notice; returns the Services to look at: any may want an address of the pool, or have one.
    pub(super) fn hear_pool(&mut self, event: &Event<'_, Entry<IpPool>>) -> Vec<ObjectKey> {
        let changed = self.pools.follow(event, |entry| LoadBalancerPool::of(&entry.value));
        let touched = if changed.is_empty() { Vec::new() } else { self.all() };
        self.told(touched)
    }

    /// Takes notice; returns the Services to look at: those whose addresses changed, and those that wait for one.
    pub(super) fn hear_block(&mut self, event: &Event<'_, Entry<Block>>) -> Vec<ObjectKey> {
        let changed = self.blocks.follow(event, |entry| holders(&entry.value));
        let mut touched = BTreeSet::new();
        let mut freed = false;
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
            for (key, held) in self.blocks.get(&cidr).into_iter().flatten() {
                self.held.entry(key.clone()).or_default().entry(cidr).or_default().push(held.clone());
                self.in_block.entry(cidr).or_default().insert(key.clone());
                touched.insert(key.clone());
            }
            let after = self.addresses_in(&cidr);
            freed |= before.iter().any(|ip| !after.contains(ip));
        }
        if freed {
            touched.extend(self.unserved.iter().cloned());
        }
        self.told(touched.into_iter().collect())
    }

    fn addresses_in(&self, block: &Cidr) -> Vec<IpAddr> {
        let services = self.in_block.get(block).into_iter().flatten();
        let by_block = services.filter_map(|key| self.held.get(key)?.get(block));
        by_block.flatten().map(|held| held.ip).collect()
    }

    /// Nothing before everything was heard of, and then everything.
    fn told(&mut self, touched: Vec<ObjectKey>) -> Vec<ObjectKey> {
        if self.ready {
            return touched;
        }
        self.ready = self.services.is_synced() && self.pools.is_synced() && self.blocks.is_synced();
        if self.ready { self.all() } else { Vec::new() }
    }

    /// Every Service that there is or that holds an address.
    pub(super) fn all(&self) -> Vec<ObjectKey> {
        let services = self.services.iter().map(|(key, _)| key);
        services.chain(self.held.keys()).collect::<BTreeSet<_>>().into_iter().cloned().collect()
    }

    /// What is known of a Service; `None` before everything was heard of.
    pub(super) fn of(&self, key: &ObjectKey) -> Option<Seen> {
        self.ready.then(|| Seen {
            service: self.services.get(key).cloned(),
            held: self.held.get(key).into_iter().flat_map(BTreeMap::values).flatten().cloned().collect(),
            pools: self.pools.iter().map(|(_, pool)| pool.clone()).collect(),
        })
    }

    /// Whether the Service lacks an address.
    pub(super) fn set_unserved(&mut self, key: &ObjectKey, unserved: bool) {
        if unserved {
            self.unserved.insert(key.clone());
        } else {
            self.unserved.remove(key);
        }
    }
}

/// The Services that hold addresses of a block; `None` for a block of nodes. Resting addresses have no holder (B-31).
fn holders(block: &Block) -> Option<Vec<(ObjectKey, Held)>> {
    if block.deleted || block.owner() != Some(Owner::Virtual(LOAD_BALANCER_HOST.into())) {
        return None;
    }
    let holder = |held: libcalico::ipam::Allocation<'_>| {
        let attributes = held.attributes()?;
        let key = ObjectKey::namespaced(attributes.get("namespace")?, attributes.get("service")?);
        Some((key, Held::of(&held)?))
    };
    Some(block.allocated().filter_map(holder).collect())
}

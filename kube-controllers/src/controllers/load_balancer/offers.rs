//! [`Offers`]: addresses that became free, each with the waiting Service that is reconciled for it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use libcalico::api::ObjectKey;
use tokio::time::Instant;

/// The free addresses that no Service has taken yet, and those that are cooling down. One Service
/// at a time is reconciled for each address, because all waiting Services together would send many
/// requests for one address.
#[derive(Debug, Default)]
pub(super) struct Offers(BTreeMap<IpAddr, Offer>);

#[derive(Debug)]
struct Offer {
    to: ObjectKey,
    /// The Services that have had the offer, with the present one.
    tried: BTreeSet<ObjectKey>,
    /// The end of the cooldown of the address, at which the Service is reconciled; `None` if no
    /// cooldown is known.
    cooldown_end: Option<Instant>,
}

impl Offers {
    /// Offers an address that `owner` released to one of `waiting`, the Services that may take the
    /// address with the order in which they began to wait. Returns the Service to reconcile.
    pub(super) fn offer<'k>(
        &mut self,
        ip: IpAddr,
        owner: Option<&ObjectKey>,
        waiting: impl Iterator<Item = (&'k ObjectKey, u64)>,
    ) -> Option<ObjectKey> {
        self.offer_to_others(ip, owner.cloned().into_iter().collect(), waiting)
    }

    /// Returns the addresses that are offered to the Service, each with the end of its cooldown.
    pub(super) fn of(&self, key: &ObjectKey) -> Vec<(IpAddr, Option<Instant>)> {
        let own = self.0.iter().filter(|(_, offer)| offer.to == *key);
        own.map(|(ip, offer)| (*ip, offer.cooldown_end)).collect()
    }

    /// Offers one of `ends`, addresses with the ends of their cooldowns, the earliest first, to a
    /// Service. Returns the end of that cooldown, or `None` if all these addresses are offered to
    /// other Services of which `waits` is true.
    pub(super) fn reserve(
        &mut self,
        key: &ObjectKey,
        ends: &[(IpAddr, Instant)],
        waits: impl Fn(&ObjectKey) -> bool,
    ) -> Option<Instant> {
        let mut first_own = None;
        for (ip, end) in ends {
            if let Some(own) = self.0.get_mut(ip).filter(|offer| offer.to == *key) {
                own.cooldown_end = Some(*end);
                first_own = first_own.or(Some(*end));
            }
        }
        if first_own.is_some() {
            return first_own;
        }
        let is_open = |ip: &IpAddr| self.0.get(ip).is_none_or(|offer| !waits(&offer.to));
        let (ip, end) = *ends.iter().find(|(ip, _)| is_open(ip))?;
        let (to, tried) = (key.clone(), BTreeSet::from([key.clone()]));
        self.0.insert(
            ip,
            Offer {
                to,
                tried,
                cooldown_end: Some(end),
            },
        );
        Some(end)
    }

    /// Offers an address to a Service that has not had the offer, or to none. Returns the Service
    /// to reconcile.
    pub(super) fn offer_to_next<'k>(
        &mut self,
        ip: IpAddr,
        waiting: impl Iterator<Item = (&'k ObjectKey, u64)>,
    ) -> Option<ObjectKey> {
        let offer = self.0.remove(&ip)?;
        self.offer_to_others(ip, offer.tried, waiting)
    }

    fn offer_to_others<'k>(
        &mut self,
        ip: IpAddr,
        mut tried: BTreeSet<ObjectKey>,
        waiting: impl Iterator<Item = (&'k ObjectKey, u64)>,
    ) -> Option<ObjectKey> {
        let untried = waiting.filter(|(key, _)| !tried.contains(*key));
        let busy: BTreeSet<&ObjectKey> = self.0.values().map(|offer| &offer.to).collect();
        // The Services of one namespace do not keep those of another one waiting.
        let had_offer =
            |key: &ObjectKey| tried.iter().any(|other| other.namespace == key.namespace);
        let (key, _) =
            untried.min_by_key(|(key, since)| (busy.contains(key), had_offer(key), *since))?;
        tried.insert(key.clone());
        self.0.insert(
            ip,
            Offer {
                to: key.clone(),
                tried,
                cooldown_end: None,
            },
        );
        Some(key.clone())
    }

    /// Records that a Service has these addresses. If one of them was offered to another Service,
    /// that Service gets an offer of this Service instead.
    pub(super) fn took(&mut self, key: &ObjectKey, ips: &[IpAddr]) {
        for ip in ips {
            let Some(offer) = self.0.remove(ip).filter(|offer| offer.to != *key) else {
                continue;
            };
            if let Some(own) = self.0.values_mut().find(|own| own.to == *key) {
                own.tried.insert(offer.to.clone());
                own.to = offer.to;
            }
        }
    }

    /// Records that an address is no longer free.
    pub(super) fn withdraw(&mut self, ip: &IpAddr) {
        self.0.remove(ip);
    }
}

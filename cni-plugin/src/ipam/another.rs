//! Another address in place of one that the kernel has in use.

use std::net::IpAddr;

use ipam_plugin::busy;
use ipam_plugin::clock::{Clock, SystemClock};
use ipam_plugin::cni::{self, IpamCall};
use ipam_plugin::prelude::Prelude;
use ipam_plugin::release_addresses::release_addresses;
use libcalico::ipam::ReleaseRequest;
use libcalico::net::IpVersion;
use netconf::{CniError, CniResult};

use super::Lease;
use crate::dataplane::BusyRoute;
use crate::session::{Session, store_error};

/// Puts another address of the same family in the place of the busy one, which stays allocated to the container until
/// [`release_others`] and is passed over by the node's next ADDs. After an error the lease has the busy address still.
pub async fn choose_another(session: &Session, lease: &mut Lease, route: BusyRoute) -> Result<(), CniError> {
    let (ip, clock) = (route.address, SystemClock::start());
    pass_over(lease, route);
    let Some(chooser) = &lease.chooser else { return Err(CniError::internal("the address was not chosen by IPAM")) };
    let version = IpVersion::of(ip);
    let call = IpamCall {
        assign_ipv4: version == IpVersion::V4,
        assign_ipv6: version == IpVersion::V6,
        // What it knows is of all families of the pod.
        recent_file: None,
        ..(**chooser).clone()
    };
    let prelude = Prelude::read(&session.store, &call.prelude_query()).await;
    let prelude = prelude.map_err(|error| store_error("read what is needed to assign an address", &error))?;
    let other = super::with_addresses(cni::add(&session.store, &clock, &call, prelude, None).await?.result)?;
    lease.replace(ip, &other);
    Ok(())
}

/// Notes that an address of the lease is busy, for this ADD and for the node's next ones.
pub fn pass_over(lease: &mut Lease, route: BusyRoute) {
    if let Some(file) = lease.chooser.as_ref().and_then(|chooser| chooser.busy_file.as_deref()) {
        busy::note(file, route.address, &route.route, SystemClock::start().now());
    }
    lease.busy.push(route);
}

/// Releases the addresses that an ADD which succeeded has no use for: those that were found busy, and those of the
/// pod's earlier sandbox. The endpoint must list none of them. After a failure they stay allocated, and a DEL releases
/// them.
pub async fn release_others(session: &Session, lease: &Lease) {
    if let Some(outgoing) = &lease.outgoing {
        outgoing.release(session).await;
    }
    let Some(chooser) = lease.chooser.as_ref().filter(|_| !lease.busy.is_empty()) else { return };
    let handle = chooser.handle();
    let requests: Vec<_> = lease
        .busy
        .iter()
        .map(|busy| ReleaseRequest { ip: busy.address, handle: Some(handle.clone()), sequence: None })
        .collect();
    let _releasing = chooser.releasing();
    if let Err(error) = release_addresses(&session.store, &SystemClock::start(), &requests).await {
        tracing::warn!(%handle, %error, "busy addresses stay allocated to the container; its DEL releases them");
    }
}

impl Lease {
    /// The addresses that the container holds because of this ADD, in use or not.
    pub(super) fn held(&self) -> impl Iterator<Item = IpAddr> + '_ {
        let is_replaced = |busy: &&BusyRoute| !self.addresses.contains(&busy.address);
        self.addresses.iter().copied().chain(self.busy.iter().filter(is_replaced).map(|busy| busy.address))
    }

    /// Puts the address of `other` in the place of `busy`, and the route to it in that one's.
    fn replace(&mut self, busy: IpAddr, other: &CniResult) {
        let place = self.result.ips.iter().position(|ip| ip.address.addr() == busy);
        if let (Some(place), Some(ip)) = (place, other.ips.first()) {
            self.result.ips[place] = ip.clone();
        }
        let place = self.result.routes.iter().position(|route| route.dst.addr() == busy);
        if let (Some(place), Some(route)) = (place, other.routes.first()) {
            self.result.routes[place] = route.clone();
        }
        self.addresses = self.result.ips.iter().map(|ip| ip.address.addr()).collect();
    }
}

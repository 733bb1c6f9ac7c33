//! [`Wanted`]: the debts that an ADD must see tried before it goes on.

use std::net::IpAddr;

use ipam_plugin::journal::Debt;

use crate::annotations::{Addresses, Annotations};
use crate::ipam;
use crate::session::{Known, Session};

/// An attachment, its pod, and the addresses that an ADD asks for.
pub(super) struct Wanted {
    pod: Option<(String, String)>,
    attachment: (String, String, String),
    addresses: Vec<IpAddr>,
}

impl Wanted {
    pub(super) fn of(session: &Session, known: &Known) -> Wanted {
        let call = &session.call;
        let pod = call.args.pod().map(|pod| (pod.namespace.to_owned(), pod.name.to_owned()));
        let attachment = (call.conf.name.clone(), call.container_id.clone(), call.ifname.clone());
        let mut addresses: Vec<IpAddr> = ipam::call_of(session).and_then(|call| call.ip).into_iter().collect();
        let described = known.kubernetes.as_ref().ok().and_then(|facts| facts.pod.as_ref());
        // Annotations that make no sense fail the ADD itself, a little later.
        let annotations =
            described.and_then(|described| Annotations::of(&described.pod, &described.namespace, &call.conf).ok());
        match annotations.map(|annotations| annotations.addresses) {
            Some(Addresses::Requested(asked) | Addresses::Fixed(asked)) => addresses.extend(asked),
            Some(Addresses::Allocated) | None => {}
        }
        Wanted { pod, attachment, addresses }
    }

    /// Returns true if the debt is of the attachment or of its pod, or may hold one of the addresses.
    pub(super) fn is_owed_by(&self, debt: &Debt) -> bool {
        let (network, container_id, ifname) = &self.attachment;
        let is_of_pod = || {
            let pod = debt.pod();
            pod.is_some_and(|(namespace, name)| {
                self.pod.as_ref().is_some_and(|(own, pod)| own == namespace && *pod == name)
            })
        };
        // Entries of earlier releases, and of runtimes without prevResult, do not tell their addresses.
        let may_hold = || {
            !self.addresses.is_empty()
                && (debt.addresses.is_empty() || debt.addresses.iter().any(|ip| self.addresses.contains(ip)))
        };
        debt.is_of_attachment(network, container_id, ifname) || is_of_pod() || may_hold()
    }
}

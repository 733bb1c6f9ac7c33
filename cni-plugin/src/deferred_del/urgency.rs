//! [`Wanted`]: the debts that an ADD must see tried before it goes on.

use std::net::IpAddr;

use ipam_plugin::journal::Debt;
use netconf::Call;

use crate::annotations::{Addresses, Annotations};
use crate::pod::Described;

/// The urgency of a debt for an ADD, the most urgent first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Urgency {
    /// The debt is of the same pod, or holds an address that the ADD asks for.
    Must,
    /// The debt may hold an address that the ADD asks for: entries of earlier releases, and of runtimes without
    /// prevResult, do not tell their addresses.
    Perhaps,
    /// Any other debt.
    Other,
}

/// An attachment, its pod, and the addresses that an ADD asks for.
pub(super) struct Wanted {
    pod: Option<(String, String)>,
    attachment: (String, String, String),
    addresses: Vec<IpAddr>,
}

impl Wanted {
    /// Creates the wanted attachment of `call`, which asks for the address `asked` in CNI_ARGS.
    pub(super) fn new(call: &Call, asked: Option<IpAddr>, described: Option<&Described>) -> Wanted {
        let pod = call.args.pod().map(|pod| (pod.namespace.to_owned(), pod.name.to_owned()));
        let attachment = (call.conf.name.clone(), call.container_id.clone(), call.ifname.clone());
        let mut addresses = Vec::from_iter(asked);
        // Annotations that make no sense fail the ADD itself, a little later.
        let annotations =
            described.and_then(|described| Annotations::of(&described.pod, &described.namespace, &call.conf).ok());
        match annotations.map(|annotations| annotations.addresses) {
            Some(Addresses::Requested(asked) | Addresses::Fixed(asked)) => addresses.extend(asked),
            Some(Addresses::Allocated) | None => {}
        }
        Wanted { pod, attachment, addresses }
    }

    /// Returns how urgent a debt is for the ADD.
    pub(super) fn urgency(&self, debt: &Debt) -> Urgency {
        let (network, container_id, ifname) = &self.attachment;
        let is_of_pod = debt.pod().is_some_and(|(namespace, name)| {
            self.pod.as_ref().is_some_and(|(own, pod)| own == namespace && *pod == name)
        });
        let holds_wanted = debt.addresses.iter().any(|ip| self.addresses.contains(ip));
        if is_of_pod || holds_wanted || debt.is_of_attachment(network, container_id, ifname) {
            return Urgency::Must;
        }
        match debt.addresses.is_empty() && !self.addresses.is_empty() {
            true => Urgency::Perhaps,
            false => Urgency::Other,
        }
    }
}

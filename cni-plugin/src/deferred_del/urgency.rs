use std::net::IpAddr;

use ipam_plugin::journal::PendingDel;
use netconf::Call;

use crate::annotations::{AddressSource, Annotations};
use crate::pod::PodWithNamespace;

/// The urgency of a deferred DEL for an ADD, the most urgent first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Urgency {
    /// The deferred DEL is of the same pod or attachment, or of an address that the ADD requests.
    Required,
    /// The deferred DEL may be of an address that the ADD requests: entries of earlier versions, and of runtimes
    /// without prevResult, do not contain addresses.
    PossiblyRequired,
    NotRequired,
}

/// The call of an ADD and the addresses that the ADD requests.
pub(super) struct AddTarget<'a> {
    call: &'a Call,
    addresses: Vec<IpAddr>,
}

impl<'a> AddTarget<'a> {
    /// `requested` is the address in CNI_ARGS; `described` is the pod, whose annotations may request further addresses.
    pub(super) fn new(call: &'a Call, requested: Option<IpAddr>, described: Option<&PodWithNamespace>) -> Self {
        let mut addresses = Vec::from_iter(requested);
        // Invalid annotations fail the ADD itself, at a later step.
        let annotations = described.and_then(|pod| Annotations::read(&pod.pod, &pod.namespace, &call.conf).ok());
        match annotations.map(|annotations| annotations.addresses) {
            Some(AddressSource::Requested(requested) | AddressSource::Fixed(requested)) => addresses.extend(requested),
            Some(AddressSource::AnyOf(list)) => addresses.extend(list.v4.into_iter().chain(list.v6)),
            Some(AddressSource::Allocated) | None => {}
        }
        AddTarget { call, addresses }
    }

    pub(super) fn urgency(&self, pending_del: &PendingDel) -> Urgency {
        let Call { conf, container_id, ifname, args, .. } = self.call;
        let is_of_pod = args.pod().is_some_and(|own| {
            pending_del.pod().is_some_and(|(namespace, name)| own.namespace == namespace && own.name == name)
        });
        let has_requested_address = pending_del.addresses.iter().any(|ip| self.addresses.contains(ip));
        if is_of_pod || has_requested_address || pending_del.is_of_attachment(&conf.name, container_id, ifname) {
            return Urgency::Required;
        }
        let may_have_requested_address = pending_del.addresses.is_empty() && !self.addresses.is_empty();
        if may_have_requested_address { Urgency::PossiblyRequired } else { Urgency::NotRequired }
    }
}

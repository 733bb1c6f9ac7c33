//! [`AddTarget`]: selects the deferred DELs that have to be tried before an ADD continues.

use std::net::IpAddr;

use ipam_plugin::journal::PendingDel;
use netconf::Call;

use crate::annotations::{AddressSource, Annotations};
use crate::pod::PodWithNamespace;

/// The urgency of a deferred DEL for an ADD, the most urgent first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Urgency {
    /// The deferred DEL is of the same pod, or of an address that the ADD requests.
    Required,
    /// The deferred DEL may be of an address that the ADD requests: entries of earlier versions, and of runtimes
    /// without prevResult, do not contain addresses.
    PossiblyRequired,
    /// Any other deferred DEL.
    NotRequired,
}

/// The attachment of an ADD, its pod, and the addresses that the ADD requests.
pub(super) struct AddTarget {
    pod: Option<(String, String)>,
    attachment: (String, String, String),
    addresses: Vec<IpAddr>,
}

impl AddTarget {
    /// Returns the attachment of `call`. `requested` is the address in CNI_ARGS.
    pub(super) fn new(call: &Call, requested: Option<IpAddr>, described: Option<&PodWithNamespace>) -> AddTarget {
        let pod = call.args.pod().map(|pod| (pod.namespace.to_owned(), pod.name.to_owned()));
        let attachment = (call.conf.name.clone(), call.container_id.clone(), call.ifname.clone());
        let mut addresses = Vec::from_iter(requested);
        // Invalid annotations fail the ADD itself, at a later step.
        let annotations = described.and_then(|pod| Annotations::read(&pod.pod, &pod.namespace, &call.conf).ok());
        match annotations.map(|annotations| annotations.addresses) {
            Some(AddressSource::Requested(requested) | AddressSource::Fixed(requested)) => addresses.extend(requested),
            Some(AddressSource::Allocated) | None => {}
        }
        AddTarget { pod, attachment, addresses }
    }

    /// Returns the urgency of a deferred DEL for the ADD.
    pub(super) fn urgency(&self, pending_del: &PendingDel) -> Urgency {
        let (network, container_id, ifname) = &self.attachment;
        let pod = pending_del.pod().map(|(namespace, name)| (namespace.to_owned(), name));
        let is_of_pod = pod.is_some() && pod == self.pod;
        let has_requested_address = pending_del.addresses.iter().any(|ip| self.addresses.contains(ip));
        if is_of_pod || has_requested_address || pending_del.is_of_attachment(network, container_id, ifname) {
            return Urgency::Required;
        }
        let may_have_requested_address = pending_del.addresses.is_empty() && !self.addresses.is_empty();
        if may_have_requested_address { Urgency::PossiblyRequired } else { Urgency::NotRequired }
    }
}

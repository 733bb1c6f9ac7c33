use std::collections::BTreeSet;
use std::net::IpAddr;

use allocation::journal::PendingDel;
use netconf::Call;

use crate::annotations::{AddressSource, Annotations};
use crate::pod::PodWithNamespace;

/// The urgency of a deferred DEL for an ADD, the most urgent first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Urgency {
    /// The deferred DEL is of the same pod or container, or of an address that the ADD requests.
    Required,
    /// The deferred DEL may be of an address that the ADD requests: entries of earlier versions,
    /// and of runtimes without prevResult, do not contain addresses. Or it is of an address in the
    /// ADD's list: another one may be free, and a tenant's list may contain hundreds.
    PossiblyRequired,
    NotRequired,
}

/// The call of an ADD and the addresses that the ADD requests.
pub(super) struct AddTarget<'a> {
    call: &'a Call,
    addresses: Vec<IpAddr>,
    /// The addresses of the pod's list, of which the ADD requests any.
    list: BTreeSet<IpAddr>,
}

impl<'a> AddTarget<'a> {
    /// `requested` is the address in CNI_ARGS; `described` is the pod, whose annotations may
    /// request further addresses.
    pub(super) fn new(
        call: &'a Call,
        requested: Option<IpAddr>,
        described: Option<&PodWithNamespace>,
    ) -> Self {
        let (mut addresses, mut list) = (Vec::from_iter(requested), BTreeSet::new());
        // Invalid annotations fail the ADD itself, at a later step.
        let annotations =
            described.and_then(|pod| Annotations::read(&pod.pod, &pod.namespace, &call.conf).ok());
        match annotations.map(|annotations| annotations.addresses) {
            Some(AddressSource::Requested(requested) | AddressSource::Fixed(requested)) => {
                addresses.extend(requested)
            }
            Some(AddressSource::AnyOf(any_of)) => {
                list.extend(any_of.v4.into_iter().chain(any_of.v6))
            }
            Some(AddressSource::Allocated) | None => {}
        }
        AddTarget {
            call,
            addresses,
            list,
        }
    }

    pub(super) fn urgency(&self, pending_del: &PendingDel) -> Urgency {
        let Call {
            conf,
            container_id,
            args,
            ..
        } = self.call;
        let is_of_pod = args.pod().is_some_and(|own| {
            pending_del
                .pod()
                .is_some_and(|(namespace, name)| own.namespace == namespace && own.name == name)
        });
        let has_requested_address = pending_del
            .addresses
            .iter()
            .any(|ip| self.addresses.contains(ip));
        if is_of_pod
            || has_requested_address
            || pending_del.is_of_container(&conf.name, container_id)
        {
            return Urgency::Required;
        }
        let may_have_requested_address = match &pending_del.addresses[..] {
            [] => !self.addresses.is_empty() || !self.list.is_empty(),
            addresses => addresses.iter().any(|ip| self.list.contains(ip)),
        };
        if may_have_requested_address {
            Urgency::PossiblyRequired
        } else {
            Urgency::NotRequired
        }
    }
}

#[cfg(test)]
mod tests {
    use libcalico::variables::Variables;
    use serde_json::json;

    use super::*;

    /// The number of replays before an ADD is limited, except for [`Urgency::Required`].
    /// Shows SEC-15.
    #[test]
    fn deferred_del_of_a_listed_address_comes_first_but_is_not_required() {
        let env = |name: &str| {
            let value = match name {
                "CNI_COMMAND" => "ADD",
                "CNI_CONTAINERID" | "CNI_IFNAME" => "c1",
                "CNI_ARGS" => "K8S_POD_NAMESPACE=ns;K8S_POD_NAME=p",
                "CNI_NETNS" | "CNI_PATH" => "/x",
                _ => return None,
            };
            Some(value.to_owned())
        };
        let conf = json!({
            "cniVersion": "1.0.0", "name": "net", "type": "calico",
            "ipam": { "type": "calico-ipam" },
            "policy": { "type": "k8s" },
        });
        let call =
            netconf::read_call(Variables::new(&env), || Ok(conf.to_string().into_bytes())).unwrap();
        let described = |name: &str, list: &str| PodWithNamespace {
            pod: serde_json::from_value(json!({
                "metadata": {
                    "name": "p", "namespace": "ns",
                    "annotations": { format!("cni.projectcalico.org/{name}"): list },
                },
                "spec": { "nodeName": "n" },
            }))
            .unwrap(),
            namespace: serde_json::from_value(json!({ "metadata": { "name": "ns" } })).unwrap(),
        };
        let of = |addresses: &[&str]| PendingDel {
            addresses: addresses.iter().map(|text| text.parse().unwrap()).collect(),
            endpoint: ("ns".into(), "n-k8s-other-eth0".into()),
            ..PendingDel::default()
        };
        let urgencies = |name: &str, list: &str| {
            let described = described(name, list);
            let target = AddTarget::new(&call, None, Some(&described));
            [of(&["10.0.0.9", "fd00::1"]), of(&["10.0.1.9"]), of(&[])]
                .map(|pending_del| target.urgency(&pending_del))
        };
        let (required, possibly) = (Urgency::Required, Urgency::PossiblyRequired);
        assert_eq!(
            urgencies("ipAddrsAnyOf", "[\"10.0.0.0/24\"]"),
            [possibly, Urgency::NotRequired, possibly]
        );
        assert_eq!(
            urgencies("ipAddrs", "[\"10.0.0.9\"]"),
            [required, Urgency::NotRequired, possibly]
        );
    }
}

//! Finds the users of addresses to be released: interfaces of pods, pods in the API server, and
//! WorkloadEndpoints.
//!
//! The kernel of this node does not show all of them: the configuration may name another node.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipam_plugin::cni::LeakedAddresses;
use libcalico::api::{ObjectKey, ObjectSelect, WorkloadEndpoint};
use libcalico::failure::{Failure, OrFail};
use libcalico::kubernetes::{AddressAnnotations, Pod, PodAddresses};
use libcalico::names::EndpointIdentifiers;
use libcalico::store::{Entry, ReadBatch, Store, StoreError, Write};

use super::plan::Options;
use super::report::UninstallReport;
use dataplane::host_network::{
    HostNetwork, Interface, NetworkError, addresses_behind, pod_interface_prefix,
};

/// The reason why an interface with the prefix of pods' interfaces remains.
const FOREIGN_INTERFACE: &str = "it is not the interface of one of Calico's pods";
/// The reason why such an interface remains although a pod may use it.
const UNMARKED_INTERFACE: &str = "it has routes like those of a pod, but not the marks of Calico's \
                                  interfaces, so --tear-down-pods does not delete it";

/// The addresses behind interfaces that were deleted on this node, which count as unused. Any other
/// address that a pod or an endpoint may have counts as used, because the configuration may name
/// another node by mistake, whose pods still run.
#[derive(Debug, Clone, Copy)]
pub(super) struct DeletedInterfaces<'a> {
    /// The node that the configuration names.
    pub(super) node: &'a str,
    pub(super) addresses: &'a BTreeSet<IpAddr>,
}

impl DeletedInterfaces<'_> {
    /// Returns true if a pod on `node` had this address behind a deleted interface.
    pub(super) fn has(&self, node: &str, address: &IpAddr) -> bool {
        self.node == node && self.addresses.contains(address)
    }
}

/// Deletes Calico's interfaces of pods, or reports the plan. Returns false if a requested deletion
/// failed.
pub(super) fn tear_down(
    options: Options,
    network: &dyn HostNetwork,
    report: &mut UninstallReport,
) -> bool {
    let interfaces = match network.interfaces() {
        Ok(interfaces) => interfaces,
        Err(reason) => {
            report.add_failure("remove", "the interfaces of pods", reason);
            return !options.tear_down_pods;
        }
    };
    let routes = network.routes().unwrap_or_default();
    let mut is_complete = true;
    let prefixed = interfaces
        .into_iter()
        .filter(|interface| has_calico_prefix(&interface.name));
    let by_name: BTreeMap<_, _> = prefixed
        .map(|interface| (interface.name, interface.is_pod_interface))
        .collect();
    for (name, is_pod_interface) in by_name {
        let target = format!("interface {name}");
        if !is_pod_interface {
            let has_address = !addresses_behind(&name, &routes).is_empty();
            report.add_remaining(
                target,
                if has_address {
                    UNMARKED_INTERFACE
                } else {
                    FOREIGN_INTERFACE
                },
            );
        } else if !options.tear_down_pods {
            report.add_remaining(
                target,
                "its pod is still connected; --tear-down-pods deletes it",
            );
        } else if !options.yes {
            report.add_success("remove", target);
        } else {
            match network.remove_pod_interface(&name) {
                Ok(true) => report.add_success("remove", target),
                Ok(false) => report.add_remaining(target, FOREIGN_INTERFACE),
                Err(reason) => {
                    report.add_failure("remove", target, reason);
                    is_complete = false;
                }
            }
        }
    }
    is_complete
}

/// Returns the addresses behind the interfaces that [`tear_down`] deletes; none if the interfaces
/// or routes cannot be read.
pub(super) fn addresses_behind_pods(network: &dyn HostNetwork) -> BTreeSet<IpAddr> {
    let (Ok(routes), Ok(interfaces)) = (network.routes(), network.interfaces()) else {
        return BTreeSet::new();
    };
    let pods = interfaces
        .into_iter()
        .filter(|found| found.is_pod_interface && has_calico_prefix(&found.name));
    pods.flat_map(|interface| addresses_behind(&interface.name, &routes))
        .collect()
}

/// Returns the interfaces through which pods may use addresses, with the addresses behind them.
/// With `torn_down`, interfaces that [`tear_down`] deletes are left out.
pub(super) fn connected_pods(
    network: &dyn HostNetwork,
    torn_down: bool,
) -> Result<Vec<String>, NetworkError> {
    let routes = network.routes()?;
    let mut used = Vec::new();
    for Interface {
        name,
        is_pod_interface,
        ..
    } in network.interfaces()?
    {
        let addresses: Vec<String> = addresses_behind(&name, &routes)
            .iter()
            .map(ToString::to_string)
            .collect();
        let is_used = is_pod_interface || (has_calico_prefix(&name) && !addresses.is_empty());
        if !is_used || (torn_down && is_pod_interface && has_calico_prefix(&name)) {
            continue;
        }
        let addresses = addresses.join(", ");
        used.push(match is_pod_interface {
            true if addresses.is_empty() => name,
            true => format!("{name} ({addresses})"),
            false => format!("{name} ({addresses}; {UNMARKED_INTERFACE})"),
        });
    }
    used.sort();
    Ok(used)
}

fn has_calico_prefix(name: &str) -> bool {
    name.starts_with(&pod_interface_prefix())
}

/// The operation that reads the pods of allocated addresses.
const READ_PODS: &str = "cannot read from the API server whether pods use these addresses";

/// Checks that no pod that an allocation in `leaked` names may still use the allocated address.
pub(super) async fn check_pods<S: Store>(
    api: &S,
    leaked: &LeakedAddresses,
    gone: DeletedInterfaces<'_>,
) -> Result<(), Failure> {
    let mut released = BTreeMap::<ObjectKey, BTreeSet<IpAddr>>::new();
    for (_, address) in leaked.held() {
        if let Some((namespace, name)) = &address.pod {
            released
                .entry(ObjectKey::namespaced(namespace, name))
                .or_default()
                .insert(address.ip);
        }
    }
    let mut batch = ReadBatch::new();
    let tickets: Vec<_> = released.keys().map(|key| batch.get::<Pod>(key)).collect();
    let answers = api.read(&batch).await.or_fail(READ_PODS)?;
    let mut used = Vec::new();
    for (ticket, (key, addresses)) in tickets.iter().zip(&released) {
        let Some(pod) = answers.get(ticket).or_fail(READ_PODS)? else {
            continue;
        };
        let Some(reported) = addresses_of(&pod.value) else {
            continue;
        };
        // A running ADD may have assigned the address although the pod does not report it yet.
        let is_here = gone.node == pod.value.spec.node_name;
        let may_have = |ip: &IpAddr| is_here || reported.is_empty() || reported.contains(ip);
        let is_used = |ip: &&IpAddr| may_have(ip) && !gone.has(&pod.value.spec.node_name, ip);
        used.extend(
            addresses
                .iter()
                .filter(is_used)
                .map(|ip| format!("{key} ({ip})")),
        );
    }
    if used.is_empty() {
        Ok(())
    } else {
        Err(Failure::new("pods in the API server use these addresses")
            .because(used.join(", "))
            .way_out(
                "delete these pods first, or, if their interfaces are on this node, add \
                 --tear-down-pods",
            ))
    }
}

/// Returns the addresses in the pod's status and annotations: kubelet updates the status some time
/// after the ADD. Returns `None` for a pod that has ended.
fn addresses_of(pod: &Pod) -> Option<BTreeSet<IpAddr>> {
    let listed: Vec<&str> = pod
        .status
        .pod_ips
        .iter()
        .map(|address| address.ip.as_str())
        .collect();
    let addresses = PodAddresses {
        phase: &pod.status.phase,
        deleting: false,
        pod_ip: &pod.status.pod_ip,
        pod_ips: &listed,
        annotations: AddressAnnotations::of(&pod.metadata.annotations),
    };
    let reported = addresses
        .parse_reported()
        .chain(addresses.parse_annotated());
    (!addresses.has_ended()).then(|| reported.flatten().map(|cidr| cidr.network()).collect())
}

/// Endpoints that list addresses to be released, each with these addresses.
pub(super) type Endpoints = Vec<(Entry<WorkloadEndpoint>, Vec<IpAddr>)>;

/// Reads the endpoints that list an address of `leaked`, the allocations on `node`.
pub(super) async fn read_endpoints<S: Store>(
    store: &S,
    node: &str,
    leaked: &LeakedAddresses,
) -> Result<Endpoints, Failure> {
    let released: BTreeSet<IpAddr> = leaked.held().map(|(_, address)| address.ip).collect();
    let mut batch = ReadBatch::new();
    let all = batch.list::<WorkloadEndpoint>(&ObjectSelect::default());
    let answers = store.read(&batch).await;
    let answers = answers.or_fail("cannot read the endpoints in the datastore")?;
    let mut endpoints = Endpoints::new();
    for (key, endpoint) in answers.each(&all) {
        let endpoint = match endpoint {
            Ok(endpoint) => endpoint,
            Err(source)
                if EndpointIdentifiers::parse(&key.name).is_ok_and(|ids| ids.node == node) =>
            {
                return Err(Failure::new(format_args!(
                    "endpoint {key}, which may list these addresses, cannot be read"
                ))
                .because(source)
                .way_out("correct or delete the endpoint"));
            }
            Err(_) => continue,
        };
        let addresses = endpoint
            .value
            .spec
            .networks()
            .map(|network| network.network());
        let listed: Vec<IpAddr> = addresses.filter(|ip| released.contains(ip)).collect();
        if !listed.is_empty() {
            endpoints.push((endpoint, listed));
        }
    }
    Ok(endpoints)
}

/// Checks that every listed address was behind an interface that was deleted on this node.
pub(super) fn check_endpoints(
    endpoints: &Endpoints,
    gone: DeletedInterfaces<'_>,
) -> Result<(), Failure> {
    let mut used = Vec::new();
    for (endpoint, listed) in endpoints {
        let is_used = |ip: &&IpAddr| !gone.has(&endpoint.value.spec.node, ip);
        used.extend(
            listed
                .iter()
                .filter(is_used)
                .map(|ip| format!("{} ({ip})", endpoint.key)),
        );
    }
    if used.is_empty() {
        Ok(())
    } else {
        Err(Failure::new("endpoints list these addresses")
            .because(used.join(", "))
            .way_out(
                "delete their pods or containers first, or, if their interfaces are on this node, \
                 add --tear-down-pods; delete an endpoint without a pod or container with \
                 calicoctl delete workloadendpoint",
            ))
    }
}

/// Deletes the endpoints at the revisions that were read. A missing endpoint counts as deleted.
pub(super) async fn delete_endpoints<S: Store>(
    endpoints: &Endpoints,
    store: &S,
) -> Result<(), Failure> {
    for (Entry { key, revision, .. }, _) in endpoints {
        match store
            .write_one(Write::delete::<WorkloadEndpoint>(key, Some(revision)))
            .await
        {
            Ok(_) | Err(StoreError::NotFound { .. }) => {}
            Err(source) => {
                return Err(Failure::new(format_args!(
                    "cannot delete endpoint {key}, which lists these addresses"
                ))
                .because(source));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use dataplane::host_network::testing::{FixedNetwork, interface, route};

    #[test]
    fn tear_down_reports_a_foreign_interface_without_a_pod() {
        let ours = Interface {
            is_pod_interface: true,
            ..interface("cali1", 1500)
        };
        let network = FixedNetwork {
            interfaces: vec![ours, interface("cali2", 1500)],
            ..FixedNetwork::default()
        };
        let foreign = "interface cali2: it is not the interface of one of Calico's pods";
        for (tear_down_pods, own) in [
            (
                false,
                "interface cali1: its pod is still connected; --tear-down-pods deletes it",
            ),
            (true, "would remove interface cali1"),
        ] {
            let mut report = UninstallReport::default();
            assert!(tear_down(
                Options {
                    tear_down_pods,
                    ..Options::default()
                },
                &network,
                &mut report
            ));
            let text = report.to_string();
            assert!(text.contains(own) && text.contains(foreign), "{text}");
            assert_eq!(text.matches("cali").count(), 2, "{text}");
        }
    }

    #[test]
    fn tear_down_reports_an_unmarked_interface_with_routes_as_the_release_does() {
        let network = FixedNetwork {
            interfaces: vec![interface("cali2", 1500)],
            routes: vec![route("10.65.0.2/32", &["cali2"])],
        };
        let mut report = UninstallReport::default();
        assert!(tear_down(
            Options {
                tear_down_pods: true,
                ..Options::default()
            },
            &network,
            &mut report
        ));
        let text = report.to_string();
        assert!(
            text.contains(&format!("interface cali2: {UNMARKED_INTERFACE}")),
            "{text}"
        );
        assert!(!text.contains(FOREIGN_INTERFACE), "{text}");
    }

    #[test]
    fn connected_pods_are_found_by_interface_and_by_route() {
        let pods = |name: &str| Interface {
            is_pod_interface: true,
            ..interface(name, 1500)
        };
        let network = FixedNetwork {
            interfaces: vec![
                pods("cali1"),
                interface("cali2", 1500),
                interface("cali-theirs", 1500),
                pods("eni3"),
                interface("eth0", 1500),
            ],
            routes: vec![
                route("10.65.0.1/32", &["cali1"]),
                route("fd65::1/128", &["cali1"]),
                route("10.65.0.2/32", &["cali2"]),
                route("fe80::/64", &["cali-theirs"]),
                route("10.65.0.9/32", &["eth0"]),
            ],
        };
        let unmarked = format!("cali2 (10.65.0.2; {UNMARKED_INTERFACE})");
        assert_eq!(
            connected_pods(&network, false).unwrap(),
            ["cali1 (10.65.0.1, fd65::1)", unmarked.as_str(), "eni3"]
        );
        assert_eq!(
            connected_pods(&network, true).unwrap(),
            [unmarked.as_str(), "eni3"]
        );
        assert_eq!(
            addresses_behind_pods(&network),
            ["10.65.0.1", "fd65::1"]
                .map(|ip| ip.parse().unwrap())
                .into()
        );
    }
}

//! [`PodState`]: a pod's node, addresses and end, for garbage collection and `calico-ipam check`.
//!
//! A tenant may change the annotations of a pod at any time. An annotation can therefore keep an
//! address, but never frees one that the status of a running pod reports.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use serde::Deserialize;

use super::{AddressInPod, EndedPod};
use crate::kubernetes::{Pod, PodAddresses};
use crate::net::Cidr;

/// The annotation in which Multus stores the addresses of all interfaces of a pod. They count as
/// the pod's, as in upstream (IPAM-194).
pub const NETWORK_STATUS: &str = "k8s.v1.cni.cncf.io/network-status";

/// A pod's node, addresses and end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodState<'a> {
    /// The pod's Kubernetes node; empty if it is not scheduled.
    pub node: &'a str,
    /// The pod's addresses.
    pub addresses: ReportedAddresses,
    /// The way in which the pod's containers ended for good, if they did.
    pub ended: Option<EndedPod>,
    /// True if the pod is running, has its own network and is not being deleted.
    pub runs: bool,
}

/// The fields of a pod from which [`PodState`] is derived.
#[derive(Debug, Clone, Copy)]
pub struct PodView<'n, 'a> {
    /// `spec.nodeName`.
    pub node: &'n str,
    /// `status.reason`.
    pub reason: &'a str,
    /// `spec.hostNetwork`.
    pub host_network: bool,
    /// The annotation [`NETWORK_STATUS`], if there is one.
    pub network_status: Option<&'a str>,
    /// The fields that contain addresses.
    pub addresses: PodAddresses<'a>,
}

impl<'a> PodState<'a> {
    /// Derives the state from the fields. Unlike in upstream, an empty address annotation of a pod
    /// that is being deleted is not the pod's end (KC-435).
    pub fn read(view: &PodView<'a, '_>) -> Self {
        let PodView {
            node,
            reason,
            host_network,
            addresses,
            ..
        } = *view;
        let is_evicted = addresses.phase == "Failed" && reason == "Evicted";
        let end = if is_evicted {
            EndedPod::Evicted
        } else {
            EndedPod::Finished
        };
        let ended = addresses.has_ended().then_some(end);
        let runs = addresses.phase == "Running" && !addresses.deleting && !host_network;
        PodState {
            node,
            addresses: reported_addresses(view),
            ended,
            runs,
        }
    }

    /// Derives the state from a pod, without distinguishing an eviction from another end.
    pub fn of(pod: &'a Pod) -> Self {
        let pod_ips = pod.status.listed_ips();
        let addresses = PodAddresses::of(pod, &pod_ips);
        let network_status = pod
            .metadata
            .annotations
            .get(NETWORK_STATUS)
            .map(String::as_str);
        let (node, host_network) = (&pod.spec.node_name, pod.spec.host_network);
        PodState::read(&PodView {
            node,
            reason: "",
            host_network,
            network_status,
            addresses,
        })
    }

    /// Returns the state of the pod with respect to `address`.
    pub fn address_state(&self, address: IpAddr) -> AddressInPod<'a> {
        AddressInPod {
            node: self.node,
            has: self.addresses.contain(address),
            ended: self.ended,
        }
    }
}

/// The maximum number of annotated addresses to read. A pod with more of them may have any address.
const MAX_ANNOTATED: usize = 256;

/// Combines the addresses that kubelet reports with those in annotations, which may be newer.
fn reported_addresses(view: &PodView<'_, '_>) -> ReportedAddresses {
    let listed = &view.addresses;
    let has_invalid_name = view.node.starts_with('-') || view.node.ends_with('-');
    let mut is_complete = !view.node.is_empty() && !has_invalid_name;
    let mut in_status: Vec<IpAddr> = Vec::new();
    for address in listed.parse_reported().map(single) {
        is_complete &= address.is_some();
        in_status.extend(address);
    }
    is_complete &= !in_status.is_empty();
    let mut annotated: Vec<IpAddr> = Vec::new();
    let texts = listed
        .parse_annotated()
        .map(single)
        .chain(of_other_interfaces(view.network_status));
    for (n, address) in texts.enumerate() {
        is_complete &= address.is_some() && n < MAX_ANNOTATED;
        if n >= MAX_ANNOTATED {
            break;
        }
        annotated.extend(address);
    }
    ReportedAddresses::of(in_status, annotated, is_complete)
}

/// Returns the address of a CIDR with a single address. With a larger one, the pod may have any
/// address of its range.
fn single<E>(cidr: Result<Cidr, E>) -> Option<IpAddr> {
    cidr.ok()
        .filter(|cidr| cidr.size() == 1)
        .map(|cidr| cidr.network())
}

#[derive(Deserialize)]
struct InterfaceStatus {
    #[serde(default)]
    ips: Vec<String>,
}

/// Returns the addresses in Multus's annotation, with `None` for an unreadable one or an unreadable
/// annotation.
fn of_other_interfaces(status: Option<&str>) -> Vec<Option<IpAddr>> {
    let Some(status) = status.filter(|status| !status.is_empty()) else {
        return Vec::new();
    };
    let Ok(interfaces) = serde_json::from_str::<Vec<InterfaceStatus>>(status) else {
        return vec![None];
    };
    let texts = interfaces.iter().flat_map(|interface| &interface.ips);
    texts
        .map(|text| text.split('/').next().and_then(|ip| ip.parse().ok()))
        .collect()
}

/// The addresses that a pod reports, in the smallest form that fits them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReportedAddresses {
    /// An IPv4 address from the status, and no other address.
    V4(Ipv4Addr),
    /// An IPv4 and an IPv6 address, both from the status, and no other address.
    Dual(Ipv4Addr, Ipv6Addr),
    /// Any other set of addresses.
    Several {
        /// The addresses in the status, followed by those that are only in annotations.
        addresses: Box<[IpAddr]>,
        /// The number of addresses from the status.
        in_status: u16,
        /// True if the addresses are complete.
        all: bool,
    },
}

/// Returns an empty, incomplete set.
impl Default for ReportedAddresses {
    fn default() -> Self {
        ReportedAddresses::Several {
            addresses: Box::default(),
            in_status: 0,
            all: false,
        }
    }
}

impl ReportedAddresses {
    /// Creates a complete set of addresses from the status.
    pub fn new(in_status: Vec<IpAddr>) -> Self {
        Self::of(in_status, Vec::new(), true)
    }

    fn of(mut in_status: Vec<IpAddr>, mut annotated: Vec<IpAddr>, all: bool) -> Self {
        in_status.sort_unstable();
        in_status.dedup();
        annotated.retain(|address| !in_status.contains(address));
        annotated.sort_unstable();
        annotated.dedup();
        match in_status[..] {
            [IpAddr::V4(v4)] if all && annotated.is_empty() => ReportedAddresses::V4(v4),
            [IpAddr::V4(v4), IpAddr::V6(v6)] if all && annotated.is_empty() => {
                ReportedAddresses::Dual(v4, v6)
            }
            _ => {
                let status_count = u16::try_from(in_status.len()).unwrap_or(u16::MAX);
                in_status.extend(annotated);
                ReportedAddresses::Several {
                    addresses: in_status.into(),
                    in_status: status_count,
                    all,
                }
            }
        }
    }

    /// Returns true if `address` is in the set; otherwise `None` if the set is incomplete.
    pub fn contain(&self, address: IpAddr) -> Option<bool> {
        match self {
            ReportedAddresses::V4(v4) => Some(address == *v4),
            ReportedAddresses::Dual(v4, v6) => Some(address == *v4 || address == *v6),
            ReportedAddresses::Several { addresses, .. } if addresses.contains(&address) => {
                Some(true)
            }
            ReportedAddresses::Several { all, .. } => all.then_some(false),
        }
    }

    /// Returns the addresses from the status, which a tenant cannot write.
    pub fn in_status(&self) -> impl Iterator<Item = IpAddr> {
        let (one, other, rest): (Option<IpAddr>, Option<IpAddr>, &[IpAddr]) = match self {
            ReportedAddresses::V4(v4) => (Some((*v4).into()), None, &[]),
            ReportedAddresses::Dual(v4, v6) => (Some((*v4).into()), Some((*v6).into()), &[]),
            ReportedAddresses::Several {
                addresses,
                in_status,
                ..
            } => (
                None,
                None,
                addresses.get(..usize::from(*in_status)).unwrap_or_default(),
            ),
        };
        one.into_iter().chain(other).chain(rest.iter().copied())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::kubernetes::AddressAnnotations;

    struct Fixture {
        node: &'static str,
        phase: &'static str,
        reason: &'static str,
        deleting: bool,
        ips: Vec<&'static str>,
        annotations: Vec<(&'static str, &'static str)>,
    }

    impl Fixture {
        fn running(ips: &[&'static str]) -> Self {
            let (ips, annotations) = (ips.to_vec(), Vec::new());
            Fixture {
                node: "n1",
                phase: "Running",
                reason: "",
                deleting: false,
                ips,
                annotations,
            }
        }

        fn lookup(&self, address: &str) -> (Option<bool>, Option<EndedPod>) {
            let annotations: BTreeMap<_, _> = self
                .annotations
                .iter()
                .map(|&(k, v)| (k.to_owned(), v.to_owned()))
                .collect();
            let addresses = PodAddresses {
                phase: self.phase,
                deleting: self.deleting,
                pod_ip: self.ips.first().copied().unwrap_or_default(),
                pod_ips: &self.ips,
                annotations: AddressAnnotations::of(&annotations),
            };
            let network_status = annotations.get(NETWORK_STATUS).map(String::as_str);
            let (node, reason, host_network) = (self.node, self.reason, false);
            let facts = PodState::read(&PodView {
                node,
                reason,
                host_network,
                network_status,
                addresses,
            });
            let state = facts.address_state(address.parse().unwrap());
            (state.has, state.ended)
        }
    }

    #[test]
    fn running_pod_has_the_addresses_in_its_status() {
        for ips in [
            &["10.0.0.1"][..],
            &["10.0.0.1", "fd00::1"],
            &["fd00::2", "10.0.0.1"],
            &["10.0.0.1", "10.0.0.2"],
        ] {
            let fixture = Fixture::running(ips);
            assert_eq!(fixture.lookup("10.0.0.1"), (Some(true), None), "{ips:?}");
            assert_eq!(fixture.lookup("10.0.0.9"), (Some(false), None));
            assert_eq!(fixture.lookup(ips[ips.len() - 1]).0, Some(true));
        }
        assert_eq!(
            Fixture::running(&["10.0.0.1/32"]).lookup("10.0.0.1").0,
            Some(true)
        );
    }

    #[test]
    fn annotated_addresses_count_beside_a_stale_status() {
        let annotated = |annotations| Fixture {
            annotations,
            ..Fixture::running(&["10.0.0.1"])
        };
        let one = annotated(vec![("cni.projectcalico.org/podIP", "10.0.0.2/32")]);
        let both = annotated(vec![
            ("cni.projectcalico.org/podIP", "10.0.0.2/32"),
            ("cni.projectcalico.org/podIPs", "10.0.0.2/32,fd00::2/128"),
        ]);
        for fixture in [&one, &both] {
            assert_eq!(
                ["10.0.0.1", "10.0.0.2", "10.0.0.9"].map(|ip| fixture.lookup(ip).0),
                [true, true, false].map(Some)
            );
        }
        assert_eq!(both.lookup("fd00::2").0, Some(true));
        let taken_out = annotated(vec![
            ("cni.projectcalico.org/podIP", ""),
            ("cni.projectcalico.org/podIPs", ""),
        ]);
        assert_eq!(taken_out.lookup("10.0.0.9").0, Some(false));
        let unreadable = annotated(vec![("cni.projectcalico.org/podIPs", "10.0.0.2/32,x")]);
        assert_eq!(unreadable.lookup("10.0.0.9").0, None);
    }

    #[test]
    fn address_of_a_pod_with_an_invalid_status_or_node_is_undecided() {
        for ips in [&[][..], &["10.0.0.0/24"], &["ten"], &["10.0.0.1", "ten"]] {
            assert_eq!(Fixture::running(ips).lookup("10.0.0.9").0, None, "{ips:?}");
        }
        for node in ["", "-n1", "n1-"] {
            assert_eq!(
                Fixture {
                    node,
                    ..Fixture::running(&["10.0.0.1"])
                }
                .lookup("10.0.0.9")
                .0,
                None,
                "{node}"
            );
        }
    }

    #[test]
    fn pod_end_depends_on_phase_and_reason_only() {
        for (phase, reason, ended) in [
            ("Failed", "Evicted", Some(EndedPod::Evicted)),
            ("Failed", "", Some(EndedPod::Finished)),
            ("Succeeded", "Evicted", Some(EndedPod::Finished)),
            ("Running", "Evicted", None),
        ] {
            let fixture = Fixture {
                phase,
                reason,
                ..Fixture::running(&["10.0.0.1"])
            };
            assert_eq!(
                fixture.lookup("10.0.0.1"),
                (Some(true), ended),
                "{phase} {reason}"
            );
        }
        let emptied = vec![("cni.projectcalico.org/podIP", "")];
        let fixture = Fixture {
            deleting: true,
            annotations: emptied,
            ..Fixture::running(&["10.0.0.1"])
        };
        assert_eq!(
            fixture.lookup("10.0.0.1"),
            (Some(true), None),
            "a tenant writes annotations, and deletes the pod"
        );
    }

    #[test]
    fn addresses_of_secondary_interfaces_belong_to_the_pod() {
        let status = r#"[{"name":"k8s","ips":["10.0.0.1"],"default":true},{"name":"b","interface":"net1","ips":["10.0.0.7/24"]}]"#;
        let fixture = Fixture {
            annotations: vec![(NETWORK_STATUS, status)],
            ..Fixture::running(&["10.0.0.1"])
        };
        assert_eq!(fixture.lookup("10.0.0.7").0, Some(true));
        assert_eq!(fixture.lookup("10.0.0.8").0, Some(false));
        for broken in ["{", r#"[{"ips":["x"]}]"#] {
            let fixture = Fixture {
                annotations: vec![(NETWORK_STATUS, broken)],
                ..Fixture::running(&["10.0.0.1"])
            };
            assert_eq!(fixture.lookup("10.0.0.8").0, None);
        }
    }
}

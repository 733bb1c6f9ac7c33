//! A tenant can change the annotations of a pod at any time. They free no address that the status
//! of a running pod reports.

use std::collections::BTreeMap;

use super::super::*;
use super::scenarios::cluster;
use crate::ipam::{LeakReason, NETWORK_STATUS, PodState, PodView};
use crate::kubernetes::{AddressAnnotations, PodAddresses};

const KEYS: [&str; 4] = [
    "cni.projectcalico.org/podIP",
    "cni.projectcalico.org/podIPs",
    "vpc.amazonaws.com/pod-ips",
    NETWORK_STATUS,
];
const TEXTS: [Option<&str>; 8] = [
    None,
    Some(""),
    Some("10.0.0.7/32"),
    Some("not an address"),
    Some("10.0.0.0/8"),
    Some(","),
    Some("[]"),
    Some(r#"[{"ips":["10.0.0.7"]}]"#),
];

/// A pod of which a tenant can write only the annotations.
#[derive(Clone)]
struct PodFixture<'a> {
    node: &'a str,
    phase: &'a str,
    deleting: bool,
    status: &'a [&'a str],
    annotations: BTreeMap<String, String>,
}

impl<'a> PodFixture<'a> {
    fn state(&self) -> PodState<'_> {
        let addresses = PodAddresses {
            phase: self.phase,
            deleting: self.deleting,
            pod_ip: self.status.first().copied().unwrap_or_default(),
            pod_ips: self.status,
            annotations: AddressAnnotations::of(&self.annotations),
        };
        let network_status = self.annotations.get(NETWORK_STATUS).map(String::as_str);
        PodState::read(&PodView {
            node: self.node,
            reason: "",
            host_network: false,
            network_status,
            addresses,
        })
    }
}

/// Calls `examine` with each combination of [`TEXTS`] for the annotations [`KEYS`].
fn each_combination(mut examine: impl FnMut(bool, BTreeMap<String, String>)) {
    for number in 0..TEXTS.len().pow(KEYS.len() as u32) {
        let mut number = number;
        let mut annotations = BTreeMap::new();
        for key in KEYS {
            if let Some(text) = TEXTS[number % TEXTS.len()] {
                annotations.insert(key.to_owned(), text.to_owned());
            }
            number /= TEXTS.len();
        }
        for deleting in [false, true] {
            examine(deleting, annotations.clone());
        }
    }
}

fn address() -> std::net::IpAddr {
    "10.0.0.0".parse().unwrap()
}

/// Shows SEC-4.
#[test]
fn annotations_release_no_address_that_the_status_reports() {
    let mut cluster = cluster();
    for node in ["n1", "n2"] {
        each_combination(|deleting, annotations| {
            let pod = PodFixture {
                node,
                phase: "Running",
                deleting,
                status: &["10.0.0.0"],
                annotations,
            };
            cluster.index.put_pod("ns", "p", &pod.state());
            let changes = cluster.index.examine(cluster.now, Scope::Changed);
            assert!(
                changes.is_empty(),
                "{changes:?} on {node}, deleting {deleting}: {:?}",
                pod.annotations
            );
            let (has, ended) = (pod.state().address_state(address()).has, pod.state().ended);
            assert_eq!(
                (has, ended),
                (Some(true), None),
                "the check before the release: {:?}",
                pod.annotations
            );
        });
    }
}

#[test]
fn annotated_addresses_add_to_the_addresses_in_the_status() {
    let annotations = KEYS.map(|key| (key.to_owned(), "10.0.0.7/32".to_owned()));
    let pod = PodFixture {
        node: "n1",
        phase: "Running",
        deleting: true,
        status: &["10.0.0.0"],
        annotations: annotations.into_iter().take(3).collect(),
    };
    let has = ["10.0.0.0", "10.0.0.7", "10.0.0.6"]
        .map(|ip| pod.state().address_state(ip.parse().unwrap()).has);
    assert_eq!(has, [Some(true), Some(true), Some(false)]);
}

#[test]
fn emptied_annotation_makes_the_address_a_candidate_only_after_the_pod_ended() {
    for key in KEYS {
        let mut cluster = cluster();
        let annotations = BTreeMap::from([(key.to_owned(), String::new())]);
        let running = PodFixture {
            node: "n1",
            phase: "Running",
            deleting: true,
            status: &["10.0.0.0"],
            annotations,
        };
        cluster.index.put_pod("ns", "p", &running.state());
        assert_eq!(
            cluster.index.examine(cluster.now, Scope::Changed),
            [],
            "{key}"
        );
        cluster.index.put_pod(
            "ns",
            "p",
            &PodFixture {
                phase: "Succeeded",
                ..running.clone()
            }
            .state(),
        );
        let kinds = cluster
            .index
            .examine(cluster.now, Scope::Changed)
            .into_iter()
            .map(|change| change.kind);
        assert_eq!(
            kinds.collect::<Vec<_>>(),
            [ChangeKind::Candidate(LeakReason::PodFinished)],
            "{key}"
        );
    }
}

#[test]
fn status_with_other_addresses_makes_the_address_a_candidate() {
    let mut cluster = cluster();
    let annotations = BTreeMap::from([
        (KEYS[0].to_owned(), String::new()),
        (KEYS[1].to_owned(), String::new()),
    ]);
    for deleting in [false, true] {
        let pod = PodFixture {
            node: "n1",
            phase: "Running",
            deleting,
            status: &["10.0.0.6"],
            annotations: annotations.clone(),
        };
        cluster.index.put_pod("ns", "p", &pod.state());
    }
    let kinds = cluster
        .index
        .examine(cluster.now, Scope::Changed)
        .into_iter()
        .map(|change| change.kind);
    assert_eq!(
        kinds.collect::<Vec<_>>(),
        [ChangeKind::Candidate(LeakReason::OtherAddresses)]
    );
}

#[test]
fn long_address_annotation_takes_little_memory_and_retains_all_addresses() {
    let list: Vec<String> = (0..20_000)
        .map(|n: u32| std::net::Ipv4Addr::from(0x0b00_0000 + n).to_string())
        .collect();
    let annotations = BTreeMap::from([(KEYS[1].to_owned(), list.join(","))]);
    let pod = PodFixture {
        node: "n1",
        phase: "Running",
        deleting: false,
        status: &["10.0.0.0"],
        annotations,
    };
    let mut cluster = cluster();
    let before = cluster.index.size().bytes;
    cluster.index.put_pod("ns", "p", &pod.state());
    let more = cluster.index.size().bytes - before;
    assert!(more < 10_000, "{more} bytes");
    let has = ["10.0.0.0", "10.0.0.6"].map(|ip| pod.state().address_state(ip.parse().unwrap()).has);
    assert_eq!(
        has,
        [Some(true), None],
        "an unread annotation may contain any address"
    );
}

/// Kubelet reports one interface of a pod. Multus records the others in an annotation.
#[test]
fn annotations_release_no_address_of_another_interface() {
    let mut cluster = cluster();
    let attributes = [("namespace", "ns"), ("pod", "p"), ("node", "n1")]
        .map(|(k, v)| (k.to_owned(), v.to_owned()))
        .into();
    let take = |cluster: &mut super::cluster::Cluster, network: &str, container: usize| {
        let handle = crate::ipam::HandleId::new(format!("{network}.{container:064x}"));
        cluster
            .assign(false, "n1", &handle, &attributes)
            .unwrap()
            .to_string()
    };
    assert_eq!(
        take(&mut cluster, "macvlan", 1),
        "10.0.0.1",
        "of the container of p"
    );
    assert_eq!(
        take(&mut cluster, "macvlan", 99),
        "10.0.0.2",
        "of a container before"
    );
    cluster.deliver_all();
    let mut candidates = std::collections::BTreeSet::new();
    let mut leaks = |status: &str, deleting: bool, annotations: BTreeMap<String, String>| {
        let pod = PodFixture {
            node: "n1",
            phase: "Running",
            deleting,
            status: &[status],
            annotations,
        };
        cluster.index.put_pod("ns", "p", &pod.state());
        for Change { kind, address, .. } in cluster.index.examine(cluster.now, Scope::Changed) {
            match kind {
                ChangeKind::Cleared => candidates.remove(&address.to_string()),
                ChangeKind::Candidate(_) | ChangeKind::Confirmed(_) => {
                    candidates.insert(address.to_string())
                }
            };
        }
        candidates.iter().cloned().collect::<Vec<_>>()
    };
    each_combination(|deleting, annotations| {
        let leaked = leaks("10.0.0.0", deleting, annotations.clone());
        assert!(!leaked.contains(&"10.0.0.1".to_owned()), "{annotations:?}");
    });
    assert_eq!(leaks("10.0.0.0", false, BTreeMap::new()), ["10.0.0.2"]);
    assert_eq!(
        leaks("10.0.0.6", false, BTreeMap::new()),
        ["10.0.0.0", "10.0.0.1", "10.0.0.2"]
    );
}

//! The dataplane's part of a DEL.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use dataplane::{DataplaneError, EndpointPlan, HostLinkProof, Removed, Teardown, TeardownTarget};
use integration_tests::command::{ip, ip_json};
use integration_tests::namespaces::{NETNS_DIR, isolated};
use libcalico::names::InterfaceAlias;
use serde_json::json;

use super::{link_names, plan, set_up};

fn endpoint(netns: Option<&Path>, proof: HostLinkProof) -> TeardownTarget {
    TeardownTarget {
        netns: netns.map(Path::to_owned),
        container_ifname: "eth0".into(),
        host_ifname: "cali1".into(),
        container_id: Some("c1".into()),
        proof,
    }
}

fn pod_path(pod: &str) -> PathBuf {
    Path::new(NETNS_DIR).join(pod)
}

fn tear_down(endpoint: TeardownTarget) -> Result<Removed, DataplaneError> {
    Teardown::start(endpoint)?.finish()
}

fn removed(interface: &str) -> Removed {
    Removed {
        interface: Some(interface.into()),
    }
}

fn route_to(ips: &[&str]) -> HostLinkProof {
    HostLinkProof::RouteTo(ips.iter().map(|ip| ip.parse::<IpAddr>().unwrap()).collect())
}

#[test]
fn teardown_removes_both_ends_and_all_routes_and_succeeds_twice() {
    isolated(|host| {
        set_up(host, "pod1", &plan("cali1", &["10.65.0.2", "fd00:65::2"])).unwrap();
        let target = endpoint(Some(&pod_path("pod1")), HostLinkProof::Absent);
        assert_eq!(tear_down(target.clone()).unwrap(), removed("eth0"));
        assert_eq!(link_names(), ["lo"]);
        assert_eq!(host.in_pod("pod1", || Ok(link_names())).unwrap(), ["lo"]);
        assert_eq!(ip_json("route show").unwrap(), json!([]));
        assert_eq!(tear_down(target).unwrap(), Removed::default());
    });
}

#[test]
fn teardown_stops_traffic_before_it_waits_for_the_deletion() {
    isolated(|host| {
        set_up(host, "pod1", &plan("cali1", &["10.65.0.2"])).unwrap();
        let under_way =
            Teardown::start(endpoint(Some(&pod_path("pod1")), HostLinkProof::Absent)).unwrap();
        // The link is down or already deleted.
        let inside = ip_json("-n pod1 link show up").unwrap();
        assert_eq!(
            inside
                .as_array()
                .unwrap()
                .iter()
                .filter(|link| link["ifname"] == "eth0")
                .count(),
            0
        );
        assert_eq!(under_way.finish().unwrap(), removed("eth0"));
    });
}

#[test]
fn teardown_before_any_add_removes_no_interface() {
    isolated(|host| {
        host.add_pod("pod1").unwrap();
        for netns in [None, Some(pod_path("pod1")), Some(pod_path("absent"))] {
            for proof in [
                HostLinkProof::Name,
                HostLinkProof::NameUnlessPeerInPod,
                route_to(&["10.65.0.2"]),
                HostLinkProof::Absent,
            ] {
                assert_eq!(
                    tear_down(endpoint(netns.as_deref(), proof)).unwrap(),
                    Removed::default()
                );
            }
        }
    });
}

#[test]
fn teardown_without_netns_removes_the_host_end_of_proven_ownership() {
    let proofs = [
        HostLinkProof::Name,
        route_to(&["10.65.0.2"]),
        route_to(&["10.65.0.9", "fd00:65::2"]),
    ];
    for proof in proofs {
        for netns in [None, Some(pod_path("absent"))] {
            isolated(|host| {
                set_up(host, "pod1", &plan("cali1", &["10.65.0.2", "fd00:65::2"])).unwrap();
                assert_eq!(
                    tear_down(endpoint(netns.as_deref(), proof.clone())).unwrap(),
                    removed("cali1"),
                    "{proof:?}"
                );
                assert_eq!(link_names(), ["lo"]);
            });
        }
    }
}

#[test]
fn teardown_without_netns_keeps_the_host_end_of_a_later_sandbox() {
    isolated(|host| {
        let alias = InterfaceAlias::for_pod("net", "suite", "cali1", "c2");
        set_up(
            host,
            "pod1",
            &EndpointPlan {
                alias,
                ..plan("cali1", &["10.65.0.2"])
            },
        )
        .unwrap();
        // The later sandbox's interface has the same name and, as with VMIs, a route to the same
        // address.
        let proofs = [
            HostLinkProof::Name,
            HostLinkProof::Absent,
            route_to(&["10.65.0.2"]),
            HostLinkProof::Index(2),
        ];
        for proof in proofs {
            assert_eq!(
                tear_down(endpoint(None, proof.clone())).unwrap(),
                Removed::default(),
                "{proof:?}"
            );
            assert_eq!(link_names(), ["lo", "cali1"], "{proof:?}");
        }
    });
}

/// Upstream creates interfaces without an alias.
#[test]
fn route_proves_ownership_without_an_alias_only_if_carrier_is_missing() {
    isolated(|host| {
        let attached = set_up(host, "pod1", &plan("cali1", &["10.65.0.2"])).unwrap();
        ip("link set dev cali1 alias none").unwrap();
        for proof in [
            HostLinkProof::Absent,
            route_to(&[]),
            route_to(&["10.65.0.9", "fd00:65::2"]),
        ] {
            assert_eq!(
                tear_down(endpoint(None, proof.clone())).unwrap(),
                Removed::default(),
                "{proof:?}"
            );
        }
        let teardown =
            Teardown::start(endpoint(None, route_to(&["10.65.0.9", "10.65.0.2"]))).unwrap();
        let unproven = teardown.unproven.clone().unwrap();
        assert_eq!(teardown.finish().unwrap(), Removed::default());
        assert_eq!(
            (unproven.index, unproven.addresses),
            (attached.host_index, vec!["10.65.0.2".parse().unwrap()])
        );
        let other = HostLinkProof::Index(attached.host_index + 1);
        assert_eq!(
            tear_down(endpoint(None, other)).unwrap(),
            Removed::default()
        );
        ip("-n pod1 link set eth0 down").unwrap();
        assert_eq!(
            tear_down(endpoint(None, route_to(&["10.65.0.2"]))).unwrap(),
            removed("cali1")
        );
        let attached = set_up(host, "pod1", &plan("cali1", &["10.65.0.2"])).unwrap();
        ip("link set dev cali1 alias none").unwrap();
        assert_eq!(
            tear_down(endpoint(None, HostLinkProof::Index(attached.host_index))).unwrap(),
            removed("cali1")
        );
    });
}

/// A path such as /proc/<process>/ns/net may refer to another process after a while.
#[test]
fn teardown_keeps_an_interface_of_another_container_in_the_netns() {
    isolated(|host| {
        set_up(host, "pod1", &plan("cali1", &["10.65.0.2"])).unwrap();
        for proof in [
            HostLinkProof::Name,
            HostLinkProof::Absent,
            route_to(&["10.65.0.2"]),
        ] {
            let other = TeardownTarget {
                container_id: Some("c2".into()),
                ..endpoint(Some(&pod_path("pod1")), proof)
            };
            assert_eq!(tear_down(other).unwrap(), Removed::default());
        }
        assert_eq!(link_names(), ["lo", "cali1"]);
        let own = endpoint(Some(&pod_path("pod1")), HostLinkProof::Absent);
        assert_eq!(tear_down(own).unwrap(), removed("eth0"));
    });
}

#[test]
fn teardown_keeps_a_foreign_interface_of_the_same_name() {
    isolated(|_| {
        ip("link add cali1 type bridge").unwrap();
        assert_eq!(
            tear_down(endpoint(None, HostLinkProof::Name)).unwrap(),
            Removed::default()
        );
        ip("link del cali1").unwrap();
        ip("link add cali1 type veth peer name other").unwrap();
        assert_eq!(
            tear_down(endpoint(None, HostLinkProof::Name)).unwrap(),
            Removed::default(),
            "another MAC address"
        );
        assert!(link_names().contains(&"cali1".to_owned()));
    });
}

#[test]
fn teardown_removes_an_interface_renamed_in_the_pod_by_its_host_end() {
    isolated(|host| {
        set_up(host, "pod1", &plan("cali1", &["10.65.0.2"])).unwrap();
        ip("-n pod1 link set eth0 down").unwrap();
        ip("-n pod1 link set eth0 name eth7").unwrap();
        let target = endpoint(Some(&pod_path("pod1")), route_to(&["10.65.0.2"]));
        assert_eq!(tear_down(target).unwrap(), removed("cali1"));
        assert_eq!(host.in_pod("pod1", || Ok(link_names())).unwrap(), ["lo"]);
    });
}

/// The call has no information about other interfaces of the pod.
#[test]
fn teardown_keeps_a_host_end_whose_peer_is_another_pod_interface() {
    isolated(|host| {
        set_up(host, "pod1", &plan("cali1", &["10.65.0.2"])).unwrap();
        let other = TeardownTarget {
            container_ifname: "eth1".into(),
            ..endpoint(Some(&pod_path("pod1")), HostLinkProof::NameUnlessPeerInPod)
        };
        assert_eq!(tear_down(other.clone()).unwrap(), Removed::default());
        assert_eq!(link_names(), ["lo", "cali1"]);
        host.add_pod("pod2").unwrap();
        let gone = TeardownTarget {
            netns: None,
            ..other.clone()
        };
        let elsewhere = TeardownTarget {
            netns: Some(pod_path("pod2")),
            ..other
        };
        for left_behind in [gone, elsewhere] {
            assert_eq!(tear_down(left_behind).unwrap(), removed("cali1"));
            set_up(host, "pod1", &plan("cali1", &["10.65.0.2"])).unwrap();
        }
    });
}

#[test]
fn teardown_after_the_deletion_of_the_netns_leaves_no_interface() {
    isolated(|host| {
        set_up(host, "pod1", &plan("cali1", &["10.65.0.2"])).unwrap();
        host.delete_pod("pod1").unwrap();
        tear_down(endpoint(Some(&pod_path("pod1")), route_to(&["10.65.0.2"]))).unwrap();
        assert_eq!(
            link_names(),
            ["lo"],
            "either the kernel was first or we were"
        );
    });
}

/// The nodes of kind have an `eth0` that is one end of a pair.
#[test]
fn teardown_with_a_netns_of_no_container_removes_the_host_end_and_keeps_the_hosts_eth0() {
    isolated(|host| {
        ip("link add eth0 type veth peer name other0").unwrap();
        let file = host.dir("files").join("file");
        std::fs::write(&file, "").unwrap();
        let (below, directory) = (file.join("below"), host.dir("files"));
        let own = Path::new("/proc/thread-self/ns/net");
        for netns in [
            file.as_path(),
            &below,
            &directory,
            own,
            Path::new("/proc/self/ns/mnt"),
        ] {
            set_up(host, "pod1", &plan("cali1", &["10.65.0.2"])).unwrap();
            let stranger = TeardownTarget {
                container_id: Some("c2".into()),
                ..endpoint(Some(netns), HostLinkProof::Name)
            };
            assert_eq!(
                tear_down(stranger).unwrap(),
                Removed::default(),
                "{}",
                netns.display()
            );
            let done = tear_down(endpoint(Some(netns), HostLinkProof::Absent)).unwrap();
            assert_eq!(done, removed("cali1"), "{}", netns.display());
            assert_eq!(
                tear_down(endpoint(Some(netns), HostLinkProof::Absent)).unwrap(),
                Removed::default()
            );
            let mut names = link_names();
            names.sort_unstable();
            assert_eq!(names, ["eth0", "lo", "other0"], "{}", netns.display());
        }
    });
}

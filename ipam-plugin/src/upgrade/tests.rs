use std::collections::BTreeMap;
use std::fs;

use libcalico::api::{ClusterInformation, ClusterInformationSpec, Node, ObjectKey};
use libcalico::ipam::Block;
use libcalico::kubernetes::{PodOnNode, PodOnNodeKey};
use libcalico::migration::{IMPORTING, V1_LOCKED_BY};
use libcalico::store::Kind;
use serde_json::json;

use super::{Places, migrate};
use allocation::testing::{Cluster, Fault, MemoryStore, assert_consistent, held};
use os::clock::Clock;

struct HostLocalNode {
    cluster: Cluster,
    places: Places,
    _directory: tempfile::TempDir,
}

impl HostLocalNode {
    /// Creates node `node1` with the range 10.244.7.0/24 and these files of host-local.
    fn with(files: &[(&str, &str)]) -> HostLocalNode {
        let cluster = Cluster::on(MemoryStore::sequential());
        cluster.pool("pool4", "10.244.0.0/16", 26);
        let node = json!({
            "metadata": { "name": "node1" },
            "status": { "podCIDRs": ["10.244.7.0/24", "fd00::/64"] },
        });
        let node: Node = serde_json::from_value(node).unwrap();
        cluster.store.put(&node.key(), &node);
        let directory = tempfile::tempdir().unwrap();
        let (leases, plugins) = (
            directory.path().join("k8s-pod-network"),
            directory.path().join("bin"),
        );
        for path in [&leases, &plugins] {
            fs::create_dir_all(path).unwrap();
        }
        for (name, text) in files {
            fs::write(leases.join(name), text).unwrap();
        }
        for name in ["calico", "host-local", "portmap"] {
            fs::write(plugins.join(name), "").unwrap();
        }
        HostLocalNode {
            cluster,
            places: Places { leases, plugins },
            _directory: directory,
        }
    }

    fn pod(&self, name: &str, ip: &str, phase: &str) {
        let pod = json!({ "metadata": { "name": name, "namespace": "ns" },
                "spec": { "nodeName": "node1" },
                          "status": { "phase": phase, "podIP": ip, "podIPs": [{ "ip": ip }] } });
        let key = PodOnNodeKey {
            node: "node1".into(),
            namespace: "ns".into(),
            name: name.into(),
        };
        self.cluster
            .store
            .put(&key, &serde_json::from_value::<PodOnNode>(pod).unwrap());
    }

    async fn pass(&self) -> Result<(), String> {
        let outcome = migrate(
            &self.cluster.store,
            &self.cluster.clock,
            &self.places,
            "node1",
        )
        .await;
        outcome.map_err(|error| error.to_string())
    }

    fn is_ready(&self) -> bool {
        let cluster = self
            .cluster
            .store
            .pairs()
            .get::<ClusterInformation>(&ObjectKey::global("default"));
        cluster.unwrap().spec.datastore_ready == Some(true)
    }

    fn lock_with(&self, mark: &str) {
        self.cluster
            .store
            .put(&ObjectKey::global("default"), &locked_with(mark));
    }

    /// Replaces the ClusterInformation as soon as the first of two pods has its address. Asserts
    /// that the other address is not assigned while the datastore is ready.
    fn change_after_the_first_address(changed: &ClusterInformation) -> HostLocalNode {
        let upgraded =
            HostLocalNode::with(&[("10.244.7.2", "c-first"), ("10.244.7.3", "c-second")]);
        upgraded.pod("first", "10.244.7.2", "Running");
        upgraded.pod("second", "10.244.7.3", "Running");
        let (key, mut changed) = (
            ObjectKey::global("default"),
            Some(changed.encode().unwrap()),
        );
        upgraded.cluster.store.before_each(move |_, writes, pairs| {
            if held(pairs).len() == 2 {
                if let Some(changed) = changed.take() {
                    pairs.put(ClusterInformation::path(&key), changed);
                }
                let is_assigned = writes
                    .into_iter()
                    .flatten()
                    .any(|write| write.kind == Block::KIND);
                let cluster = pairs.get::<ClusterInformation>(&key).unwrap();
                assert!(
                    !is_assigned || cluster.spec.datastore_ready != Some(true),
                    "other nodes may assign addresses"
                );
            }
            Fault::None
        });
        upgraded
    }

    /// Asserts that a pass beside this lock fails with `reason` and writes nothing, and that a pass
    /// after the unlock succeeds.
    async fn assert_waits_for_unlock(&self, mark: &str, reason: &str) {
        self.pod("web", "10.244.7.2", "Running");
        self.lock_with(mark);
        self.cluster.store.before_each(|_, writes, _| {
            assert!(
                writes.unwrap_or_default().is_empty(),
                "the datastore belongs to the program that locked it"
            );
            Fault::None
        });
        let error = self.pass().await.unwrap_err();
        assert!(error.contains(reason), "{error}");
        assert!(self.places.leases.exists() && self.places.plugins.join("calico").exists());
        self.cluster.store.end_faults();
        self.cluster
            .store
            .put(&ObjectKey::global("default"), &ready());
        self.pass().await.unwrap();
        assert!(self.is_ready() && !self.places.leases.exists());
    }

    fn tunnel_address(&self) -> String {
        let node = self
            .cluster
            .store
            .pairs()
            .get::<Node>(&ObjectKey::global("node1"))
            .unwrap();
        node.spec.bgp.unwrap_or_default().ipv4_ipip_tunnel_addr
    }

    fn held(&self) -> BTreeMap<String, Vec<String>> {
        let text = |ips: Vec<std::net::IpAddr>| ips.iter().map(ToString::to_string).collect();
        held(&self.cluster.store.pairs())
            .into_iter()
            .map(|(id, ips)| (id.to_string(), text(ips)))
            .collect()
    }
}

fn ready() -> ClusterInformation {
    let spec = ClusterInformationSpec {
        datastore_ready: Some(true),
        ..ClusterInformationSpec::default()
    };
    ClusterInformation::new("default", spec)
}

fn locked_with(mark: &str) -> ClusterInformation {
    let mut cluster = ready();
    cluster.spec.datastore_ready = Some(false);
    cluster
        .metadata
        .annotations
        .insert(mark.into(), "uid".into());
    cluster
}

const FILES: [(&str, &str); 5] = [
    ("10.244.7.2", "c-web\r\neth0"),
    ("10.244.7.3", "c-gone\r\neth0"),
    ("10.244.7.9", "c-ended"),
    ("last_reserved_ip.0", "10.244.7.9"),
    ("lock", ""),
];

#[tokio::test]
async fn host_local_addresses_of_running_pods_are_allocated_in_calico() {
    let upgraded = HostLocalNode::with(&FILES);
    upgraded.pod("web", "10.244.7.2", "Running");
    upgraded.pod("other", "10.244.7.200", "Running");
    upgraded.pod("ended", "10.244.7.9", "Succeeded");
    upgraded.pass().await.unwrap();
    let expected = [
        ("ipip-tunnel-addr-node1", "10.244.7.1"),
        ("k8s-pod-network.c-web", "10.244.7.2"),
    ];
    assert_eq!(
        upgraded.held(),
        expected
            .map(|(id, ip)| (id.to_owned(), vec![ip.to_owned()]))
            .into()
    );
    let block = upgraded.cluster.block("10.244.7.0/26").unwrap();
    let noted = |ip: &str| {
        block
            .allocation(ip.parse().unwrap())
            .unwrap()
            .attributes()
            .unwrap()
            .clone()
    };
    assert_eq!(
        noted("10.244.7.2").keys().collect::<Vec<_>>(),
        ["namespace", "node", "pod"]
    );
    assert_eq!(noted("10.244.7.1")["type"], "ipipTunnelAddress");
    assert!(upgraded.is_ready() && !upgraded.places.leases.exists());
    assert_eq!(upgraded.tunnel_address(), "10.244.7.1");
    let left: Vec<_> = fs::read_dir(&upgraded.places.plugins)
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(left, ["portmap"]);
    assert!(upgraded.cluster.clock.elapsed() >= super::LAST_CALLS);
    assert_consistent(&upgraded.cluster.store.pairs(), true);
    upgraded.pass().await.unwrap();
}

/// A power loss leaves such a file.
#[tokio::test]
async fn host_local_file_without_a_container_does_not_stop_the_upgrade() {
    let upgraded = HostLocalNode::with(&[("10.244.7.2", ""), ("10.244.7.3", "c-web")]);
    upgraded.pod("cut", "10.244.7.2", "Running");
    upgraded.pod("web", "10.244.7.3", "Running");
    upgraded.pass().await.unwrap();
    let expected = [
        ("ipip-tunnel-addr-node1", "10.244.7.1"),
        ("k8s-pod-network.c-web", "10.244.7.3"),
    ];
    assert_eq!(
        upgraded.held(),
        expected
            .map(|(id, ip)| (id.to_owned(), vec![ip.to_owned()]))
            .into()
    );
    assert!(upgraded.is_ready() && !upgraded.places.leases.exists());
}

#[tokio::test]
async fn upgrade_without_host_local_files_does_not_lock_the_datastore() {
    let upgraded = HostLocalNode::with(&[]);
    upgraded.cluster.store.before_each(|_, writes, _| {
        let stops = writes
            .into_iter()
            .flatten()
            .any(|write| write.kind == ClusterInformation::KIND);
        assert!(!stops, "the cluster is not to be stopped for nothing");
        Fault::None
    });
    upgraded.pass().await.unwrap();
    assert!(!upgraded.places.leases.exists() && upgraded.places.plugins.join("calico").exists());
    assert_eq!(upgraded.tunnel_address(), "10.244.7.1");
    upgraded
        .cluster
        .store
        .before_each(|_, _, _| panic!("nobody needs to be asked"));
    upgraded.pass().await.unwrap();
}

/// A write to v1 after its copy would be lost, and an unlocked v1 would be in use beside v3.
/// Shows SEC-71.
#[tokio::test]
async fn upgrade_during_a_migration_to_v3_changes_nothing() {
    for files in [&FILES[..], &[]] {
        let upgraded = HostLocalNode::with(files);
        upgraded
            .assert_waits_for_unlock(
                V1_LOCKED_BY,
                "a migration to projectcalico.org/v3 has locked the datastore",
            )
            .await;
    }
}

/// The datastore may be locked after the first look at it. Shows SEC-71.
#[tokio::test]
async fn upgrade_does_not_end_the_lock_of_a_migration_or_an_import() {
    let upgraded = HostLocalNode::with(&FILES);
    assert!(
        super::set_ready(&upgraded.cluster.store, &upgraded.cluster.clock, true)
            .await
            .is_ok()
    );
    for mark in [V1_LOCKED_BY, IMPORTING] {
        upgraded.lock_with(mark);
        for ready in [false, true] {
            assert!(
                super::set_ready(&upgraded.cluster.store, &upgraded.cluster.clock, ready)
                    .await
                    .is_err()
            );
            assert!(!upgraded.is_ready());
        }
    }
}

#[tokio::test]
async fn upgrade_assigns_no_address_after_a_migration_or_an_import_has_locked_the_datastore() {
    for mark in [V1_LOCKED_BY, IMPORTING] {
        let upgraded = HostLocalNode::change_after_the_first_address(&locked_with(mark));
        upgraded.pass().await.unwrap_err();
        assert_eq!(
            upgraded.held().len(),
            2,
            "of the tunnel and of the first pod: {:?}",
            upgraded.held()
        );
        assert!(!upgraded.is_ready() && upgraded.places.leases.join("10.244.7.3").exists());
        upgraded.cluster.store.end_faults();
        upgraded
            .cluster
            .store
            .put(&ObjectKey::global("default"), &ready());
        upgraded.pass().await.unwrap();
        assert_eq!(upgraded.held()["k8s-pod-network.c-second"], ["10.244.7.3"]);
        assert!(upgraded.is_ready() && !upgraded.places.leases.exists());
    }
}

#[tokio::test]
async fn upgrade_locks_the_datastore_again_after_the_upgrade_of_another_node_has_ended() {
    let upgraded = HostLocalNode::change_after_the_first_address(&ready());
    upgraded.pass().await.unwrap();
    assert_eq!(upgraded.held().len(), 3);
    assert!(upgraded.is_ready() && !upgraded.places.leases.exists());
}

#[tokio::test]
async fn upgrade_during_an_incomplete_import_writes_nothing_until_the_import_has_ended() {
    HostLocalNode::with(&FILES)
        .assert_waits_for_unlock(IMPORTING, "an import into the datastore is incomplete")
        .await;
}

#[tokio::test]
async fn interrupted_upgrade_pass_is_completed_by_the_next_pass() {
    for fault in [Fault::Refused, Fault::LostRequest, Fault::LostAnswer] {
        for at in 0..60 {
            let upgraded = HostLocalNode::with(&FILES);
            upgraded.pod("web", "10.244.7.2", "Running");
            upgraded
                .cluster
                .store
                .before_each(move |n, _, _| if n == at { fault } else { Fault::None });
            let broken = upgraded.pass().await.is_err();
            upgraded.cluster.store.end_faults();
            upgraded.pass().await.unwrap();
            assert!(
                upgraded.is_ready() && !upgraded.places.leases.exists(),
                "{fault:?} at {at}"
            );
            assert_eq!(
                upgraded.held()["k8s-pod-network.c-web"],
                ["10.244.7.2"],
                "{fault:?} at {at}"
            );
            assert_eq!(upgraded.tunnel_address(), "10.244.7.1");
            assert_consistent(&upgraded.cluster.store.pairs(), true);
            assert!(at > 0 || broken, "the first request was not hit");
        }
    }
}

#[tokio::test]
async fn concurrent_writes_are_retried_and_an_existing_tunnel_address_is_preserved() {
    let upgraded = HostLocalNode::with(&FILES);
    let mut conflicts = BTreeMap::<&str, u32>::new();
    upgraded.cluster.store.before_each(move |_, writes, pairs| {
        for write in writes.into_iter().flatten() {
            let seen = conflicts.entry(write.kind).or_default();
            if ["Node", "ClusterInformation"].contains(&write.kind) && *seen < 3 {
                *seen += 1;
                pairs.touch(&write.path);
            }
        }
        Fault::None
    });
    upgraded.pass().await.unwrap();
    assert!(upgraded.is_ready());
    assert_eq!(upgraded.tunnel_address(), "10.244.7.1");

    let upgraded = HostLocalNode::with(&[]);
    let node = json!({
        "metadata": { "name": "node1" }, "spec": { "bgp": { "ipv4IPIPTunnelAddr": "10.9.9.9" } },
    });
    let node: Node = serde_json::from_value(node).unwrap();
    upgraded.cluster.store.put(&node.key(), &node);
    upgraded.pass().await.unwrap();
    assert_eq!(
        (upgraded.tunnel_address().as_str(), upgraded.held().len()),
        ("10.9.9.9", 0)
    );
}

#[tokio::test]
async fn address_outside_pools_fails_the_upgrade_with_the_datastore_locked() {
    let upgraded = HostLocalNode::with(&[("192.168.0.9", "c-web")]);
    upgraded.pod("web", "192.168.0.9", "Running");
    let error = upgraded.pass().await.unwrap_err();
    assert!(
        error.starts_with("cannot assign 192.168.0.9 in Calico: The provided IP address is not in"),
        "{error}"
    );
    assert!(!upgraded.is_ready() && upgraded.places.leases.join("192.168.0.9").exists());
    let upgraded = HostLocalNode::with(&[]);
    upgraded.cluster.node("node1", &[]);
    assert_eq!(
        upgraded.pass().await.unwrap_err(),
        "no podCidr for node node1"
    );
}

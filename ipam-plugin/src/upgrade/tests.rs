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

struct Lab {
    cluster: Cluster,
    places: Places,
    _directory: tempfile::TempDir,
}

impl Lab {
    /// Creates node `node1` with the range 10.244.7.0/24 and these files of host-local.
    fn with(files: &[(&str, &str)]) -> Lab {
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
        Lab {
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
    fn change_after_the_first_address(changed: &ClusterInformation) -> Lab {
        let lab = Lab::with(&[("10.244.7.2", "c-first"), ("10.244.7.3", "c-second")]);
        lab.pod("first", "10.244.7.2", "Running");
        lab.pod("second", "10.244.7.3", "Running");
        let (key, mut changed) = (
            ObjectKey::global("default"),
            Some(changed.encode().unwrap()),
        );
        lab.cluster.store.before_each(move |_, writes, pairs| {
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
        lab
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
    let lab = Lab::with(&FILES);
    lab.pod("web", "10.244.7.2", "Running");
    lab.pod("other", "10.244.7.200", "Running");
    lab.pod("ended", "10.244.7.9", "Succeeded");
    lab.pass().await.unwrap();
    let expected = [
        ("ipip-tunnel-addr-node1", "10.244.7.1"),
        ("k8s-pod-network.c-web", "10.244.7.2"),
    ];
    assert_eq!(
        lab.held(),
        expected
            .map(|(id, ip)| (id.to_owned(), vec![ip.to_owned()]))
            .into()
    );
    let block = lab.cluster.block("10.244.7.0/26").unwrap();
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
    assert!(lab.is_ready() && !lab.places.leases.exists());
    assert_eq!(lab.tunnel_address(), "10.244.7.1");
    let left: Vec<_> = fs::read_dir(&lab.places.plugins)
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(left, ["portmap"]);
    assert!(lab.cluster.clock.elapsed() >= super::LAST_CALLS);
    assert_consistent(&lab.cluster.store.pairs(), true);
    lab.pass().await.unwrap();
}

/// A power loss leaves such a file.
#[tokio::test]
async fn host_local_file_without_a_container_does_not_stop_the_upgrade() {
    let lab = Lab::with(&[("10.244.7.2", ""), ("10.244.7.3", "c-web")]);
    lab.pod("cut", "10.244.7.2", "Running");
    lab.pod("web", "10.244.7.3", "Running");
    lab.pass().await.unwrap();
    let expected = [
        ("ipip-tunnel-addr-node1", "10.244.7.1"),
        ("k8s-pod-network.c-web", "10.244.7.3"),
    ];
    assert_eq!(
        lab.held(),
        expected
            .map(|(id, ip)| (id.to_owned(), vec![ip.to_owned()]))
            .into()
    );
    assert!(lab.is_ready() && !lab.places.leases.exists());
}

#[tokio::test]
async fn upgrade_without_host_local_files_does_not_lock_the_datastore() {
    let lab = Lab::with(&[]);
    lab.cluster.store.before_each(|_, writes, _| {
        let stops = writes
            .into_iter()
            .flatten()
            .any(|write| write.kind == ClusterInformation::KIND);
        assert!(!stops, "the cluster is not to be stopped for nothing");
        Fault::None
    });
    lab.pass().await.unwrap();
    assert!(!lab.places.leases.exists() && lab.places.plugins.join("calico").exists());
    assert_eq!(lab.tunnel_address(), "10.244.7.1");
    lab.cluster
        .store
        .before_each(|_, _, _| panic!("nobody needs to be asked"));
    lab.pass().await.unwrap();
}

/// A write to v1 after its copy would be lost, and an unlocked v1 would be in use beside v3.
#[tokio::test]
async fn upgrade_during_a_migration_to_v3_changes_nothing() {
    for files in [&FILES[..], &[]] {
        let lab = Lab::with(files);
        lab.assert_waits_for_unlock(
            V1_LOCKED_BY,
            "a migration to projectcalico.org/v3 has locked the datastore",
        )
        .await;
    }
}

/// The datastore may be locked after the first look at it.
#[tokio::test]
async fn upgrade_does_not_end_the_lock_of_a_migration_or_an_import() {
    let lab = Lab::with(&FILES);
    assert!(
        super::set_ready(&lab.cluster.store, &lab.cluster.clock, true)
            .await
            .is_ok()
    );
    for mark in [V1_LOCKED_BY, IMPORTING] {
        lab.lock_with(mark);
        for ready in [false, true] {
            assert!(
                super::set_ready(&lab.cluster.store, &lab.cluster.clock, ready)
                    .await
                    .is_err()
            );
            assert!(!lab.is_ready());
        }
    }
}

#[tokio::test]
async fn upgrade_assigns_no_address_after_a_migration_or_an_import_has_locked_the_datastore() {
    for mark in [V1_LOCKED_BY, IMPORTING] {
        let lab = Lab::change_after_the_first_address(&locked_with(mark));
        lab.pass().await.unwrap_err();
        assert_eq!(
            lab.held().len(),
            2,
            "of the tunnel and of the first pod: {:?}",
            lab.held()
        );
        assert!(!lab.is_ready() && lab.places.leases.join("10.244.7.3").exists());
        lab.cluster.store.end_faults();
        lab.cluster
            .store
            .put(&ObjectKey::global("default"), &ready());
        lab.pass().await.unwrap();
        assert_eq!(lab.held()["k8s-pod-network.c-second"], ["10.244.7.3"]);
        assert!(lab.is_ready() && !lab.places.leases.exists());
    }
}

#[tokio::test]
async fn upgrade_locks_the_datastore_again_after_the_upgrade_of_another_node_has_ended() {
    let lab = Lab::change_after_the_first_address(&ready());
    lab.pass().await.unwrap();
    assert_eq!(lab.held().len(), 3);
    assert!(lab.is_ready() && !lab.places.leases.exists());
}

#[tokio::test]
async fn upgrade_during_an_incomplete_import_writes_nothing_until_the_import_has_ended() {
    Lab::with(&FILES)
        .assert_waits_for_unlock(IMPORTING, "an import into the datastore is incomplete")
        .await;
}

#[tokio::test]
async fn interrupted_upgrade_pass_is_completed_by_the_next_pass() {
    for fault in [Fault::Refused, Fault::LostRequest, Fault::LostAnswer] {
        for at in 0..60 {
            let lab = Lab::with(&FILES);
            lab.pod("web", "10.244.7.2", "Running");
            lab.cluster
                .store
                .before_each(move |n, _, _| if n == at { fault } else { Fault::None });
            let broken = lab.pass().await.is_err();
            lab.cluster.store.end_faults();
            lab.pass().await.unwrap();
            assert!(
                lab.is_ready() && !lab.places.leases.exists(),
                "{fault:?} at {at}"
            );
            assert_eq!(
                lab.held()["k8s-pod-network.c-web"],
                ["10.244.7.2"],
                "{fault:?} at {at}"
            );
            assert_eq!(lab.tunnel_address(), "10.244.7.1");
            assert_consistent(&lab.cluster.store.pairs(), true);
            assert!(at > 0 || broken, "the first request was not hit");
        }
    }
}

#[tokio::test]
async fn concurrent_writes_are_retried_and_an_existing_tunnel_address_is_preserved() {
    let lab = Lab::with(&FILES);
    let mut conflicts = BTreeMap::<&str, u32>::new();
    lab.cluster.store.before_each(move |_, writes, pairs| {
        for write in writes.into_iter().flatten() {
            let seen = conflicts.entry(write.kind).or_default();
            if ["Node", "ClusterInformation"].contains(&write.kind) && *seen < 3 {
                *seen += 1;
                pairs.touch(&write.path);
            }
        }
        Fault::None
    });
    lab.pass().await.unwrap();
    assert!(lab.is_ready());
    assert_eq!(lab.tunnel_address(), "10.244.7.1");

    let lab = Lab::with(&[]);
    let node = json!({
        "metadata": { "name": "node1" }, "spec": { "bgp": { "ipv4IPIPTunnelAddr": "10.9.9.9" } },
    });
    let node: Node = serde_json::from_value(node).unwrap();
    lab.cluster.store.put(&node.key(), &node);
    lab.pass().await.unwrap();
    assert_eq!(
        (lab.tunnel_address().as_str(), lab.held().len()),
        ("10.9.9.9", 0)
    );
}

#[tokio::test]
async fn address_outside_pools_fails_the_upgrade_with_the_datastore_locked() {
    let lab = Lab::with(&[("192.168.0.9", "c-web")]);
    lab.pod("web", "192.168.0.9", "Running");
    let error = lab.pass().await.unwrap_err();
    assert!(
        error.starts_with("cannot assign 192.168.0.9 in Calico: The provided IP address is not in"),
        "{error}"
    );
    assert!(!lab.is_ready() && lab.places.leases.join("192.168.0.9").exists());
    let lab = Lab::with(&[]);
    lab.cluster.node("node1", &[]);
    assert_eq!(lab.pass().await.unwrap_err(), "no podCidr for node node1");
}

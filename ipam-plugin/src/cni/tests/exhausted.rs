use std::fs;
use std::net::IpAddr;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use libcalico::ipam::ReleaseRequest;
use netconf::CniError;
use serde_json::Value;

use crate::cni::testing::call;
use crate::cni::{self, IpamRequest};
use allocation::alloc::inputs::AllocationInputs;
use allocation::exhausted::ReleaseGuard;
use allocation::release::ReleaseInputs;
use allocation::release::release_addresses;
use allocation::testing::{Cluster, Fault, MemoryStore, assert_consistent};

struct ExhaustedNode {
    cluster: Cluster,
    directory: tempfile::TempDir,
}

impl ExhaustedNode {
    fn new(store: MemoryStore) -> Self {
        let cluster = Cluster::on(store);
        cluster.pool("tiny", "10.66.0.0/30", 31);
        ExhaustedNode {
            cluster,
            directory: tempfile::tempdir().unwrap(),
        }
    }

    /// Creates a full pool: the node has all addresses of one block and the first of the other.
    async fn full(store: MemoryStore) -> Self {
        let full_node = ExhaustedNode::new(store);
        for container in ["a", "b", "c"] {
            full_node.add(container).await.unwrap();
        }
        full_node
            .cluster
            .one("node2", "net.elsewhere")
            .await
            .unwrap();
        full_node.cluster.store.take_surveys();
        full_node
    }

    fn file(&self) -> PathBuf {
        self.directory.path().join("cni/no_free_address")
    }

    fn call(&self, container: &str) -> IpamRequest {
        IpamRequest {
            exhausted_file: Some(self.file()),
            ..call(container)
        }
    }

    async fn ask(&self, call: &IpamRequest) -> Result<IpAddr, CniError> {
        let (store, clock) = (&self.cluster.store, &self.cluster.clock);
        let inputs = AllocationInputs::read(store, &call.inputs_query())
            .await
            .unwrap();
        Ok(
            cni::add(store, clock, call, inputs, None).await?.result.ips[0]
                .address
                .addr(),
        )
    }

    async fn add(&self, container: &str) -> Result<IpAddr, CniError> {
        self.ask(&self.call(container)).await
    }

    /// Runs an ADD that must fail. Returns the number of its surveys, and the number of blocks that
    /// it read in full.
    async fn searches(&self, container: &str) -> (usize, usize) {
        self.cluster.store.take_surveys();
        self.add(container).await.unwrap_err();
        self.cluster.store.take_surveys()
    }

    async fn del(&self, container: &str) {
        let call = self.call(container);
        let inputs = ReleaseInputs::read(&self.cluster.store, &call.handles())
            .await
            .unwrap();
        cni::del(&self.cluster.store, &self.cluster.clock, &call, inputs)
            .await
            .unwrap();
    }

    fn pass(&self, seconds: u64) {
        self.cluster.clock.advance(Duration::from_secs(seconds));
    }

    /// Releases an address without an update of this node's notes, as another node does.
    async fn release_elsewhere(&self, handle: &str) {
        let handle = libcalico::ipam::HandleId::new(handle);
        let block = self
            .cluster
            .handle(handle.as_str())
            .unwrap()
            .block
            .into_keys()
            .next()
            .unwrap();
        let ip = self
            .cluster
            .block(&block.to_string())
            .unwrap()
            .addresses_of(&handle)[0];
        let request = ReleaseRequest {
            ip,
            handle: Some(handle),
            sequence: None,
        };
        release_addresses(&self.cluster.store, &self.cluster.clock, &[request])
            .await
            .unwrap();
    }
}

fn stores() -> [MemoryStore; 2] {
    [MemoryStore::sequential(), MemoryStore::transactional()]
}

#[tokio::test]
async fn exhausted_search_is_not_repeated_while_its_record_is_valid() {
    for store in stores() {
        let full_node = ExhaustedNode::full(store).await;
        let first = full_node.add("x").await.unwrap_err();
        assert_eq!(full_node.cluster.store.take_surveys().0, 1);
        let mut holds = Vec::new();
        for _ in 0..6 {
            let again = full_node.add("y").await.unwrap_err();
            assert_eq!(
                (again.code, &again.msg, &again.details),
                (first.code, &first.msg, &first.details)
            );
            assert_eq!(
                full_node.cluster.store.take_surveys(),
                (0, 0),
                "by the note, without a whole block"
            );
            let mut held = 0;
            while full_node.searches("z").await.0 == 0 {
                full_node.pass(1);
                held += 1;
            }
            holds.push(held);
        }
        assert_eq!(holds, [5, 10, 20, 40, 60, 60]);
        assert_consistent(&full_node.cluster.store.pairs(), true);
    }
}

#[tokio::test]
async fn change_of_pools_reservations_or_settings_ends_the_exhaustion_record() {
    for store in stores() {
        let full_node = ExhaustedNode::full(store).await;
        let store = &full_node.cluster.store;
        full_node.add("x").await.unwrap_err();
        let changes: [(&str, &dyn Fn()); 4] = [
            ("pool", &|| {
                store.edit(|pairs| {
                    pairs.touch("/calico/resources/v3/projectcalico.org/ippools/tiny")
                })
            }),
            ("reservation", &|| {
                full_node.cluster.reserve(&["10.99.0.0/24"])
            }),
            ("settings", &|| {
                full_node
                    .cluster
                    .configure(|config| config.max_blocks_per_host = 7)
            }),
            ("settings again", &|| {
                full_node
                    .cluster
                    .configure(|config| config.strict_affinity = true)
            }),
        ];
        for (what, change) in changes {
            change();
            assert_eq!(full_node.searches("x").await.0, 1, "{what}");
            assert_eq!(full_node.searches("x").await, (0, 0), "{what}");
        }
        full_node.cluster.pool("more", "10.67.0.0/30", 31);
        assert!(
            full_node
                .add("x")
                .await
                .unwrap()
                .to_string()
                .starts_with("10.67.0."),
            "a pool that was added is used at once"
        );
    }
}

#[tokio::test]
async fn address_released_by_this_node_is_found_at_once() {
    for container in ["a", "c"] {
        for store in stores() {
            let full_node = ExhaustedNode::full(store).await;
            full_node.add("x").await.unwrap_err();
            full_node.del(container).await;
            full_node.add("x").await.unwrap();
            assert_eq!(
                full_node.searches("y").await.0,
                1,
                "the note of before counts no more"
            );
            assert_consistent(&full_node.cluster.store.pairs(), true);
        }
    }
}

#[tokio::test]
async fn del_without_addresses_leaves_the_exhaustion_record() {
    let full_node = ExhaustedNode::full(MemoryStore::sequential()).await;
    full_node.add("x").await.unwrap_err();
    full_node.del("x").await;
    assert_eq!(full_node.searches("x").await, (0, 0));
}

#[tokio::test]
async fn search_begun_before_a_release_leaves_no_exhaustion_record() {
    let full_node = ExhaustedNode::full(MemoryStore::sequential()).await;
    let file = full_node.file();
    full_node.cluster.store.before_each(move |_, _, _| {
        // No address is really released, so the search finds none.
        drop(ReleaseGuard::on(Some(&file)));
        Fault::None
    });
    full_node.add("x").await.unwrap_err();
    full_node.cluster.store.end_faults();
    assert_eq!(full_node.searches("x").await.0, 1);
    assert_eq!(full_node.searches("x").await, (0, 0));
}

/// kube-controllers' garbage collection releases an address of the node's own block, without an
/// update of the notes.
#[tokio::test]
async fn own_block_with_room_is_used_despite_the_exhaustion_record() {
    for store in stores() {
        let full_node = ExhaustedNode::full(store).await;
        full_node.add("x").await.unwrap_err();
        full_node.release_elsewhere("net.a").await;
        full_node.cluster.store.take_surveys();
        full_node.add("x").await.unwrap();
        assert_eq!(
            full_node.cluster.store.take_surveys(),
            (0, 1),
            "one own block has changed"
        );
        assert_eq!(full_node.searches("y").await, (0, 1));
        assert_eq!(full_node.searches("y").await, (0, 0));
        assert_consistent(&full_node.cluster.store.pairs(), true);
    }
}

#[tokio::test]
async fn address_released_in_a_foreign_block_is_found_when_the_record_expires() {
    let full_node = ExhaustedNode::new(MemoryStore::sequential());
    for handle in ["net.1", "net.2", "net.3", "net.4"] {
        full_node.cluster.one("node2", handle).await.unwrap();
    }
    full_node.add("x").await.unwrap_err();
    full_node.release_elsewhere("net.3").await;
    assert_eq!(full_node.searches("x").await, (0, 0));
    full_node.pass(5);
    full_node.add("x").await.unwrap();
    assert_eq!(full_node.searches("y").await.0, 1);
    full_node.pass(5);
    assert_eq!(full_node.searches("y").await.0, 1);
}

#[tokio::test]
async fn exhaustion_record_applies_to_its_pools_and_family_only() {
    let full_node = ExhaustedNode::full(MemoryStore::sequential()).await;
    full_node
        .cluster
        .pool_with("manual", "10.67.0.0/31", 31, |spec| {
            spec.assignment_mode = Some(libcalico::api::AssignmentMode::Manual.into());
        });
    full_node.cluster.pool("six", "fd00::/126", 127);
    full_node.add("x").await.unwrap_err();
    let manual = |container| IpamRequest {
        ipv4_pools: vec!["manual".into()],
        ..full_node.call(container)
    };
    full_node.ask(&manual("p")).await.unwrap();
    full_node
        .ask(&IpamRequest {
            assign_ipv4: false,
            assign_ipv6: true,
            ..full_node.call("q")
        })
        .await
        .unwrap();
    full_node.add("x").await.unwrap_err();
    full_node.cluster.store.take_surveys();
    full_node
        .ask(&IpamRequest {
            assign_ipv6: true,
            ..full_node.call("r")
        })
        .await
        .unwrap_err();
    assert_eq!(full_node.cluster.store.take_surveys().0, 0);
    assert_consistent(&full_node.cluster.store.pairs(), true);
}

#[tokio::test]
async fn invalid_or_outdated_exhaustion_records_are_ignored() {
    let full_node = ExhaustedNode::full(MemoryStore::sequential()).await;
    full_node.add("x").await.unwrap_err();
    let (file, good) = (
        full_node.file(),
        fs::read_to_string(full_node.file()).unwrap(),
    );
    let elsewhere = full_node.directory.path().join("elsewhere");
    fs::write(&elsewhere, &good).unwrap();
    for text in [
        "",
        "{",
        "{}",
        "[1]",
        &good[..good.len() / 2],
        &" ".repeat(1 << 19),
    ] {
        fs::write(&file, text).unwrap();
        assert_eq!(full_node.searches("x").await.0, 1, "{text:.20}");
    }
    fs::remove_file(&file).unwrap();
    symlink(&elsewhere, &file).unwrap();
    assert_eq!(full_node.searches("x").await.0, 1, "a link");
    // A file of another boot or another program.
    for text in ["", "x", "1"] {
        fs::write(file.with_extension("release"), text).unwrap();
        assert_eq!(full_node.searches("x").await.0, 1, "{text}");
    }
    let note: Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    let with = |key: &str, value: i64| {
        let mut changed = note.clone();
        changed[0][key] = value.into();
        changed.to_string()
    };
    let made = note[0]["made"].as_i64().unwrap();
    for made in [made + 1, i64::MAX - 60, i64::MIN] {
        fs::write(&file, with("made", made)).unwrap();
        assert_eq!(full_node.searches("x").await.0, 1, "made at {made}");
    }
    fs::write(&file, with("holds", i64::MAX)).unwrap();
    full_node.pass(60);
    assert_eq!(full_node.searches("x").await.0, 1, "for ever");
    fs::remove_file(&file).unwrap();
    fs::create_dir(&file).unwrap();
    assert_eq!(
        (
            full_node.searches("x").await.0,
            full_node.searches("x").await.0
        ),
        (1, 1)
    );
    full_node.del("a").await;
    full_node.add("x").await.unwrap();
}

#[tokio::test]
async fn block_with_a_cooling_address_is_read_on_each_add() {
    let full_node = ExhaustedNode::full(MemoryStore::sequential()).await;
    full_node
        .cluster
        .configure(|config| config.ip_cooldown_seconds = 3);
    full_node.del("a").await;
    assert_eq!(full_node.searches("x").await.0, 1);
    full_node.pass(2);
    assert_eq!(full_node.searches("x").await, (0, 1));
    full_node.pass(2);
    full_node.add("x").await.unwrap();
    assert_consistent(&full_node.cluster.store.pairs(), true);
}

#[tokio::test]
async fn newly_claimed_block_ends_records_for_other_pools() {
    let full_node = ExhaustedNode::new(MemoryStore::sequential());
    for handle in ["net.1", "net.2", "net.3", "net.4"] {
        full_node.cluster.one("node2", handle).await.unwrap();
    }
    full_node.add("x").await.unwrap_err();
    let before = fs::read(full_node.file().with_extension("release")).unwrap();
    full_node.cluster.pool("more", "10.67.0.0/30", 31);
    full_node.add("x").await.unwrap();
    assert_ne!(
        fs::read(full_node.file().with_extension("release")).unwrap(),
        before
    );
}

#[test]
fn single_process_searches_for_concurrent_adds() {
    let runtime = || {
        tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap()
    };
    let full_node = runtime().block_on(ExhaustedNode::full(MemoryStore::sequential()));
    let lock_file = Some(full_node.directory.path().join("ipam.lock"));
    thread::scope(|scope| {
        for container in ["x", "y", "z"] {
            let call = IpamRequest {
                lock_file: lock_file.clone(),
                ..full_node.call(container)
            };
            let full_node = &full_node;
            scope.spawn(move || runtime().block_on(full_node.ask(&call)).unwrap_err());
        }
    });
    assert_eq!(full_node.cluster.store.take_surveys().0, 1);
}

//! The cost of an ADD without a free address in a large cluster.

mod server;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use integration_tests::cluster::{Cluster, on};
use integration_tests::content::Content;
use integration_tests::namespaces::{Host, isolated};
use integration_tests::plugin::{Outcome, Plugins, Usage};
use libcalico::ipam::Block;
use libcalico::store::Kind;
use serde_json::{Map, Value, json};
use server::Server;

/// Maximum memory of an ADD, in KiB.
const MOST_KIB: u64 = 16 << 10;

/// Maximum bytes of responses for an ADD after another one has just searched without success.
const MOST_BYTES: usize = 64 << 10;

/// The time for which another ADD surely sends no search after the first one. The plugin counts
/// five seconds, in whole seconds.
const VALIDITY: Duration = Duration::from_secs(4);

/// Number of attempts to run three ADDs within [`VALIDITY`].
const ATTEMPTS: usize = 5;

/// A node of a cluster without a free address, whose API server generates the blocks.
struct LargeCluster {
    plugins: Plugins,
    netns: PathBuf,
    server: Server,
}

impl LargeCluster {
    fn new(host: &Host, blocks: usize, pages: bool) -> LargeCluster {
        let netns = host.ensure_pod("pod").unwrap();
        LargeCluster {
            plugins: Plugins::locate().unwrap(),
            netns,
            server: Server::start(blocks, pages),
        }
    }

    fn add(&self, container: &str) -> (Outcome, Usage) {
        let conf = json!({
            "cniVersion": "1.0.0", "name": "k8s-pod-network", "type": "calico",
            "datastore_type": "kubernetes",
            "calico_api_group": "crd.projectcalico.org/v1", "nodename": "node1",
            "nodename_file_optional": true,
            "kubernetes": {"k8s_api_root": self.server.url},
            "policy": {"type": "k8s", "k8s_auth_token": "t"},
            "ipam": {"type": "calico-ipam"},
        });
        let call = self
            .plugins
            .verb("calico", "ADD", container, &self.netns, &conf);
        call.env("CNI_ARGS", "K8S_POD_NAMESPACE=default;K8S_POD_NAME=web")
            .run_measured()
            .unwrap()
    }
}

#[track_caller]
fn assert_exhausted(outcome: &Outcome) {
    let message = outcome.error().msg;
    assert!(
        message.contains("Assigned 0 out of 1 requested IPv4 addresses"),
        "{outcome:?}"
    );
}

#[track_caller]
fn assert_small(what: &str, usage: Usage) {
    assert!(usage.peak_kib <= MOST_KIB, "{what}: {usage:?}");
}

/// A list from the API server's cache is not paged.
#[test]
fn add_without_a_free_address_uses_bounded_memory_in_a_large_cluster() {
    isolated(|host| {
        for (blocks, pages) in [(2048, true), (2048, false), (40_960, false)] {
            std::fs::remove_dir_all("/var/run/calico").ok();
            let cluster = LargeCluster::new(host, blocks, pages);
            let (outcome, usage) = cluster.add("x");
            assert_exhausted(&outcome);
            let full = format!(
                "full: {} of",
                if blocks > 40_000 {
                    1 << 21
                } else {
                    blocks * 64
                }
            );
            assert!(outcome.stdout.contains(&full), "{full}: {outcome:?}");
            let (lists, bytes) = (
                cluster.server.count("/ipamblocks?"),
                cluster.server.state.lock().unwrap().bytes,
            );
            assert_small(
                &format!("{blocks} blocks, {lists} lists, {bytes} bytes"),
                usage,
            );
        }
    });
}

/// Runs an ADD that finds no address, and two ADDs that must not search. Returns false if the
/// machine was so slow that these may search.
fn later_adds_list_no_blocks(cluster: &LargeCluster) -> bool {
    let begun = Instant::now();
    let (first, _) = cluster.add("x");
    assert_exhausted(&first);
    for container in ["y", "z"] {
        cluster.server.reset();
        let (again, _) = cluster.add(container);
        assert_eq!(again.stdout, first.stdout);
        if begun.elapsed() > VALIDITY {
            return false;
        }
        let state = cluster.server.state.lock().unwrap();
        let lists = state
            .requests
            .iter()
            .filter(|request| request.contains("/ipamblocks?"))
            .count();
        assert_eq!(lists, 0, "{:#?}", state.requests);
        assert!(
            state.bytes <= MOST_BYTES,
            "{} bytes: {:#?}",
            state.bytes,
            state.requests
        );
    }
    true
}

#[test]
fn add_after_a_failed_search_lists_no_blocks_until_a_pool_changes() {
    isolated(|host| {
        let cluster = LargeCluster::new(host, 2048, true);
        let in_time = (0..ATTEMPTS).any(|_| {
            std::fs::remove_dir_all("/var/run/calico").ok();
            later_adds_list_no_blocks(&cluster)
        });
        assert!(in_time, "each search took longer than {VALIDITY:?}");
        cluster.server.state.lock().unwrap().pools += 1;
        cluster.server.reset();
        assert_exhausted(&cluster.add("x").0);
        assert!(cluster.server.count("/ipamblocks?") > 0);
    });
}

/// The first call writes a handle before it knows that the datastore is not ready.
#[test]
fn add_writes_no_handle_ahead_once_the_datastore_was_not_ready() {
    isolated(|host| {
        let cluster = LargeCluster::new(host, 2, true);
        let recent = Path::new("/var/run/calico/cni/recent_blocks");
        std::fs::create_dir_all(recent.parent().unwrap()).unwrap();
        let blocks = json!({"blocks": {"k8s-pod-network default": {"with_room": ["10.0.0.0/26"]}}});
        std::fs::write(recent, blocks.to_string()).unwrap();
        cluster.server.state.lock().unwrap().ready = false;
        let mut written = Vec::new();
        for container in ["x", "y", "z"] {
            cluster.server.reset();
            assert_eq!(
                cluster.add(container).0.error().msg,
                "Calico is currently not ready to process requests"
            );
            written.push(cluster.server.count("POST "));
        }
        assert_eq!(written, [1, 0, 0]);
    });
}

/// Returns full blocks of `node2`, as etcd and the embedded datastore store them.
fn full_blocks(count: usize) -> impl Iterator<Item = (String, Value)> {
    (0..count).map(|number| {
        let cidr = format!(
            "10.{}.{}.{}/26",
            number >> 10,
            number >> 2 & 255,
            (number & 3) << 6
        );
        let attribute = |place: usize| {
            let pod = format!("web-6d4cf56db6-{number:05}-{place:05}");
            let handle = format!("k8s-pod-network.{number:032x}{place:032x}");
            let time = "2026-08-22 01:02:03 +0000 UTC";
            let owner = json!({
                "namespace": "default", "node": "node2", "pod": pod, "timestamp": time,
            });
            json!({"handle_id": handle, "secondary": owner})
        };
        let sequence: Map<String, Value> = (0..64)
            .map(|place: usize| (place.to_string(), 1.into()))
            .collect();
        let block = json!({
            "cidr": cidr, "affinity": "host:node2", "allocations": (0..64).collect::<Vec<usize>>(),
            "unallocated": [],
            "attributes": (0..64).map(attribute).collect::<Vec<_>>(), "sequenceNumber": 9,
            "sequenceNumberForAllocation": sequence, "deleted": false,
        });
        (Block::path(&cidr.parse().unwrap()), block)
    })
}

/// Adds a pod twice: the second ADD uses the first one's search note.
fn add_twice(cluster: &Cluster<'_>) {
    cluster.load(
        &Content::ready()
            .node("node1")
            .node("node2")
            .pool("pool4", "10.0.0.0/15", 26),
    );
    cluster.store.load(&full_blocks(2048).collect()).unwrap();
    let (pod, conf) = (cluster.pod(1), cluster.conf("node1", json!({})));
    for container in ["searched", "by the note"] {
        let (outcome, usage) = cluster.verb("ADD", &pod, &conf).run_measured().unwrap();
        assert_exhausted(&outcome);
        assert_small(
            &format!("{} with 2048 blocks, {container}", cluster.store.name()),
            usage,
        );
    }
}

#[on(etcd)]
fn add_without_a_free_address_in_etcd_reads_blocks_page_by_page(cluster: &Cluster<'_>) {
    add_twice(cluster);
}

#[on(local)]
fn add_without_a_free_address_in_a_file_reads_blocks_row_by_row(cluster: &Cluster<'_>) {
    add_twice(cluster);
}

/// With strict affinity, node1 cannot use the empty block of node2. The failed ADD leaves a search
/// note.
fn add_after_the_other_node_is_deleted(cluster: &Cluster<'_>) {
    cluster.load(
        &Content::ready()
            .node("node1")
            .node("node2")
            .pool("pool4", "10.66.0.0/30", 30),
    );
    let settings = json!({ "strict_affinity": true, "auto_allocate_blocks": true });
    cluster
        .store
        .put("/calico/ipam/v2/config", &settings)
        .unwrap();
    let (near, far) = (
        cluster.conf("node1", json!({})),
        cluster.conf("node2", json!({})),
    );
    let other = cluster.pod(1);
    cluster.add(&other, &far);
    cluster.delete(&other, &far);
    let pod = cluster.pod(2);
    assert_exhausted(&cluster.verb("ADD", &pod, &near).run());
    let deleted = cluster
        .store
        .calico_ipam(&cluster.plugins, &["delete", "node", "node2"])
        .unwrap();
    assert_eq!(deleted.exit, Some(0), "{deleted:?}");
    cluster.add(&pod, &near);
}

#[on(etcd)]
fn add_uses_the_block_of_a_node_deleted_by_hand_in_etcd_at_once(cluster: &Cluster<'_>) {
    add_after_the_other_node_is_deleted(cluster);
}

#[on(local)]
fn add_uses_the_block_of_a_node_deleted_by_hand_in_a_file_at_once(cluster: &Cluster<'_>) {
    add_after_the_other_node_is_deleted(cluster);
}

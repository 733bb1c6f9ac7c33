//! The cost of an ADD without a free address in a large cluster.

mod server;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use integration_tests::cluster::{Cluster, on_etcd, on_local};
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

/// The time for which another ADD surely sends no search after the first one. The plugin counts five seconds, in whole
/// seconds.
const VALIDITY: Duration = Duration::from_secs(4);

/// Number of attempts to run three ADDs within [`VALIDITY`].
const ATTEMPTS: usize = 5;

struct Node {
    plugins: Plugins,
    netns: PathBuf,
    server: Server,
}

impl Node {
    fn new(host: &Host, blocks: usize, pages: bool) -> Node {
        let netns = host.ensure_pod("pod").unwrap();
        Node { plugins: Plugins::locate().unwrap(), netns, server: Server::start(blocks, pages) }
    }

    fn add(&self, container: &str) -> (Outcome, Usage) {
        let conf = json!({
            "cniVersion": "1.0.0", "name": "k8s-pod-network", "type": "calico", "datastore_type": "kubernetes",
            "calico_api_group": "crd.projectcalico.org/v1", "nodename": "node1", "nodename_file_optional": true,
            "kubernetes": {"k8s_api_root": self.server.url}, "policy": {"type": "k8s", "k8s_auth_token": "t"},
            "ipam": {"type": "calico-ipam"},
        });
        let call = self.plugins.verb("calico", "ADD", container, &self.netns, &conf);
        call.env("CNI_ARGS", "K8S_POD_NAMESPACE=default;K8S_POD_NAME=web").run_measured().unwrap()
    }
}

#[track_caller]
fn assert_exhausted(outcome: &Outcome) {
    let told = outcome.error().msg;
    assert!(told.contains("Assigned 0 out of 1 requested IPv4 addresses"), "{outcome:?}");
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
            let node = Node::new(host, blocks, pages);
            let (outcome, usage) = node.add("x");
            assert_exhausted(&outcome);
            let full = format!("full: {} of", if blocks > 40_000 { 1 << 21 } else { blocks * 64 });
            assert!(outcome.stdout.contains(&full), "{full}: {outcome:?}");
            let (lists, bytes) = (node.server.count("/ipamblocks?"), node.server.state.lock().unwrap().bytes);
            assert_small(&format!("{blocks} blocks, {lists} lists, {bytes} bytes"), usage);
        }
    });
}

/// Runs an ADD that finds no address, and two ADDs that must not search. Returns false if the machine was so slow that
/// these may search.
fn later_adds_list_no_blocks(node: &Node) -> bool {
    let begun = Instant::now();
    let (first, _) = node.add("x");
    assert_exhausted(&first);
    for container in ["y", "z"] {
        node.server.reset();
        let (again, _) = node.add(container);
        assert_eq!(again.stdout, first.stdout);
        if begun.elapsed() > VALIDITY {
            return false;
        }
        let state = node.server.state.lock().unwrap();
        let lists = state.requests.iter().filter(|request| request.contains("/ipamblocks?")).count();
        assert_eq!(lists, 0, "{:#?}", state.requests);
        assert!(state.bytes <= MOST_BYTES, "{} bytes: {:#?}", state.bytes, state.requests);
    }
    true
}

#[test]
fn add_after_a_failed_search_lists_no_blocks_until_a_pool_changes() {
    isolated(|host| {
        let node = Node::new(host, 2048, true);
        let in_time = (0..ATTEMPTS).any(|_| {
            std::fs::remove_dir_all("/var/run/calico").ok();
            later_adds_list_no_blocks(&node)
        });
        assert!(in_time, "each search took longer than {VALIDITY:?}");
        node.server.state.lock().unwrap().pools += 1;
        node.server.reset();
        assert_exhausted(&node.add("x").0);
        assert!(node.server.count("/ipamblocks?") > 0);
    });
}

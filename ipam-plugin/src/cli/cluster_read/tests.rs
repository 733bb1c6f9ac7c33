use libcalico::ipam::{AffinityKey, LOAD_BALANCER_HOST};
use libcalico::store::Kind;
use node_process::process::block_on;
use serde_json::json;

use super::*;
use crate::cli::testing::Shell;
use crate::testing::{MemoryStore, cidr};

fn read(shell: &Shell) -> ClusterRead {
    block_on(ClusterRead::read(&shell.store, &ServicesApi::NotConfigured)).unwrap()
}

/// The embedded datastore lists affinities by owner, as an API server does.
#[test]
fn read_by_kind_and_read_of_all_pairs_have_the_affinities_of_services() {
    let shell = Shell::with_pool();
    shell.put("/calico/ipam/v2/virtual/load-balancer/ipv4/block/10.0.0.64-29", r#"{"state":"confirmed"}"#);
    shell.put(
        "/calico/ipam/v2/assignment/ipv4/block/10.0.0.64-29",
        r#"{"cidr":"10.0.0.64/29","affinity":"virtual:load-balancer","unallocated":[0,1,2,3,4,5,6,7],
            "allocations":[null,null,null,null,null,null,null,null],"attributes":[]}"#,
    );
    let by_kind = block_on(ClusterRead::read_objects(&shell.store)).unwrap();
    let pairs = block_on(ClusterRead::read_pairs(&shell.store, &Progress::new("reading", 0))).unwrap();
    for cluster in [by_kind, pairs] {
        assert_eq!((cluster.blocks.len(), cluster.affinities.len()), (1, 1));
        assert_eq!(cluster.audit(Duration::ZERO), []);
        assert!(cluster.information.is_some());
    }
}

#[test]
fn read_by_kind_has_affinities_without_labels_once() {
    let store = MemoryStore::without_labels();
    for owner in [AffinityOwner::Host("node1".into()), AffinityOwner::Virtual(LOAD_BALANCER_HOST.into())] {
        store.put(&AffinityKey { owner, cidr: cidr("10.0.0.0/29") }, &BlockAffinity::default());
    }
    let cluster = block_on(ClusterRead::read_objects(&store)).unwrap();
    let owners: Vec<_> = cluster.affinities.iter().map(|affinity| affinity.key.owner.name()).collect();
    assert_eq!(owners, ["node1", LOAD_BALANCER_HOST]);
}

#[test]
fn read_by_kind_reports_each_unreadable_object_once() {
    let store = MemoryStore::without_labels();
    let block = Block::path(&cidr("10.0.0.0/29"));
    let key = AffinityKey { owner: AffinityOwner::Host("node1".into()), cidr: cidr("10.0.0.0/29") };
    let affinity = BlockAffinity::path(&key);
    for path in [&affinity, &block] {
        store.edit(|pairs| pairs.put(path.clone(), b"\"spec.cidr is missing\"".to_vec()));
    }
    let cluster = block_on(ClusterRead::read_objects(&store)).unwrap();
    let keys: Vec<_> = cluster.unreadable.iter().map(|object| object.key.as_str()).collect();
    assert_eq!(keys, [block, affinity]);
    assert!(cluster.unreadable[0].reason.contains("spec.cidr is missing"), "{:?}", cluster.unreadable);
}

#[test]
fn tunnel_addresses_are_read_with_the_nodes() {
    let shell = Shell::with_pool();
    shell.apply(&json!({
        "apiVersion": "projectcalico.org/v3", "kind": "Node", "metadata": {"name": "node1"},
        "spec": {"ipv4VXLANTunnelAddr": "10.0.0.200", "ipv6VXLANTunnelAddr": "fd00::1"},
    }));
    let cluster = read(&shell);
    let recorded: Vec<String> =
        cluster.owners.addresses.iter().map(|owned| format!("{} {}", owned.address, owned.owner)).collect();
    assert_eq!(recorded, ["10.0.0.200 Node(node1)", "fd00::1 Node(node1)"]);
    let found: Vec<String> = cluster.audit(Duration::ZERO).iter().map(ToString::to_string).collect();
    assert_eq!(found, ["owner without address: Node(node1) has 10.0.0.200, which is not allocated"]);
}

#[test]
fn services_are_unchecked_without_an_api_server_if_calico_may_serve_them() {
    let shell = Shell::with_pool();
    assert_eq!(read(&shell).unchecked, [""; 0]);
    shell.put(
        "/calico/resources/v3/projectcalico.org/kubecontrollersconfigurations/default",
        r#"{"kind":"KubeControllersConfiguration","apiVersion":"projectcalico.org/v3","metadata":{"name":"default"},
            "spec":{"controllers":{"loadBalancer":{"assignIPs":"AllServices"}}}}"#,
    );
    let unchecked = read(&shell).unchecked;
    assert!(matches!(&unchecked[..], [text] if text.starts_with("Services are not checked: no API")), "{unchecked:?}");
    let invalid = ServicesApi::Invalid("no server".into());
    let unchecked = block_on(ClusterRead::read(&shell.store, &invalid)).unwrap().unchecked;
    assert_eq!(unchecked, ["Services are not checked: no server"]);
}

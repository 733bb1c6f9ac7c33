use libcalico::ipam::{AffinityKey, Handle, LOAD_BALANCER_HOST, load_balancer_handle};
use libcalico::kubernetes::Service;
use libcalico::store::{Kind, Revision};
use node_process::process::block_on;
use serde_json::json;

use super::owners::FoundServices;
use super::*;
use crate::cli::testing::Shell;
use allocation::testing::{MemoryStore, cidr};

fn read(shell: &Shell) -> ClusterRead {
    block_on(ClusterRead::read(&shell.store, &ServicesApi::NotConfigured)).unwrap()
}

/// The embedded datastore lists affinities by owner, as an API server does.
#[test]
fn read_by_kind_and_read_of_all_pairs_have_the_affinities_of_services() {
    let shell = Shell::with_pool();
    shell.put(
        "/calico/ipam/v2/virtual/load-balancer/ipv4/block/10.0.0.64-29",
        r#"{"state":"confirmed"}"#,
    );
    shell.put(
        "/calico/ipam/v2/assignment/ipv4/block/10.0.0.64-29",
        r#"{"cidr":"10.0.0.64/29","affinity":"virtual:load-balancer","unallocated":[0,1,2,3,4,5,6,7],
            "allocations":[null,null,null,null,null,null,null,null],"attributes":[]}"#,
    );
    let by_kind = block_on(ClusterRead::read_objects(&shell.store)).unwrap();
    let pairs = block_on(ClusterRead::read_pairs(
        &shell.store,
        &Progress::new("reading", 0),
    ))
    .unwrap();
    for cluster in [by_kind, pairs] {
        assert_eq!((cluster.blocks.len(), cluster.affinities.len()), (1, 1));
        assert_eq!(cluster.audit(Duration::ZERO), []);
        assert!(cluster.information.is_some());
    }
}

#[test]
fn read_by_kind_has_affinities_without_labels_once() {
    let store = MemoryStore::without_labels();
    for owner in [
        AffinityOwner::Host("node1".into()),
        AffinityOwner::of_services(),
    ] {
        store.put(
            &AffinityKey {
                owner,
                cidr: cidr("10.0.0.0/29"),
            },
            &BlockAffinity::default(),
        );
    }
    let cluster = block_on(ClusterRead::read_objects(&store)).unwrap();
    let owners: Vec<_> = cluster
        .affinities
        .iter()
        .map(|affinity| affinity.key.owner.name())
        .collect();
    assert_eq!(owners, ["node1", LOAD_BALANCER_HOST]);
}

#[test]
fn read_by_kind_reports_each_unreadable_object_once() {
    let store = MemoryStore::without_labels();
    let block = Block::path(&cidr("10.0.0.0/29"));
    let key = AffinityKey {
        owner: AffinityOwner::Host("node1".into()),
        cidr: cidr("10.0.0.0/29"),
    };
    let affinity = BlockAffinity::path(&key);
    for path in [&affinity, &block] {
        store.edit(|pairs| pairs.put(path.clone(), b"\"spec.cidr is missing\"".to_vec()));
    }
    let cluster = block_on(ClusterRead::read_objects(&store)).unwrap();
    let keys: Vec<_> = cluster
        .unreadable
        .iter()
        .map(|object| object.key.as_str())
        .collect();
    assert_eq!(keys, [block, affinity]);
    assert!(
        cluster.unreadable[0]
            .reason
            .contains("spec.cidr is missing"),
        "{:?}",
        cluster.unreadable
    );
}

#[test]
fn tunnel_addresses_are_read_with_the_nodes() {
    let shell = Shell::with_pool();
    shell.apply(&json!({
        "apiVersion": "projectcalico.org/v3", "kind": "Node", "metadata": {"name": "node1"},
        "spec": {"ipv4VXLANTunnelAddr": "10.0.0.200", "ipv6VXLANTunnelAddr": "fd00::1"},
    }));
    let cluster = read(&shell);
    let recorded: Vec<String> = cluster
        .owners
        .addresses
        .iter()
        .map(|owned| format!("{} {}", owned.address, owned.owner))
        .collect();
    assert_eq!(recorded, ["10.0.0.200 Node(node1)", "fd00::1 Node(node1)"]);
    let found: Vec<String> = cluster
        .audit(Duration::ZERO)
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(
        found,
        ["owner without address: Node(node1) has 10.0.0.200, which is not allocated"]
    );
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
    assert!(
        matches!(&unchecked[..], [text] if text.starts_with("Services are not checked: no API")),
        "{unchecked:?}"
    );
    let invalid = ServicesApi::Invalid("no server".into());
    let unchecked = block_on(ClusterRead::read(&shell.store, &invalid))
        .unwrap()
        .unchecked;
    assert_eq!(unchecked, ["Services are not checked: no server"]);
}

/// Returns a cluster with an address of the Service `ns/web` with the uid `u1`.
fn cluster_with_a_service() -> ClusterRead {
    let shell = Shell::with_pool();
    let handle = load_balancer_handle("ns", "web", "u1");
    shell.put(&Handle::path(&handle), r#"{"block":{"10.0.0.64/30":1}}"#);
    let attribute = json!({
        "handle_id": handle.as_str(),
        "secondary": {"namespace": "ns", "service": "web", "type": "LoadBalancer"},
    });
    let block = json!({
        "cidr": "10.0.0.64/30", "affinity": "virtual:load-balancer", "unallocated": [1, 2, 3],
        "allocations": [0, null, null, null], "attributes": [attribute],
    });
    shell.put(
        "/calico/ipam/v2/assignment/ipv4/block/10.0.0.64-30",
        &block.to_string(),
    );
    shell.put(
        "/calico/ipam/v2/virtual/load-balancer/ipv4/block/10.0.0.64-30",
        r#"{"state":"confirmed"}"#,
    );
    ClusterRead {
        unchecked: Vec::new(),
        ..read(&shell)
    }
}

fn service(name: &str, uid: &str) -> FoundServices {
    let key = ObjectKey::namespaced("ns", name);
    let service = json!({
        "metadata": {"namespace": "ns", "name": name, "uid": uid}, "spec": {"type": "LoadBalancer"},
    });
    let value: Service = serde_json::from_value(service).unwrap();
    vec![(
        key.clone(),
        Ok(Entry {
            key,
            value,
            revision: Revision("1".into()),
        }),
    )]
}

#[test]
fn services_of_another_cluster_make_no_leaks() {
    let cluster = cluster_with_a_service();
    assert_eq!(cluster.audit(Duration::ZERO), []);
    for others in [Vec::new(), service("db", "u2"), service("web", "u2")] {
        let error = cluster.of_this_cluster(others).unwrap_err().to_string();
        assert!(
            error.contains("may be that of another cluster; name the right one with --kubeconfig"),
            "{error}"
        );
    }
    let mut both = service("web", "u1");
    both.extend(service("db", "u2"));
    assert_eq!(cluster.of_this_cluster(both.clone()), Ok(both));

    let without_addresses = read(&Shell::with_pool());
    assert_eq!(
        without_addresses.of_this_cluster(service("db", "u2")),
        Ok(service("db", "u2"))
    );
}

#[test]
fn unreadable_service_keeps_its_address() {
    let mut cluster = cluster_with_a_service();
    let corrupt = StoreError::Corrupt {
        key: "ns/web".into(),
        reason: "no text".into(),
    };
    cluster.add_services(Some(Ok(vec![(
        ObjectKey::namespaced("ns", "web"),
        Err(corrupt),
    )])));
    assert_eq!(cluster.audit(Duration::ZERO), []);
    assert!(matches!(
        &cluster.unchecked[..], [text] if text.starts_with("Service ns/web is not checked: "),
    ));
    cluster.add_services(Some(Ok(Vec::new())));
    assert!(matches!(
        cluster.audit(Duration::ZERO)[..],
        [Finding::AddressWithoutEndpoint(_)]
    ));
}

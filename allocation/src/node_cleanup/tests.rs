use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use libcalico::api::{
    BgpConfigurationSpec, BgpPeer, BgpPeerSpec, FelixConfiguration, FelixConfigurationSpec,
    HostEndpoint, HostEndpointSpec, Node, ObjectKey, WorkloadEndpoint, WorkloadEndpointSpec,
    configuration_of_node,
};
use libcalico::ipam::{Block, HandleId};
use libcalico::store::{Kind, Store, WriteOp};

use super::*;
use crate::testing::{Cluster, Fault, Pairs, held};

async fn allocate(cluster: &Cluster, handle: &str, attributes: &[(&str, &str)]) -> IpAddr {
    let mut request = cluster.request("node1", handle);
    request.attributes = attributes
        .iter()
        .map(|(key, value)| (key.to_string(), value.to_string()))
        .collect();
    cluster.assign(&request).await.unwrap().addresses[0].ip
}

fn holders(cluster: &Cluster) -> Vec<String> {
    let blocks = cluster.store.pairs().list::<Block>(&None);
    let held = blocks
        .iter()
        .flat_map(|(_, block)| block.allocated().filter_map(|held| held.handle()));
    let mut handles: Vec<String> = held.map(|handle| handle.to_string()).collect();
    handles.sort();
    handles
}

async fn endpoint(cluster: &Cluster, node: &str, pod: &str, ip: IpAddr) -> ObjectKey {
    let spec = WorkloadEndpointSpec {
        node: node.into(),
        pod: pod.into(),
        container_id: pod.into(),
        ip_networks: vec![format!("{ip}/32")],
        ..WorkloadEndpointSpec::default()
    };
    let mut endpoint = WorkloadEndpoint::new(format!("{node}-k8s-{pod}-eth0"), spec);
    endpoint.metadata.namespace = "default".into();
    cluster.store.put(&endpoint.key(), &endpoint);
    endpoint.key()
}

async fn delete(cluster: &Cluster, node: &str) -> Result<NodeCleanup, NodeCleanupError> {
    let found = cluster.store.get::<Node>(&ObjectKey::global(node)).await?;
    let endpoints = endpoints_of_node(&cluster.store, node).await?;
    delete_node(&cluster.store, &cluster.clock, &found, &endpoints).await
}

fn host_endpoint(cluster: &Cluster, name: &str, node: &str) {
    let spec = HostEndpointSpec {
        node: node.into(),
        ..HostEndpointSpec::default()
    };
    let endpoint = HostEndpoint::new(name, spec);
    cluster.store.put(&endpoint.key(), &endpoint);
}

fn peer(cluster: &Cluster, name: &str, node: &str) {
    let peer = BgpPeer::new(
        name,
        BgpPeerSpec {
            node: node.into(),
            ..BgpPeerSpec::default()
        },
    );
    cluster.store.put(&peer.key(), &peer);
}

/// From upstream's test "should clean up weps, IPAM allocations, etc. when deleting a node".
#[tokio::test]
async fn deleted_node_releases_its_endpoints_addresses_and_blocks() {
    let cluster = Cluster::new();
    cluster.pool("pool", "10.0.0.0/24", 29);
    let (web, other) = (
        cluster.one("node1", "web").await.unwrap(),
        cluster.one("node2", "other").await.unwrap(),
    );
    let unknown = cluster.one("node1", "unknown").await.unwrap();
    cluster
        .one("node1", "vxlan-tunnel-addr-node1")
        .await
        .unwrap();
    let keys = [
        endpoint(&cluster, "node1", "web", web).await,
        endpoint(&cluster, "node2", "other", other).await,
    ];
    // The address of the stale endpoint has another owner by now.
    let stale = endpoint(&cluster, "node1", "stale", other).await;
    for node in ["node1", "node2"] {
        peer(&cluster, &format!("peer-of-{node}"), node);
        host_endpoint(&cluster, &format!("{node}-eth0"), node);
        let settings = FelixConfiguration::new(
            configuration_of_node(node),
            FelixConfigurationSpec::default(),
        );
        cluster.store.put(&settings.key(), &settings);
    }
    peer(&cluster, "peer-of-all", "");

    let cleanup = delete(&cluster, "node1").await.unwrap();
    assert_eq!(
        cleanup,
        NodeCleanup {
            addresses: 2,
            endpoints: 2,
            blocks: 1,
            owned_objects: 3
        }
    );
    let pairs = cluster.store.pairs();
    assert_eq!(pairs.get::<Node>(&ObjectKey::global("node1")), None);
    assert_eq!(pairs.get::<WorkloadEndpoint>(&keys[0]), None);
    assert_eq!(pairs.get::<WorkloadEndpoint>(&stale), None);
    assert!(pairs.get::<WorkloadEndpoint>(&keys[1]).is_some());
    for (name, is_there) in [
        ("peer-of-node1", false),
        ("peer-of-node2", true),
        ("peer-of-all", true),
    ] {
        assert_eq!(
            pairs.get::<BgpPeer>(&ObjectKey::global(name)).is_some(),
            is_there,
            "{name}"
        );
    }
    for (node, is_there) in [("node1", false), ("node2", true)] {
        let settings = ObjectKey::global(configuration_of_node(node));
        assert_eq!(
            pairs.get::<FelixConfiguration>(&settings).is_some(),
            is_there
        );
        let endpoint = ObjectKey::global(format!("{node}-eth0"));
        assert_eq!(pairs.get::<HostEndpoint>(&endpoint).is_some(), is_there);
    }
    let block = |ip: IpAddr| {
        cluster
            .block(&format!("{ip}/29").parse::<Cidr>().unwrap().to_string())
            .unwrap()
    };
    let held = |ip: IpAddr| {
        block(ip)
            .allocated()
            .map(|held| held.ip)
            .collect::<Vec<_>>()
    };
    assert_eq!(
        held(unknown),
        [unknown],
        "nobody said whose it is: garbage collection's"
    );
    assert_eq!(block(unknown).owner(), None);
    assert_eq!(held(other), [other]);
}

type Attributes<'a> = &'a [(&'a str, &'a str)];

/// An endpoint of the node lists every address, as a stale endpoint may. Shows SEC-79.
#[tokio::test]
async fn node_cleanup_retains_addresses_of_other_owners() {
    let cluster = Cluster::new();
    cluster.pool("pool", "10.0.0.0/24", 28);
    let pod = |name| [("namespace", "default"), ("pod", name), ("node", "node1")];
    let on = |node| [("namespace", "default"), ("pod", "moved"), ("node", node)];
    let launcher = [&pod("launcher")[..], &[("vmi-name", "db")]].concat();
    let service = [
        ("type", "LoadBalancer"),
        ("namespace", "default"),
        ("service", "shop"),
    ];
    let hashed = HandleId::for_vmi("net", "default", &"x".repeat(128)).to_string();
    let allocations: [(&str, &str, Attributes<'_>); 11] = [
        // Addresses of pods and containers of the node, which are released.
        ("web", "net.c1", &pod("web")),
        (
            "plain",
            "net.plain",
            &[("node", "node1"), ("timestamp", "now")],
        ),
        ("old", "default.old", &[]),
        // The VMI runs elsewhere by now, or stopped.
        ("launcher", "net.vmi.default.db", &launcher),
        ("gone", "net.vmi.default.web", &[]),
        ("hashed", &hashed, &[]),
        ("left", "lb-5f3", &service),
        ("second", "lb-77", &[]),
        ("third", "net.c2", &pod("another")),
        ("moved", "net.c3", &on("node2")),
        ("fourth", "default.another", &[]),
    ];
    for (name, handle, attributes) in allocations {
        let ip = allocate(&cluster, handle, attributes).await;
        endpoint(&cluster, "node1", name, ip).await;
    }
    let cleanup = delete(&cluster, "node1").await.unwrap();
    assert_eq!(cleanup.endpoints, 11);
    let mut others: Vec<String> = allocations[3..]
        .iter()
        .map(|(_, handle, _)| handle.to_string())
        .collect();
    others.sort();
    assert_eq!(holders(&cluster), others);
    assert_eq!(cleanup.addresses, 3);
}

/// Returns the addresses that endpoints list.
fn listed(pairs: &Pairs) -> Vec<IpAddr> {
    let endpoints = pairs.list::<WorkloadEndpoint>(&ObjectSelect::default());
    endpoints
        .iter()
        .flat_map(|(_, endpoint)| endpoint.spec.networks().map(|network| network.network()))
        .collect()
}

/// Adds a pod and a plain container with an address and an endpoint each. Only the endpoint
/// identifies the owner of the container's address.
async fn pod_and_container(cluster: &Cluster) {
    let pod = [("namespace", "default"), ("pod", "web"), ("node", "node1")];
    for (name, handle, attributes) in [
        ("web", "net.c1", &pod[..]),
        ("plain", "net.plain", &pod[2..]),
    ] {
        let ip = allocate(cluster, handle, attributes).await;
        endpoint(cluster, "node1", name, ip).await;
    }
}

/// Felix would apply the policy of the deleted node's pod to the next pod with the address.
/// Shows SEC-79.
#[tokio::test]
async fn node_cleanup_releases_addresses_that_no_endpoint_lists_and_blocks_after_them() {
    let cluster = Cluster::new();
    cluster.pool("pool", "10.0.0.0/24", 29);
    pod_and_container(&cluster).await;
    let kinds = Arc::new(Mutex::new(Vec::new()));
    let seen = kinds.clone();
    cluster.store.before_each(move |_, writes, pairs| {
        for write in writes.into_iter().flatten() {
            assert!(
                write.kind != Block::KIND || listed(pairs).is_empty(),
                "{write:?}"
            );
            seen.lock()
                .unwrap()
                .push((write.kind, matches!(write.op, WriteOp::Delete(_))));
        }
        Fault::None
    });
    delete(&cluster, "node1").await.unwrap();
    let kinds = kinds.lock().unwrap();
    let first = |kind: &str, is_deletion: bool| {
        kinds
            .iter()
            .position(|write| *write == (kind, is_deletion))
            .unwrap()
    };
    let order = [
        first(WorkloadEndpoint::KIND, false),
        first(Block::KIND, false),
        first(WorkloadEndpoint::KIND, true),
        first(Block::KIND, true),
        first(Node::KIND, true),
    ];
    assert!(order.is_sorted(), "{kinds:?}");
}

#[tokio::test]
async fn node_cleanup_repeated_after_a_fault_at_any_request_releases_every_address() {
    for fault in [Fault::Refused, Fault::LostAnswer] {
        for nth in 0.. {
            let cluster = Cluster::new();
            cluster.pool("pool", "10.0.0.0/24", 29);
            pod_and_container(&cluster).await;
            let has_fired = Arc::new(AtomicBool::new(false));
            let firing = has_fired.clone();
            cluster.store.before_each(move |at, _, pairs| {
                let held: Vec<IpAddr> = held(pairs).into_values().flatten().collect();
                assert!(
                    listed(pairs).iter().all(|ip| held.contains(ip)),
                    "an endpoint lists a free address"
                );
                if at != nth {
                    return Fault::None;
                }
                firing.store(true, Ordering::Relaxed);
                fault
            });
            let interrupted = delete(&cluster, "node1").await;
            cluster.store.end_faults();
            if interrupted.is_err() {
                // The Node is missing if only the answer to its deletion was lost.
                _ = delete(&cluster, "node1").await;
            }
            let pairs = cluster.store.pairs();
            assert_eq!(
                holders(&cluster),
                [""; 0],
                "{fault:?} at request {nth}: {interrupted:?}"
            );
            assert_eq!(
                pairs
                    .list::<WorkloadEndpoint>(&ObjectSelect::default())
                    .len(),
                0,
                "{fault:?} at {nth}"
            );
            assert_eq!(
                pairs.get::<Node>(&ObjectKey::global("node1")),
                None,
                "{fault:?} at {nth}"
            );
            if !has_fired.load(Ordering::Relaxed) {
                assert!(nth > 5, "the deletion of a node sends more requests");
                break;
            }
        }
    }
}

/// Shows SEC-79.
#[tokio::test]
async fn address_taken_over_before_the_write_is_not_released() {
    let cluster = Cluster::new();
    cluster.pool("pool", "10.0.0.0/24", 29);
    let ip = allocate(
        &cluster,
        "net.c1",
        &[("namespace", "default"), ("pod", "web"), ("node", "node1")],
    )
    .await;
    endpoint(&cluster, "node1", "web", ip).await;
    let block = format!("{ip}/29").parse::<Cidr>().unwrap();
    let mut is_taken_over = false;
    cluster.store.before_each(move |_, writes, pairs| {
        let writes_block =
            writes.is_some_and(|writes| writes.iter().any(|write| write.kind == Block::KIND));
        if writes_block && !std::mem::replace(&mut is_taken_over, true) {
            let mut taken = pairs.get::<Block>(&block).unwrap();
            taken.attributes[0]
                .active_owner
                .insert("node".into(), "node2".into());
            pairs.put(Block::path(&block), taken.encode().unwrap());
        }
        Fault::None
    });
    let cleanup = delete(&cluster, "node1").await.unwrap();
    assert_eq!(holders(&cluster), ["net.c1"]);
    assert_eq!(cleanup.addresses, 0);
}

#[tokio::test]
async fn settings_written_after_the_read_of_node_cleanup_are_not_deleted() {
    for (felix, bgp) in [(true, false), (false, true)] {
        let cluster = Cluster::new();
        let felix_settings = FelixConfiguration::new(
            configuration_of_node("node1"),
            FelixConfigurationSpec::default(),
        );
        let bgp_settings = BgpConfiguration::new(
            configuration_of_node("node1"),
            BgpConfigurationSpec::default(),
        );
        if felix {
            cluster.store.put(&felix_settings.key(), &felix_settings);
        }
        if bgp {
            cluster.store.put(&bgp_settings.key(), &bgp_settings);
        }
        let (felix_key, bgp_key) = (felix_settings.key(), bgp_settings.key());
        cluster.store.before_each(move |_, writes, pairs| {
            for write in writes.into_iter().flatten() {
                match write.kind {
                    FelixConfiguration::KIND => {
                        pairs.put(write.path.clone(), felix_settings.encode().unwrap())
                    }
                    BgpConfiguration::KIND => {
                        pairs.put(write.path.clone(), bgp_settings.encode().unwrap())
                    }
                    _ => {}
                }
            }
            Fault::None
        });
        let error = delete(&cluster, "node1").await.unwrap_err();
        assert!(
            matches!(
                error,
                NodeCleanupError::Ipam(IpamError::Store(StoreError::Conflict { .. }))
            ),
            "{error}"
        );
        let pairs = cluster.store.pairs();
        assert_eq!(pairs.get::<FelixConfiguration>(&felix_key).is_some(), felix);
        assert_eq!(pairs.get::<BgpConfiguration>(&bgp_key).is_some(), bgp);
    }
}

#[tokio::test]
async fn repeated_node_cleanup_continues_and_spares_a_recreated_node() {
    let cluster = Cluster::new();
    let node = cluster
        .store
        .get::<Node>(&ObjectKey::global("node1"))
        .await
        .unwrap();
    // Another program wrote the Node meanwhile.
    cluster.node("node1", &[("a", "b")]);
    delete_node(&cluster.store, &cluster.clock, &node, &[])
        .await
        .unwrap();
    assert_eq!(cluster.store.pairs().get::<Node>(&node.key), None);
    delete_node(&cluster.store, &cluster.clock, &node, &[])
        .await
        .unwrap();
    let mut namesake = Node::new("node1", libcalico::api::NodeSpec::default());
    namesake.metadata.uid = "another".into();
    cluster.store.put(&node.key, &namesake);
    let error = delete_node(&cluster.store, &cluster.clock, &node, &[])
        .await
        .unwrap_err();
    assert!(
        matches!(
            error,
            NodeCleanupError::Ipam(IpamError::Store(StoreError::Conflict { .. }))
        ),
        "{error}"
    );
}

/// An interrupted deletion of a node may be continued by another version.
#[tokio::test]
async fn unlisted_addresses_of_0_1_0_are_released_and_written_unchanged() {
    let stored = include_str!("../../../tests/formats/0.1.0/unlisted-addresses.json");
    let stored: BTreeMap<String, String> = serde_json::from_str(stored).unwrap();
    let cluster = Cluster::new();
    cluster.pool("pool", "10.244.0.0/29", 29);
    let web = cluster.one("node1", "web").await.unwrap();
    let key = endpoint(&cluster, "node1", "web", web).await;
    let mut listed = cluster.store.get::<WorkloadEndpoint>(&key).await.unwrap();
    listed.value.spec.ip_networks = vec!["10.244.0.5/32".into(), "fd00:10:244::5/128".into()];
    let unlisted = addresses::unlist(&cluster.store, &[listed]).await.unwrap();
    assert_eq!(unlisted[0].value.metadata.annotations, stored);
    assert!(unlisted[0].value.spec.ip_networks.is_empty());

    let mut interrupted = unlisted[0].value.clone();
    let annotation = interrupted
        .metadata
        .annotations
        .values_mut()
        .next()
        .unwrap();
    *annotation = annotation.replace("10.244.0.5", &web.to_string());
    cluster.store.put(&key, &interrupted);
    assert_eq!(delete(&cluster, "node1").await.unwrap().addresses, 1);
}

//! DEL under the handle of Calico before v3.

use std::collections::BTreeMap;

use libcalico::ipam::{Block, Handle, HandleId, SuspectHandle};
use libcalico::store::Store;

use super::super::{IpamRequest, Pod};
use super::{ReleaseStep, del, release_call};
use crate::cni::testing::call;
use allocation::alloc::request::Namespace;
use allocation::release::ReleaseInputs;
use allocation::release::handle_repair::repair_handles;
use allocation::testing::{Cluster, Fault, MemoryStore, assert_consistent, held};
use allocation::write_gate::OpenGate;

type Attributes<'a> = &'a [(&'a str, &'a str)];

fn clusters() -> [Cluster; 2] {
    let with_pool = |store| {
        let cluster = Cluster::on(store);
        cluster.pool("pool4", "10.65.0.0/16", 26);
        cluster
    };
    [
        with_pool(MemoryStore::sequential()),
        with_pool(MemoryStore::transactional()),
    ]
}

fn of_pod(namespace: &str, name: &str) -> IpamRequest {
    let namespace = Namespace {
        name: namespace.into(),
        ..Namespace::default()
    };
    IpamRequest {
        pod: Some(Pod {
            namespace,
            name: name.into(),
        }),
        ..call("c1")
    }
}

async fn hold(cluster: &Cluster, handle: &str, attributes: Attributes<'_>) {
    let mut request = cluster.request("node1", handle);
    request.attributes = attributes
        .iter()
        .map(|(key, value)| (key.to_string(), value.to_string()))
        .collect();
    cluster.assign(&request).await.unwrap();
}

async fn delete(cluster: &Cluster, call: &IpamRequest) {
    let inputs = ReleaseInputs::read(&cluster.store, &call.handles_to_read(&cluster.store))
        .await
        .unwrap();
    del(&cluster.store, &cluster.clock, call, inputs)
        .await
        .unwrap();
}

fn stored(cluster: &Cluster) -> (Vec<Block>, BTreeMap<HandleId, Handle>) {
    let pairs = cluster.store.pairs();
    (
        pairs
            .list::<Block>(&None)
            .into_iter()
            .map(|(_, block)| block)
            .collect(),
        pairs.list::<Handle>(&()).into_iter().collect(),
    )
}

#[tokio::test]
async fn del_whose_old_handle_matches_a_foreign_handle_writes_no_data() {
    let hex = "0123456789abcdef".repeat(4);
    let container = format!("k8s-pod-network.{hex}");
    let service = [("service", "checkout"), ("namespace", "shop")];
    let machine = [
        ("namespace", "prod"),
        ("pod", "virt-launcher-db-x"),
        ("vmi-name", "db"),
    ];
    let others: [(&str, Attributes<'_>, IpamRequest); 7] = [
        (
            &container,
            &[("node", "node1"), ("timestamp", "t")],
            of_pod("k8s-pod-network", &hex),
        ),
        (
            "vxlan-tunnel-addr-ip-10-0-0-1.ec2.internal",
            &[("node", "node1"), ("type", "vxlanTunnelAddress")],
            of_pod("vxlan-tunnel-addr-ip-10-0-0-1", "ec2.internal"),
        ),
        ("lb-CcByVDWerSL9", &service, call("lb-CcByVDWerSL9")),
        ("lb-shop.checkout", &service, of_pod("lb-shop", "checkout")),
        (
            "k8s-pod-network.vmi.prod.db",
            &machine,
            of_pod("k8s-pod-network", "vmi.prod.db"),
        ),
        (
            "k8s-pod-network.vmi.prod.db",
            &[],
            of_pod("k8s-pod-network", "vmi.prod.db"),
        ),
        (
            "ns.web",
            &[("namespace", "other"), ("pod", "web")],
            of_pod("ns", "web"),
        ),
    ];
    for (handle, attributes, namesake) in others {
        for cluster in clusters() {
            hold(&cluster, handle, attributes).await;
            let before = stored(&cluster);
            delete(&cluster, &namesake).await;
            assert_eq!(stored(&cluster), before, "{handle} {attributes:?}");
        }
    }
}

/// Another ADD has incremented its handle and has not written its block yet.
#[tokio::test]
async fn del_leaves_a_matching_old_handle_without_addresses() {
    for cluster in clusters() {
        hold(&cluster, "net.other", &[("node", "node1")]).await;
        let mut handle = Handle::default();
        handle.increment("10.65.166.128/26".parse().unwrap(), 1);
        handle.increment("10.65.9.0/26".parse().unwrap(), 1);
        cluster.store.put(&HandleId::new("ns.web"), &handle);
        let before = stored(&cluster);
        delete(&cluster, &of_pod("ns", "web")).await;
        assert_eq!(stored(&cluster), before);
    }
}

#[tokio::test]
async fn del_releases_the_pods_part_of_the_old_handle_and_recounts_the_rest() {
    for cluster in clusters() {
        hold(&cluster, "ns.web", &[("namespace", "ns"), ("pod", "web")]).await;
        hold(
            &cluster,
            "ns.web",
            &[("node", "node1"), ("type", "vxlanTunnelAddress")],
        )
        .await;
        hold(&cluster, "ns.web", &[]).await;
        delete(&cluster, &of_pod("ns", "web")).await;
        let left = held(&cluster.store.pairs());
        assert_eq!(
            left[&HandleId::new("ns.web")],
            ["10.65.166.129".parse::<std::net::IpAddr>().unwrap()]
        );
        assert_consistent(&cluster.store.pairs(), true);
    }
}

#[tokio::test]
async fn del_releases_the_old_handle_once_despite_lost_races() {
    for cluster in clusters() {
        hold(&cluster, "ns.web", &[("namespace", "ns"), ("pod", "web")]).await;
        hold(&cluster, "ns.web", &[("node", "node1")]).await;
        let mut races = BTreeMap::from([("IPAMBlock", 2), ("IPAMHandle", 2)]);
        cluster.store.before_each(move |_, writes, pairs| {
            for write in writes.into_iter().flatten() {
                if let Some(left) = races.get_mut(write.kind).filter(|left| **left > 0) {
                    *left -= 1;
                    pairs.touch(&write.path);
                }
            }
            Fault::None
        });
        delete(&cluster, &of_pod("ns", "web")).await;
        cluster.store.end_faults();
        assert_eq!(
            held(&cluster.store.pairs())[&HandleId::new("ns.web")].len(),
            1
        );
        assert_consistent(&cluster.store.pairs(), true);
    }
}

#[tokio::test]
async fn outage_during_the_old_handle_release_is_returned_as_unavailable() {
    for cluster in clusters() {
        hold(&cluster, "ns.web", &[]).await;
        let call = of_pod("ns", "web");
        let inputs = ReleaseInputs::read(&cluster.store, &call.handles())
            .await
            .unwrap();
        cluster.store.before_each(|_, _, _| Fault::Refused);
        let error = release_call(&cluster.store, &cluster.clock, &call, inputs)
            .await
            .map(drop)
            .unwrap_err();
        assert!(
            matches!(&error, allocation::error::IpamError::Store(cause) if cause.is_unavailable()),
            "{error}"
        );
    }
}

#[tokio::test]
async fn del_releases_all_addresses_of_the_container_handle() {
    for cluster in clusters() {
        for attributes in [
            &[][..],
            &[("node", "node1")],
            &[("namespace", "other"), ("pod", "other")],
        ] {
            hold(&cluster, "net.c1", attributes).await;
        }
        // This pod's name makes the old handle equal to the container's handle.
        delete(&cluster, &of_pod("net", "c1")).await;
        assert!(held(&cluster.store.pairs()).is_empty());
    }
}

#[tokio::test]
async fn failed_endpoint_update_retains_addresses_of_the_old_handle() {
    for cluster in clusters() {
        hold(&cluster, "ns.web", &[("namespace", "ns"), ("pod", "web")]).await;
        let call = of_pod("ns", "web");
        for (is_updated, left) in [(false, 1), (true, 0)] {
            let inputs = ReleaseInputs::read(&cluster.store, &call.handles_to_read(&cluster.store))
                .await
                .unwrap();
            let begun = release_call(&cluster.store, &cluster.clock, &call, inputs)
                .await
                .unwrap();
            assert!(matches!(begun, ReleaseStep::Unlist(_)));
            if is_updated {
                begun.complete_without_endpoints().await.unwrap();
            }
            assert_eq!(held(&cluster.store.pairs()).len(), left);
        }
    }
}

/// An ADD may be about to allocate an address under the handle. kube-controllers deletes the handle
/// after the grace period.
#[tokio::test]
async fn old_handle_of_a_killed_del_is_left_to_the_controllers() {
    for cluster in clusters() {
        hold(&cluster, "ns.web", &[("namespace", "ns"), ("pod", "web")]).await;
        let id = HandleId::new("ns.web");
        cluster.store.before_each(|_, writes, _| {
            let is_of_handle = writes
                .into_iter()
                .flatten()
                .any(|write| write.kind == "IPAMHandle");
            if is_of_handle {
                Fault::Refused
            } else {
                Fault::None
            }
        });
        delete(&cluster, &of_pod("ns", "web")).await;
        cluster.store.end_faults();
        for _ in 0..2 {
            assert!(held(&cluster.store.pairs()).is_empty());
            let handle = cluster.handle("ns.web").unwrap();
            assert_eq!(handle.block.values().sum::<i64>(), 1);
            delete(&cluster, &of_pod("ns", "web")).await;
        }
        let entry = cluster.store.get::<Handle>(&id).await.unwrap();
        let blocks = entry.value.block.keys().copied().collect();
        let suspect = SuspectHandle {
            id: id.clone(),
            revision: Some(entry.revision),
            blocks,
        };
        let repaired = repair_handles(&cluster.store, &OpenGate, &[suspect])
            .await
            .unwrap();
        assert_eq!(repaired.deleted, [id]);
        assert_consistent(&cluster.store.pairs(), true);
    }
}

//! The memory use of the index for a large cluster.

use std::collections::BTreeMap;
use std::time::Duration;

use super::super::*;
use super::cluster::EPOCH;
use crate::ipam::{
    AffinityOwner, Block, BlockRequest, HandleId, PodState, ReportedAddresses, Reservations,
};
use crate::net::Cidr;

fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs
        .iter()
        .map(|&(key, value)| (key.to_owned(), value.to_owned()))
        .collect()
}

fn large(nodes: usize, blocks: usize, pods: usize, prefix: u8) -> Index {
    let mut index = Index::new(GcSettings {
        leak_grace: Some(Duration::from_secs(900)),
        ..GcSettings::default()
    });
    let cidr = "10.0.0.0/8".parse().unwrap();
    index.put_pool(
        "default",
        PoolShape {
            cidr,
            block_prefix: prefix,
            uid: String::new(),
            in_service: true,
        },
    );
    let mut next = u32::from(std::net::Ipv4Addr::new(10, 0, 0, 0));
    let mut n = 0;
    for node in 0..nodes {
        let node = format!("ip-10-0-{node}.eu-west-1.compute.internal");
        index.put_calico_node(&node, Some(&node));
        index.put_kubernetes_node(&node, false);
        for _ in 0..blocks {
            let cidr = Cidr::new(std::net::Ipv4Addr::from(next).into(), prefix).unwrap();
            next += cidr.size() as u32;
            let owner = AffinityOwner::Host(node.clone());
            let mut block = Block::new(cidr, &owner, EPOCH).unwrap();
            for _ in 0..pods {
                n += 1;
                let handle = HandleId::new(format!("k8s-pod-network.{n:064x}"));
                let namespace = format!("team-{}", n % 200);
                let pod = format!("checkout-service-{:010x}-{:05x}", n / 100, n % 100);
                let attributes = map(&[("namespace", &namespace), ("pod", &pod), ("node", &node)]);
                let request = BlockRequest {
                    handle: Some(&handle),
                    attributes: &attributes,
                    requester: &owner,
                    check_affinity: false,
                };
                let address = block.assign(1, &request, &Reservations::none()).unwrap()[0];
                let addresses = ReportedAddresses::new(vec![address]);
                index.put_pod(
                    &namespace,
                    &pod,
                    &PodState {
                        node: &node,
                        addresses,
                        ended: None,
                        runs: true,
                    },
                );
            }
            index.put_block(&block).unwrap();
        }
    }
    index
}

#[test]
fn indexed_address_with_its_pod_takes_less_than_250_bytes() {
    let mut index = large(100, 8, 50, 26);
    index.examine(Duration::ZERO, Scope::Everything);
    let size = index.size();
    assert_eq!(
        (size.addresses, size.blocks, size.owners),
        (40_000, 800, 40_000)
    );
    let each = size.bytes / size.addresses;
    assert!(each < 250, "{each} bytes for each address: {size:?}");
}

/// The index has a tenth of 5,000 nodes, 40,000 blocks and 160,000 pods.
#[test]
fn index_of_a_tenth_of_a_large_cluster_takes_a_tenth_of_50_mib() {
    let mut index = large(500, 8, 4, 29);
    index.examine(Duration::ZERO, Scope::Everything);
    index.verify().unwrap();
    let size = index.size();
    assert_eq!((size.addresses, size.blocks), (16_000, 4_000));
    assert!(size.bytes * 10 < 50 << 20, "{size:?}");
}

#[test]
fn emptied_cluster_leaves_no_index_entries() {
    let mut index = large(5, 2, 4, 29);
    for feed in [
        WatchedKind::Blocks,
        WatchedKind::Pods,
        WatchedKind::CalicoNodes,
        WatchedKind::KubernetesNodes,
        WatchedKind::Pools,
    ] {
        index.begin_list(feed);
        index.end_list(feed);
        index.verify().unwrap();
    }
    index.examine(Duration::ZERO, Scope::Changed);
    for gone in index.nodes_to_release(Duration::ZERO) {
        index.remove_released_node(&gone.calico);
    }
    index.verify().unwrap();
    let size = index.size();
    assert_eq!(
        (size.addresses, size.blocks, size.owners, size.nodes),
        (0, 0, 0, 0)
    );
    assert_eq!(index.samples().count(), 0);
}

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde_json::json;

use super::{PackedBlock, PackedEndpoint, PackedHandle};
use crate::api::ObjectKey;
use crate::ipam::{Allocation, AuditedEndpoint, Block, Handle, HandleId};
use crate::net::Cidr;
use crate::store::{Entry, Kind, Revision};

const CONTAINER: &str = "1bd0b4d7d6f1d3b0f7e1a9c5c2f40d3f86e1ab9d0c3f5b2a7e4d6c8b9a0f1e2d";
const NODE: &str = "worker-00001.cluster.example.com";
const POD: &str = "frontend-api-5c9f8d7b6c-x2x9z";

/// Returns a /26 with four addresses in use, as in a large cluster.
fn block() -> Block {
    let attribute = |n: usize| {
        json!({
            "handle_id": format!("k8s-pod-network.{CONTAINER}"),
            "secondary": {
                "namespace": "team-1", "node": NODE, "pod": POD,
                "timestamp": format!("2026-11-28 20:00:0{n}.512345678 +0000 UTC"),
            },
        })
    };
    let slots: Vec<Option<usize>> = (0..64).map(|n| (n < 4).then_some(n)).collect();
    let stored = json!({
        "cidr": "10.0.0.0/26", "affinity": format!("host:{NODE}"), "allocations": slots,
        "unallocated": (4..64).collect::<Vec<_>>(),
        "attributes": (0..4).map(attribute).collect::<Vec<_>>(),
        "sequenceNumber": 1_764_360_000_000_000_009_u64,
        "sequenceNumberForAllocation": {
            "0": 1_764_360_000_000_000_001_u64, "3": 1_764_360_000_000_000_004_u64,
        },
    });
    Block::decode(stored.to_string().as_bytes()).unwrap()
}

fn assert_same(block: &Block) {
    let packed = PackedBlock::of(block.clone());
    let whole: Vec<Allocation<'_>> = block.allocated().collect();
    assert_eq!(packed.allocated().count(), whole.len());
    for (packed_one, held) in packed.allocated().zip(&whole) {
        packed_one.read(|read| assert_eq!(read, held));
        assert_eq!(
            (packed_one.handle(), packed_one.is_cooling()),
            (held.handle(), held.is_cooling())
        );
        assert!(
            packed
                .allocation(held.ip)
                .is_some_and(|found| found.read(|read| read == held))
        );
    }
    assert_eq!(
        (packed.owner(), packed.affinity()),
        (block.owner(), block.affinity.as_deref())
    );
    assert_eq!(packed.contradiction(), block.contradiction().as_deref());
    assert_eq!(
        (packed.is_empty(), packed.awaits_deletion()),
        (block.is_empty(), block.awaits_deletion())
    );
}

#[test]
fn packed_block_has_the_allocations_of_the_block() {
    assert_same(&block());
    let free: IpAddr = "10.0.0.9".parse().unwrap();
    assert!(PackedBlock::of(block()).allocation(free).is_none());
    assert_same(&Block {
        deleted: true,
        allocations: vec![None; 64],
        unallocated: (0..64).collect(),
        ..block()
    });
}

#[test]
fn packed_block_has_unusual_attributes_and_contradictions_of_the_block() {
    let mut unusual = block();
    unusual.affinity = None;
    unusual.attributes[0].handle_id = None;
    unusual.attributes[1].handle_id = Some(String::new());
    unusual.attributes[2].released_at = Some("2026-11-28T20:00:00Z".into());
    unusual.attributes[2].alternate_owner = [("pod".to_owned(), "\"ü\\\n".to_owned())].into();
    unusual.attributes[3]
        .unknown
        .insert("later".into(), json!({"a": [1, 2.5, null]}));
    assert_same(&unusual);
    unusual.allocations[3] = Some(usize::MAX);
    unusual.allocations[5] = Some(0);
    assert_same(&unusual);
}

#[test]
fn packed_endpoint_has_the_texts_of_the_endpoint() {
    let named = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
    for (pod, container) in [("ü", "c1"), ("p", "c1"), ("", "c1"), ("p", ""), ("", "")] {
        let endpoint = AuditedEndpoint {
            name: "ns/ü".into(),
            object: String::new(),
            node: "node1".into(),
            pod: named(pod).map(|pod| ObjectKey::namespaced("ns", pod)),
            addresses: vec!["10.0.0.1".parse().unwrap(), "fd00::1".parse().unwrap()],
            container_id: named(container),
        };
        let packed = PackedEndpoint::of(&endpoint);
        let read = AuditedEndpoint {
            name: packed.name().into(),
            object: packed.object().into(),
            node: packed.node().into(),
            pod: packed.pod(),
            addresses: packed.addresses().to_vec(),
            container_id: packed.container_id().map(str::to_owned),
        };
        assert_eq!(read, endpoint);
    }
}

fn handle() -> Entry<Handle> {
    let value: Handle = Handle::decode(br#"{"block":{"10.0.0.0/26":1},"deleted":false}"#).unwrap();
    Entry {
        key: HandleId::for_container("k8s-pod-network", CONTAINER),
        value,
        revision: Revision("12345678".into()),
    }
}

#[test]
fn packed_handle_has_the_counts_of_the_handle() {
    let packed = PackedHandle::of(&handle());
    let block: Cidr = "10.0.0.0/26".parse().unwrap();
    assert_eq!(
        (packed.counts(), packed.count(&block)),
        (BTreeMap::from([(block, 1)]), Some(1))
    );
    assert_eq!(packed.count(&"10.0.0.64/26".parse().unwrap()), None);
}

/// `check` of 40,000 blocks and 160,000 endpoints may take 250 MB, of which these are a half.
#[test]
fn packed_objects_of_one_address_take_at_most_768_bytes() {
    let endpoint = AuditedEndpoint {
        name: format!("team-1/{POD}"),
        object: format!("team-1/{NODE}-k8s-{POD}-eth0"),
        node: NODE.into(),
        pod: Some(ObjectKey::namespaced("team-1", POD)),
        addresses: vec!["10.0.0.1".parse().unwrap()],
        container_id: Some(CONTAINER.into()),
    };
    let of_address = PackedBlock::of(block()).bytes() / 4
        + PackedHandle::of(&handle()).bytes()
        + PackedEndpoint::of(&endpoint).bytes();
    assert!(of_address <= 768, "{of_address}");
}

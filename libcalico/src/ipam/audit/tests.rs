mod owners;
mod pods;

use std::collections::BTreeMap;

use time::macros::datetime;

use super::*;
use crate::ipam::block::tests::host_reserved::HostReserved;
use crate::ipam::{
    AffinityKey, AffinityOwner, AffinityState, Block, BlockRequest, Handle, HandleId, Reservations,
    WINDOWS_RESERVED_HANDLE,
};
use crate::store::Revision;

const NOW: OffsetDateTime = datetime!(2026-08-22 01:02:03 UTC);

fn cidr(text: &str) -> Cidr {
    text.parse().unwrap()
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// Stored objects for a test to damage.
struct StoredObjects {
    pools: Vec<Cidr>,
    blocks: Vec<Block>,
    handles: BTreeMap<HandleId, Handle>,
    affinities: Vec<(AffinityKey, BlockAffinity)>,
    endpoints: Vec<AuditedEndpoint>,
    pods: Pods,
    owners: Owners,
    in_flight: Duration,
}

impl StoredObjects {
    fn healthy() -> Self {
        let owner = AffinityOwner::Host("node1".into());
        let mut stored = StoredObjects {
            pools: vec![cidr("10.0.0.0/24")],
            blocks: vec![Block::new(cidr("10.0.0.0/30"), &owner, NOW).unwrap()],
            handles: BTreeMap::new(),
            affinities: vec![affinity("node1", "10.0.0.0/30", AffinityState::Confirmed)],
            endpoints: vec![endpoint("c1", "10.0.0.0"), endpoint("c2", "10.0.0.1")],
            pods: Pods::new(),
            owners: Owners::default(),
            in_flight: Duration::ZERO,
        };
        stored.allocate("net.c1", &[]);
        stored.allocate("net.c2", &[]);
        stored
    }

    fn allocate(&mut self, handle: &str, attributes: &[(&str, &str)]) {
        let handle = HandleId::new(handle);
        let request = BlockRequest {
            handle: Some(&handle),
            attributes: &attributes
                .iter()
                .map(|&(key, value)| (key.to_owned(), value.to_owned()))
                .collect(),
            requester: &AffinityOwner::Host("node1".into()),
            check_affinity: false,
        };
        let block = &mut self.blocks[0];
        assert_eq!(
            block
                .assign(1, &request, &Reservations::none())
                .unwrap()
                .len(),
            1
        );
        self.handles
            .entry(handle)
            .or_default()
            .increment(block.cidr, 1);
    }

    fn add_block(&mut self, range: &str) -> &mut Block {
        self.blocks
            .push(Block::new(cidr(range), &AffinityOwner::Host("node1".into()), NOW).unwrap());
        self.affinities
            .push(affinity("node1", range, AffinityState::Confirmed));
        self.blocks.last_mut().unwrap()
    }

    fn findings(&self) -> Vec<Finding> {
        let revision = || Revision("7".into());
        let blocks: Vec<_> = self.blocks.iter().cloned().map(PackedBlock::of).collect();
        let handles: Vec<_> = self
            .handles
            .iter()
            .map(|(key, value)| Entry {
                key: key.clone(),
                value: value.clone(),
                revision: revision(),
            })
            .map(|entry| PackedHandle::of(&entry))
            .collect();
        let endpoints: Vec<_> = self.endpoints.iter().map(PackedEndpoint::of).collect();
        let affinities: Vec<_> = self
            .affinities
            .iter()
            .map(|(key, value)| Entry {
                key: key.clone(),
                value: value.clone(),
                revision: revision(),
            })
            .collect();
        audit(&Inventory {
            pools: &self.pools,
            active_pools: &self.pools,
            blocks: &blocks,
            handles: &handles,
            affinities: &affinities,
            endpoints: &endpoints,
            pods: &self.pods,
            owners: &self.owners,
            now: NOW,
            in_flight: self.in_flight,
        })
    }

    fn texts(&self) -> Vec<String> {
        self.findings().iter().map(ToString::to_string).collect()
    }
}

fn affinity(node: &str, range: &str, state: AffinityState) -> (AffinityKey, BlockAffinity) {
    let key = AffinityKey {
        owner: AffinityOwner::Host(node.into()),
        cidr: cidr(range),
    };
    (
        key,
        BlockAffinity {
            state,
            ..BlockAffinity::default()
        },
    )
}

fn endpoint(container: &str, address: &str) -> AuditedEndpoint {
    AuditedEndpoint {
        name: format!("default/{container}"),
        object: format!("default/node1-cni-{container}-eth0"),
        node: "node1".into(),
        addresses: vec![ip(address)],
        container_id: Some(container.into()),
        pod: None,
    }
}

const NOTHING: [String; 0] = [];

#[test]
fn consistent_datastore_has_no_findings() {
    assert_eq!(StoredObjects::healthy().texts(), NOTHING);
}

#[test]
fn finding_without_an_endpoint_carries_the_data_needed_for_release() {
    let mut stored = StoredObjects::healthy();
    stored.endpoints.remove(1);
    let sequence_number = stored.blocks[0]
        .allocation(ip("10.0.0.1"))
        .unwrap()
        .sequence;
    assert_eq!(
        stored.findings(),
        [Finding::AddressWithoutEndpoint(AllocatedAddress {
            address: ip("10.0.0.1"),
            block: cidr("10.0.0.0/30"),
            handle: Some("net.c2".into()),
            sequence_number,
            attributes: BTreeMap::new(),
        })]
    );
    assert_eq!(
        stored.texts(),
        ["address without endpoint: 10.0.0.1 (handle net.c2)"]
    );
}

#[test]
fn addresses_that_never_have_an_endpoint_are_not_reported() {
    for handle in [
        "ipip-tunnel-addr-node1",
        "vxlan-v6-tunnel-addr-node1",
        "wireguard-tunnel-addr-node1",
        "lb-0a1b",
    ] {
        let mut stored = StoredObjects::healthy();
        stored.allocate(handle, &[]);
        assert_eq!(stored.texts(), NOTHING, "{handle}");
    }
    let mut stored = StoredObjects::healthy();
    stored.allocate("anything", &[("type", "ipipTunnelAddress")]);
    assert_eq!(stored.texts(), NOTHING);

    let mut stored = StoredObjects::healthy();
    let reserved = HostReserved {
        start: 3,
        end: 1,
        handle: HandleId::new(WINDOWS_RESERVED_HANDLE),
        note: String::new(),
    };
    let block = stored.add_block("10.0.0.8/29");
    *block = block.clone().with_host_reserved(&reserved);
    assert_eq!(stored.texts(), NOTHING);

    let mut stored = StoredObjects::healthy();
    stored.blocks[0]
        .release_by_handle(&HandleId::new("net.c2"), None, 60, NOW)
        .unwrap();
    stored.handles.remove(&HandleId::new("net.c2"));
    stored.endpoints.remove(1);
    assert_eq!(stored.texts(), NOTHING, "a cooling address");
}

#[test]
fn recent_allocation_is_no_leak_until_its_in_flight_time_passes() {
    for (since, findings) in [
        ("2026-08-22 01:01:59.123456789 +0000 UTC", 0),
        ("2026-08-22 01:01:59 +0000 UTC", 0),
        ("2026-08-22 01:01:03.5 +0000 UTC", 0),
        ("2026-08-22 01:01:03 +0000 UTC", 1),
        ("2025-08-22 01:01:59 +0000 UTC", 1),
        ("a while ago", 1),
    ] {
        let mut stored = StoredObjects::healthy();
        stored.in_flight = Duration::seconds(60);
        stored.allocate(
            "net.c3",
            &[
                ("timestamp", since),
                ("node", "node1"),
                ("pod", "p"),
                ("namespace", "n"),
            ],
        );
        let texts = stored.texts();
        assert_eq!(texts.len(), findings, "{since}: {texts:?}");
        if findings == 1 {
            let expected = format!(
                "address without endpoint: 10.0.0.2 (handle net.c3, node node1, namespace n, pod \
                 p, since {since})"
            );
            assert_eq!(texts, [expected]);
        }
    }
}

#[test]
fn endpoint_with_a_free_or_foreign_address_is_reported() {
    let mut stored = StoredObjects::healthy();
    stored.endpoints.push(endpoint("c9", "10.0.0.77"));
    // An address of another plugin is in no pool.
    stored.endpoints.push(endpoint("c8", "192.168.0.1"));
    let expected =
        "endpoint without address: default/c9 on node node1 has 10.0.0.77, which is not allocated";
    assert_eq!(stored.texts(), [expected]);

    let mut stored = StoredObjects::healthy();
    stored.endpoints[1].container_id = Some("c3".into());
    assert_eq!(
        stored.texts(),
        [
            "address of another container: 10.0.0.1 (handle net.c2) is on endpoint default/c2 of \
             container c3"
        ]
    );
    stored.endpoints[1].container_id = None;
    assert_eq!(stored.texts(), NOTHING);

    let mut stored = StoredObjects::healthy();
    stored.endpoints[1].container_id = Some("2".into());
    assert_eq!(stored.texts().len(), 1);
}

#[test]
fn vmi_handle_on_another_containers_endpoint_is_not_reported() {
    let mut stored = StoredObjects::healthy();
    stored.allocate("net.vmi.default.vm1", &[]);
    stored.endpoints.push(endpoint("c3", "10.0.0.2"));
    assert_eq!(stored.texts(), NOTHING);
}

#[test]
fn doubly_allocated_address_is_reported() {
    let mut stored = StoredObjects::healthy();
    stored.endpoints[1].addresses = vec![ip("10.0.0.0"), ip("10.0.0.1")];
    assert_eq!(
        stored.texts(),
        ["double allocation: 10.0.0.0 is held by endpoint default/c1 and endpoint default/c2"]
    );

    let mut stored = StoredObjects::healthy();
    let first = stored.blocks[0].clone();
    stored.add_block("10.0.0.0/31").allocations = vec![Some(0), None];
    stored.blocks[1].unallocated = vec![1];
    stored.blocks[1].attributes = vec![first.attributes[0].clone()];
    stored
        .handles
        .get_mut(&HandleId::new("net.c1"))
        .unwrap()
        .increment(cidr("10.0.0.0/31"), 1);
    assert_eq!(
        stored.texts(),
        [
            "overlapping blocks: 10.0.0.0/30 and 10.0.0.0/31; see the block size of a pool in \
             docs/faq.md",
            "double allocation: 10.0.0.0 is held by block 10.0.0.0/30 for handle net.c1 and block \
             10.0.0.0/31 for handle net.c1",
        ]
    );
}

#[test]
fn handles_that_disagree_with_blocks_are_reported() {
    let mut stored = StoredObjects::healthy();
    stored
        .handles
        .entry(HandleId::new("net.gone"))
        .or_default()
        .increment(cidr("10.0.0.0/30"), 2);
    assert_eq!(
        stored.texts(),
        ["orphan handle: net.gone counts 2 addresses, but no block names the handle"]
    );
    let Finding::OrphanHandle { revision, .. } = &stored.findings()[0] else {
        panic!()
    };
    assert_eq!(revision, "7");

    let mut stored = StoredObjects::healthy();
    stored.handles.remove(&HandleId::new("net.c1"));
    assert_eq!(
        stored.texts(),
        ["missing handle: the handle of 10.0.0.0 (handle net.c1) does not exist"]
    );

    let mut stored = StoredObjects::healthy();
    let handle = stored.handles.get_mut(&HandleId::new("net.c1")).unwrap();
    handle.increment(cidr("10.0.0.0/30"), 1);
    handle.increment(cidr("10.0.0.4/30"), 1);
    assert_eq!(
        stored.texts(),
        [
            "count mismatch: handle net.c1 counts 2 addresses in 10.0.0.0/30, but has 1",
            "count mismatch: handle net.c1 counts 1 addresses in 10.0.0.4/30, but has 0",
        ]
    );

    // A count that is too low, even a negative one, is reported as well.
    for count in [0, -1] {
        let mut stored = StoredObjects::healthy();
        stored.handles.insert(
            HandleId::new("net.c1"),
            Handle {
                block: [(cidr("10.0.0.0/30"), count)].into(),
                ..Handle::default()
            },
        );
        assert_eq!(
            stored.texts(),
            [format!(
                "count mismatch: handle net.c1 counts {count} addresses in 10.0.0.0/30, but has 1"
            )]
        );
    }
}

#[test]
fn overlapping_blocks_and_blocks_outside_pools_are_reported() {
    let mut stored = StoredObjects::healthy();
    stored.add_block("10.0.0.64/26");
    stored.add_block("10.0.0.64/27");
    stored.add_block("10.0.0.96/28");
    stored.add_block("10.0.0.64/30");
    let pairs = [
        "10.0.0.64/26 and 10.0.0.64/27",
        "10.0.0.64/26 and 10.0.0.64/30",
        "10.0.0.64/27 and 10.0.0.64/30",
        "10.0.0.64/26 and 10.0.0.96/28",
    ];
    let texts = pairs.map(|pair| {
        format!("overlapping blocks: {pair}; see the block size of a pool in docs/faq.md")
    });
    assert_eq!(stored.texts(), texts);
    let mut stored = StoredObjects::healthy();
    stored.pools = vec![cidr("10.1.0.0/16")];
    assert_eq!(
        stored.texts(),
        ["block outside pools: 10.0.0.0/30 of host:node1, 2 addresses in use"]
    );
}

#[test]
fn inconsistent_blocks_are_reported() {
    let mut stored = StoredObjects::healthy();
    stored.blocks[0].unallocated.push(0);
    assert_eq!(
        stored.texts(),
        ["corrupt block: block 10.0.0.0/30 is corrupt: ordinal 0 in its free list is allocated"]
    );
    let mut stored = StoredObjects::healthy();
    stored.blocks[0].unallocated.pop();
    assert_eq!(
        stored.texts(),
        ["corrupt block: block 10.0.0.0/30 is corrupt: ordinal 3 is neither allocated nor free"]
    );
}

#[test]
fn empty_block_that_is_marked_for_deletion_is_noted() {
    let note = "unfinished deletion: block 10.0.0.8/30 is marked for deletion; an ADD that needs \
                room or garbage collection deletes it";
    for has_affinity in [true, false] {
        let mut stored = StoredObjects::healthy();
        stored.add_block("10.0.0.8/30").deleted = true;
        if !has_affinity {
            stored.affinities.pop();
        }
        assert_eq!(stored.texts(), [note]);
        assert!(stored.findings()[0].is_note());
    }
    let mut stored = StoredObjects::healthy();
    stored.blocks[0].deleted = true;
    assert_eq!(stored.texts(), NOTHING, "a block in use is not deleted");
}

#[test]
fn affinities_that_disagree_with_blocks_are_reported() {
    for (claims, expected) in [
        (
            vec![],
            vec!["block without affinity: 10.0.0.0/30 of host:node1"],
        ),
        (
            vec![affinity(
                "node1",
                "10.0.0.0/30",
                AffinityState::PendingDeletion,
            )],
            vec![
                "block without affinity: 10.0.0.0/30 of host:node1, whose affinity is only \
                 pendingDeletion",
            ],
        ),
        // Old Calico versions wrote no state, which counts as confirmed.
        (
            vec![affinity("node1", "10.0.0.0/30", AffinityState::Unset)],
            vec![],
        ),
        (
            vec![
                affinity("node1", "10.0.0.0/30", AffinityState::Confirmed),
                affinity("node2", "10.0.0.0/30", AffinityState::Confirmed),
                affinity("node2", "10.0.0.4/30", AffinityState::Confirmed),
            ],
            vec![
                "affinity without block: host:node2 has an affinity to 10.0.0.0/30 of host:node1",
                "affinity without block: host:node2 has an affinity to 10.0.0.4/30, which is \
                 missing or has no owner",
            ],
        ),
    ] {
        let stored = StoredObjects {
            affinities: claims,
            ..StoredObjects::healthy()
        };
        assert_eq!(stored.texts(), expected);
    }
    let mut stored = StoredObjects::healthy();
    stored.blocks[0].clear_affinity();
    stored.affinities.clear();
    assert_eq!(
        stored.texts(),
        NOTHING,
        "a block without owner needs no affinity"
    );
}

#[test]
fn unfinished_affinity_without_addresses_is_only_noted() {
    use AffinityState::{Pending, PendingDeletion};
    for (state, word) in [(Pending, "pending"), (PendingDeletion, "pendingDeletion")] {
        for (what, node, range) in [
            ("a missing block", "node1", "10.0.0.4/30"),
            ("an empty block", "node1", "10.0.0.8/30"),
            ("another's block", "node2", "10.0.0.0/30"),
        ] {
            let mut stored = StoredObjects::healthy();
            stored.add_block("10.0.0.8/30");
            stored
                .affinities
                .retain(|(key, _)| key.cidr != cidr(range) || node == "node2");
            stored.affinities.push(affinity(node, range, state));
            let expected = format!(
                "unfinished affinity: host:{node} to {range} is {word}; the owner's next use of \
                 the block or garbage collection completes or deletes it"
            );
            assert_eq!(stored.texts(), [expected], "{what}");
            assert!(stored.findings()[0].is_note(), "{what}");
        }
        let mut stored = StoredObjects::healthy();
        stored.affinities = vec![affinity("node1", "10.0.0.0/30", state)];
        let findings = stored.findings();
        assert!(
            matches!(findings[..], [Finding::BlockWithoutAffinity { .. }])
                && !findings[0].is_note()
        );
    }
}

#[test]
fn json_report_round_trips() {
    let mut stored = StoredObjects::healthy();
    stored.endpoints = vec![
        endpoint("c9", "10.0.0.77"),
        endpoint("c3", "10.0.0.1"),
        endpoint("c4", "10.0.0.1"),
    ];
    stored.handles.remove(&HandleId::new("net.c1"));
    stored
        .handles
        .entry(HandleId::new("net.gone"))
        .or_default()
        .increment(cidr("10.0.0.0/30"), 2);
    stored
        .handles
        .entry(HandleId::new("net.c2"))
        .or_default()
        .increment(cidr("10.0.0.0/30"), 2);
    stored.affinities = vec![
        affinity("node2", "10.0.0.4/30", AffinityState::Confirmed),
        affinity("node2", "10.0.0.8/30", AffinityState::Pending),
    ];
    stored.add_block("10.9.0.0/30").unallocated.pop();
    stored.add_block("10.9.0.0/31");
    let findings = stored.findings();
    let kinds: std::collections::HashSet<_> = findings.iter().map(std::mem::discriminant).collect();
    assert_eq!(kinds.len(), 12, "{findings:#?}");
    let report = serde_json::to_string(&findings).unwrap();
    assert_eq!(
        serde_json::from_str::<Vec<Finding>>(&report).unwrap(),
        findings
    );
    let first: serde_json::Value = serde_json::to_value(&findings[0]).unwrap();
    assert_eq!(first["finding"], "corruptBlock");
}

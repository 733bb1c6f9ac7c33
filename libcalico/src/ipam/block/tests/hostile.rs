//! Tests that no operation panics on a generated or damaged block. `FUZZ_SECONDS` sets the duration
//! of each test.

use std::time::Instant;

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use repository::effort::fuzz_time;
use serde_json::{Value, json};

use super::*;
use crate::ipam::{
    AuditedEndpoint, BlockUse, Inventory, PackedBlock, PackedEndpoint, Room, UsableBlock, audit,
    usable_block,
};

fn index() -> impl Strategy<Value = Value> {
    prop_oneof![
        6 => (0..6u64).prop_map(Value::from),
        3 => Just(Value::Null),
        1 => any::<u64>().prop_map(Value::from),
        1 => any::<i64>().prop_map(Value::from),
        1 => Just(json!("x")),
    ]
}

fn text() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(json!("host:node1")),
        Just(json!("virtual:")),
        Just(json!("")),
        Just(Value::Null),
        Just(json!("2026-08-22T01:02:03Z")),
        Just(json!("9999-12-31T23:59:59-23:59")),
        Just(json!("0000-01-01T00:00:00Z")),
        ".{0,12}".prop_map(Value::from),
    ]
}

fn attribute() -> impl Strategy<Value = Value> {
    let handle = prop_oneof![
        Just(json!("h")),
        Just(json!("windows-reserved-ipam-handle")),
        text()
    ];
    (
        handle,
        prop::option::of(text()),
        prop::option::weighted(0.3, text()),
    )
        .prop_map(|(handle, pod, released)| {
            let mut attribute = json!({"handle_id": handle});
            if let Some(pod) = pod {
                attribute["secondary"] =
                    json!({"pod": pod, "timestamp": "2026-08-22 01:02:03 +0000 UTC"});
            }
            if let Some(released) = released {
                attribute["releasedAt"] = released;
            }
            attribute
        })
}

fn stored_block() -> impl Strategy<Value = Value> {
    let range = prop_oneof![
        6 => Just("10.0.0.0/30"), 1 => Just("10.0.0.0/32"), 1 => Just("fd00::/126"),
        1 => Just("0.0.0.0/0"),
        1 => Just("::/0"), 1 => Just("255.255.255.252/30"), 1 => Just("ten"),
    ];
    (
        range,
        text(),
        text(),
        prop::collection::vec(index(), 0..6),
        prop::collection::vec(index(), 0..6),
        prop::collection::vec(attribute(), 0..4),
        prop::collection::btree_map("[0-9]{1,2}|.{0,3}", any::<u64>(), 0..4),
        any::<u64>(),
    )
        .prop_map(
            |(
                range,
                affinity,
                claimed,
                allocations,
                unallocated,
                attributes,
                sequences,
                number,
            )| {
                json!({"cidr": range, "affinity": affinity, "affinity_claim_time": claimed,
                    "allocations": allocations,
                "unallocated": unallocated, "attributes": attributes, "sequenceNumber": number,
                "sequenceNumberForAllocation": sequences})
            },
        )
}

fn damaged_block() -> impl Strategy<Value = Value> {
    (0..5usize, 0..3usize, 0..9usize, index()).prop_map(|(assigned, released, place, value)| {
        let mut block = fresh();
        for n in 0..assigned {
            assign(&mut block, 1, &format!("h{n}"));
        }
        block
            .release_by_handle(&HandleId::new(format!("h{released}")), None, 30, NOW)
            .unwrap();
        let mut stored = serde_json::to_value(&block).unwrap();
        match place {
            0..4 => stored["allocations"][place] = value,
            4..8 => stored["unallocated"] = json!([place - 4, value]),
            _ => stored["sequenceNumber"] = value,
        }
        stored
    })
}

fn operate(block: &Block) {
    let handle = HandleId::new("h");
    let owner = host("node1");
    let reserved = Reservations::new([cidr("10.0.0.1/32")]);
    let request = BlockRequest {
        handle: Some(&handle),
        attributes: &attributes("p"),
        requester: &owner,
        check_affinity: false,
    };
    let healthy = block.verify().is_ok();
    let (cooldowns, addresses) = (
        [i64::MIN, -1, 0, 30, i64::MAX],
        ["10.0.0.0", "10.0.0.3", "fd00::1", "::"].map(ip),
    );
    for cooldown in cooldowns {
        for now in [
            NOW,
            OffsetDateTime::UNIX_EPOCH,
            datetime!(-9999-01-01 00:00 UTC),
            datetime!(9999-12-31 23:59 UTC),
        ] {
            let mut changed = block.clone();
            let _ = changed.collect_garbage(cooldown, now);
            let _ = changed.assign(2, &request, &reserved);
            let _ = changed.release_by_handle(&handle, None, cooldown, now);
            for address in addresses {
                let _ = changed.assign_address(address, &request);
                let named = ReleaseRequest {
                    ip: address,
                    handle: None,
                    sequence: None,
                };
                let _ = changed.release(&[named], cooldown, now);
                let _ = changed.allocation(address);
            }
            changed.count_write();
            changed.clear_affinity();
            // A time before the year 0 cannot be stored.
            let is_storable = now.year() >= 0;
            let as_before = changed.verify().is_ok() == healthy;
            assert!(
                as_before || !is_storable,
                "no operation changes the validity of a block"
            );
            changed.release_from_corrupt(&handle, cooldown, now);
            assert!(
                !healthy || !is_storable || changed.verify().is_ok(),
                "a release breaks no block"
            );
            if let Some(repaired) = block.repaired(now, |_| None) {
                assert!(
                    !is_storable || repaired.block.repaired(now, |_| None).is_none(),
                    "a repair is complete"
                );
            }
        }
    }
    let _ = (
        block.is_empty(),
        block.free(&reserved),
        block.addresses_of(&handle),
        BlockUse::of(block, &reserved),
    );
    survey(block);
}

fn survey(block: &Block) {
    let packed = PackedBlock::of(block.clone());
    let endpoints = [AuditedEndpoint {
        name: "e".into(),
        addresses: vec![ip("10.0.0.0")],
        ..AuditedEndpoint::default()
    }]
    .map(|endpoint| PackedEndpoint::of(&endpoint));
    let inventory = Inventory {
        pools: &[cidr("10.0.0.0/16")],
        active_pools: &[cidr("10.0.0.0/16")],
        blocks: &[packed.clone(), packed],
        handles: &[],
        affinities: &[],
        endpoints: &endpoints,
        pods: &Default::default(),
        owners: &Default::default(),
        now: NOW,
        in_flight: Default::default(),
    };
    let _ = audit(&inventory);
    let pool = crate::ipam::Pool {
        name: "p".into(),
        cidr: cidr("10.0.0.0/30"),
        block_prefix: 30,
        node_selector: String::new(),
        allowed_uses: Vec::new(),
    };
    let none = Reservations::none();
    let room = Room::of(block, &none, &host("node1"), NOW);
    let room_of = |cidr: &Cidr| (*cidr == block.cidr).then_some(Some(room));
    let selected = usable_block(
        &[pool],
        &room_of,
        &[block.cidr].into(),
        &none,
        &host("node1"),
        NOW,
    );
    assert!(
        block.cidr.overlaps(&cidr("10.0.0.0/30"))
            || selected == UsableBlock::Claim(cidr("10.0.0.0/30"))
    );
}

fn try_for(strategy: impl Strategy<Value = Value>) {
    let end = Instant::now() + fuzz_time();
    let mut runner = TestRunner::default();
    let (mut decoded, mut rounds) = (0u64, 0u64);
    while Instant::now() < end {
        rounds += 1;
        let stored = strategy.new_tree(&mut runner).unwrap().current();
        if let Ok(block) = Block::decode(stored.to_string().as_bytes()) {
            decoded += 1;
            operate(&block);
        }
    }
    assert!(
        decoded * 20 > rounds,
        "only {decoded} of {rounds} inputs were blocks"
    );
}

#[test]
fn no_operation_on_a_decoded_block_panics() {
    try_for(stored_block());
}

#[test]
fn no_operation_on_a_damaged_block_panics() {
    try_for(damaged_block());
}

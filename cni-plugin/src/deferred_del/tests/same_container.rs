//! Deferred DELs of the container of an ADD, recorded with another interface name.

use std::time::Duration;

use libcalico::ipam::{Block, Handle, HandleId};
use serde_json::json;
use time::OffsetDateTime;

use super::*;

/// Stores the handle of container c1 with an address that was allocated at `since`, and records a
/// deferred DEL of the container's `eth1` at `deferred`.
async fn context_with_deferred_del(
    files: &Path,
    since: OffsetDateTime,
    deferred: OffsetDateTime,
) -> Context<ThisNode> {
    let cx = context_of_add(files, "");
    let (date, (hour, minute, second, nano)) = (since.date(), since.to_hms_nano());
    let timestamp = format!("{date} {hour:02}:{minute:02}:{second:02}.{nano:09} +0000 UTC");
    let attributes = json!({ "node": "node1", "timestamp": timestamp });
    let block = json!({
        "cidr": "10.65.0.0/30", "affinity": "host:node1", "allocations": [0, null, null, null],
        "unallocated": [1, 2, 3],
        "attributes": [{ "handle_id": "net1.c1", "secondary": attributes }], "deleted": false,
    });
    let (block, id): (Block, _) = (
        serde_json::from_value(block).unwrap(),
        HandleId::new("net1.c1"),
    );
    let handle = json!({ "block": { "10.65.0.0/30": 1 }, "deleted": false, "id": "net1.c1" });
    let handle: Handle = serde_json::from_value(handle).unwrap();
    cx.store
        .create(&"10.65.0.0/30".parse().unwrap(), &block)
        .await
        .unwrap();
    cx.store.create(&id, &handle).await.unwrap();
    let other = workload(
        "c1",
        "eth1",
        Orchestrator::Cni(ContainerIdentity::new("net1")),
    );
    let endpoint = other.create(&["10.65.0.0".parse().unwrap()]).unwrap();
    cx.store.create(&endpoint.key(), &endpoint).await.unwrap();
    let pending_del = PendingDel {
        datastore: cx.datastore_name(),
        handles: vec!["net1.c1".into()],
        allocated_before: deferred.unix_timestamp_nanos().try_into().unwrap(),
        ..pending_del_of(&other)
    };
    cx.journal.record(&pending_del).unwrap();
    cx
}

/// The number of addresses, of endpoints and of journal entries.
async fn remaining(cx: &Context<impl World>) -> [usize; 3] {
    let blocks = cx.store.list::<Block>(&None).await.unwrap();
    let held = blocks
        .iter()
        .flat_map(|block| block.value.allocated().collect::<Vec<_>>())
        .count();
    let select = workload("c1", "", Orchestrator::Cni(ContainerIdentity::new("net1")))
        .endpoint_select()
        .unwrap();
    let endpoints = cx
        .store
        .list::<WorkloadEndpoint>(&select)
        .await
        .unwrap()
        .len();
    [held, endpoints, cx.journal.entries().unwrap().len()]
}

/// All interfaces of a container have the same handle.
#[tokio::test]
async fn add_replays_a_deferred_del_of_another_interface_of_its_container_first() {
    let files = tempfile::tempdir().unwrap();
    let now = OffsetDateTime::now_utc();
    let cx = context_with_deferred_del(files.path(), now - Duration::from_millis(100), now).await;
    replay_before_add(&cx).await.unwrap();
    assert_eq!(remaining(&cx).await, [0, 0, 0]);
}

#[tokio::test]
async fn replay_keeps_the_entry_and_the_addresses_that_were_allocated_after_the_del() {
    for later in [Duration::ZERO, Duration::from_millis(1500)] {
        let files = tempfile::tempdir().unwrap();
        let deferred = OffsetDateTime::now_utc() - Duration::from_secs(5);
        let since = deferred + later;
        let cx = context_with_deferred_del(files.path(), since, deferred).await;
        replay_before_add(&cx).await.unwrap();
        assert_eq!(remaining(&cx).await, [1, 1, 1], "before an ADD, {since}");
        replay_some(&cx).await;
        assert_eq!(
            remaining(&cx).await,
            [1, 1, 1],
            "after another call, {since}"
        );
    }
}

/// The clock was set back between the ADD and the DEL, and the container is gone.
#[tokio::test]
async fn replay_releases_newer_addresses_without_an_interface_unless_an_add_may_be_under_way() {
    let an_hour = time::Duration::HOUR;
    for (age, left) in [
        (-an_hour, [0, 0, 0]),
        (time::Duration::SECOND, [1, 1, 1]),
        (an_hour, [0, 0, 0]),
    ] {
        let (files, now) = (tempfile::tempdir().unwrap(), OffsetDateTime::now_utc());
        let cx = context_with_deferred_del(files.path(), now - age, now - 2 * an_hour).await;
        replay_some(&cx).await;
        assert_eq!(remaining(&cx).await, left, "allocated {age} ago");
    }
}

/// The entry of an earlier release has no limit.
#[tokio::test]
async fn replay_of_an_entry_without_a_limit_releases_all_addresses() {
    let files = tempfile::tempdir().unwrap();
    let now = OffsetDateTime::now_utc();
    let cx = context_with_deferred_del(files.path(), now + Duration::from_secs(1), now).await;
    let [entry] = &cx.journal.entries().unwrap()[..] else {
        panic!("one entry")
    };
    let pending_del = PendingDel {
        allocated_before: 0,
        ..entry.pending_del.as_ref().unwrap().clone()
    };
    cx.journal.record(&pending_del).unwrap();
    replay_some(&cx).await;
    assert_eq!(remaining(&cx).await, [0, 0, 0]);
}

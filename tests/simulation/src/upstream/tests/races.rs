//! Lets another process, or a fault, act between two requests of the plugin.

use std::collections::BTreeMap;

use libcalico::ipam::{AffinityState, Block, HandleId};
use libcalico::store::{Kind, WriteOp};
use memory_store::Fault;

use super::cluster::{Cluster, both, cidr, ip, requests};
use crate::upstream::{self, AddRequest, Collector, UpstreamError};

const BLOCK: &str = "assignment/ipv4/block/10.65.166.128-26";

fn pool4(cluster: &Cluster) {
    cluster.pool("pool4", "10.65.0.0/16", 26, |_| {});
}

/// Injects `fault` into the first write of a block that changes it.
fn at_block_update(cluster: &Cluster, fault: Fault) {
    let mut is_first = true;
    cluster.store().before_each(move |_, writes, _| {
        let write = writes.into_iter().flatten().next();
        let is_update = write.is_some_and(|write| {
            write.kind == Block::KIND && matches!(write.op, WriteOp::Update(..))
        });
        if is_update && std::mem::take(&mut is_first) {
            fault
        } else {
            Fault::None
        }
    });
}

/// Gives the block a new revision before its first update.
fn touch_before_update(cluster: &Cluster, range: &'static str) {
    let mut is_first = true;
    cluster.store().before_each(move |_, writes, pairs| {
        let write = writes.into_iter().flatten().next();
        let is_update = write.is_some_and(|write| {
            write.kind == Block::KIND && matches!(write.op, WriteOp::Update(..))
        });
        if is_update && std::mem::take(&mut is_first) {
            pairs.touch(&Block::path(&cidr(range)));
        }
        Fault::None
    });
}

#[tokio::test]
async fn claim_of_a_range_that_another_node_took_deletes_the_affinity_and_lists_again() {
    for cluster in both() {
        pool4(&cluster);
        let other = Cluster::on(memory_store::MemoryStore::transactional());
        other.own("node2", "10.65.166.128/26", AffinityState::Confirmed);
        let taken = other.block("10.65.166.128/26").unwrap().encode().unwrap();
        // The other node creates the block after this node has found it missing.
        let path = Block::path(&cidr("10.65.166.128/26"));
        cluster.store().before_each(move |_, writes, pairs| {
            let write = writes.into_iter().flatten().next();
            if write.is_some_and(|write| write.path == path) && !pairs.paths().contains(&path) {
                pairs.put(path.clone(), taken.clone());
            }
            Fault::None
        });
        let assigned = cluster.add_v4("node1", "net.a").await.unwrap();
        assert_eq!(assigned, [ip("10.65.166.192")]);
        let affinity = "host/node1/ipv4/block/10.65.166.128-26";
        let mark = [
            format!("update {affinity} marked"),
            format!("get {affinity}"),
        ];
        let mut expected = vec![
            format!("create {affinity} pending"),
            format!("get {BLOCK} missing"),
            format!("update {affinity} pending"),
            "get config missing".into(),
            format!("create {BLOCK} exists"),
            format!("get {BLOCK}"),
        ];
        if cluster.is_kubernetes() {
            expected.extend(mark);
        }
        expected.push(format!("delete {affinity}"));
        expected.push("list assignment/".into());
        let sent = cluster.recorder.take();
        assert_eq!(sent[6..6 + expected.len()], expected);
    }
}

#[tokio::test]
async fn add_that_loses_the_race_for_the_block_decrements_the_handle_and_reads_again() {
    for cluster in both() {
        pool4(&cluster);
        cluster.add_v4("node1", "net.a").await.unwrap();
        cluster.recorder.take();
        touch_before_update(&cluster, "10.65.166.128/26");
        cluster.add_v4("node1", "net.b").await.unwrap();
        let mark: &[&str] = if cluster.is_kubernetes() {
            &["update handle/net.b marked", "get handle/net.b"]
        } else {
            &[]
        };
        let expected = requests(&[
            &[
                "get handle/net.b missing",
                "create handle/net.b",
                "update assignment/ipv4/block/10.65.166.128-26 conflict",
                "get handle/net.b",
            ],
            mark,
            &[
                "delete handle/net.b",
                "get assignment/ipv4/block/10.65.166.128-26",
                "get handle/net.b missing",
                "create handle/net.b",
                "update assignment/ipv4/block/10.65.166.128-26",
            ],
        ]);
        assert_eq!(cluster.recorder.take()[7..], expected);
    }
}

#[tokio::test]
async fn requested_address_that_loses_a_race_leaves_a_count_that_is_too_high() {
    for cluster in both() {
        pool4(&cluster);
        cluster
            .add_fixed("node1", "net.a", "10.65.1.9")
            .await
            .unwrap();
        touch_before_update(&cluster, "10.65.1.0/26");
        cluster
            .add_fixed("node1", "net.b", "10.65.1.10")
            .await
            .unwrap();
        let counts = cluster.handle("net.b").unwrap().block;
        assert_eq!(counts.into_values().collect::<Vec<_>>(), [2]);
    }
}

/// The search for a block finds the same block again, so the container has two addresses, of which
/// its handle counts one.
#[tokio::test]
async fn add_whose_block_write_has_no_answer_takes_a_second_address() {
    for cluster in both() {
        pool4(&cluster);
        cluster.add_v4("node1", "net.a").await.unwrap();
        at_block_update(&cluster, Fault::LostAnswer);
        let assigned = cluster.add_v4("node1", "net.b").await.unwrap();
        assert_eq!(assigned, [ip("10.65.166.130")]);
        let block = cluster.block("10.65.166.128/26").unwrap();
        assert_eq!(block.allocated().count(), 3);
        // A DEL releases both, but cannot subtract two.
        cluster.del("net.b").await.unwrap();
        let block = cluster.block("10.65.166.128/26").unwrap();
        assert_eq!(block.allocated().count(), 1);
        let counts = cluster.handle("net.b").unwrap().block;
        assert_eq!(counts.into_values().collect::<Vec<_>>(), [1]);
    }
}

#[tokio::test]
async fn add_without_answer_and_without_second_try_leaves_an_address_without_handle() {
    for cluster in both() {
        pool4(&cluster);
        cluster.configure(|config| config.max_blocks_per_host = 1);
        cluster.add_v4("node1", "net.a").await.unwrap();
        at_block_update(&cluster, Fault::LostAnswer);
        let outcome = cluster.add_v4("node1", "net.b").await;
        assert_eq!(outcome, Err(UpstreamError::BlockLimit));
        cluster.del("net.b").await.unwrap();
        let block = cluster.block("10.65.166.128/26").unwrap();
        assert_eq!(block.allocated().count(), 2);
        assert_eq!(cluster.handle("net.b"), None);
    }
}

#[tokio::test]
async fn add_without_free_range_takes_an_empty_block_after_a_minute() {
    for cluster in both() {
        cluster.pool("tiny", "10.66.0.0/30", 30, |_| {});
        cluster.configure(|config| config.strict_affinity = true);
        cluster.own("node2", "10.66.0.0/30", AffinityState::Confirmed);
        cluster.wait(time::Duration::seconds(59));
        let early = cluster.add_v4("node1", "net.a").await;
        assert!(early.is_err(), "{early:?}");
        cluster.wait(time::Duration::seconds(1));
        cluster.recorder.take();
        let assigned = cluster.add_v4("node1", "net.a").await.unwrap();
        assert_eq!(assigned, [ip("10.66.0.0")]);
        let (affinity, block) = (
            "host/node2/ipv4/block/10.66.0.0-30",
            "assignment/ipv4/block/10.66.0.0-30",
        );
        let sent = cluster.recorder.take();
        let expected = [
            "list assignment/".to_owned(),
            format!("get {affinity}"),
            format!("get {block}"),
            format!("update {affinity} pendingDeletion"),
        ];
        assert_eq!(sent[5..9], expected);
        let created = "create host/node1/ipv4/block/10.66.0.0-30 pending".to_owned();
        assert!(sent.contains(&created), "{sent:?}");
    }
}

#[tokio::test]
async fn reader_of_a_marked_block_completes_its_deletion_on_an_api_server() {
    let [_, cluster] = both();
    pool4(&cluster);
    cluster.own("node1", "10.65.166.128/26", AffinityState::Confirmed);
    let mut block = cluster.block("10.65.166.128/26").unwrap();
    block.deleted = true;
    cluster.store().put(&cidr("10.65.166.128/26"), &block);
    cluster.add_v4("node1", "net.a").await.unwrap();
    let affinity = "host/node1/ipv4/block/10.65.166.128-26";
    let expected = [
        format!("get {affinity}"),
        format!("get {BLOCK}"),
        format!("update {BLOCK} marked"),
        format!("get {BLOCK}"),
        format!("delete {BLOCK}"),
        format!("update {affinity} pending"),
        "get config missing".into(),
        format!("create {BLOCK}"),
        format!("update {affinity} confirmed"),
    ];
    assert_eq!(cluster.recorder.take()[5..14], expected);
}

/// A scheduler of the simulation may move the calls between threads.
#[test]
fn calls_of_all_clients_are_send() {
    fn assert_send<T: Send>(_: &T) {}
    let [cluster, _] = both();
    let (store, now) = (cluster.store(), &|| time::OffsetDateTime::UNIX_EPOCH);
    let (id, attributes) = (HandleId::new("net.a"), BTreeMap::new());
    let request = AddRequest {
        node: "node1",
        handle: &id,
        attributes: &attributes,
        pools: &[],
        namespace: None,
    };
    assert_send(&upstream::add(store, now, &request, &[]));
    assert_send(&upstream::add_fixed(store, now, &request, ip("10.65.0.1")));
    assert_send(&upstream::del(store, now, &id, None));
    let mut collector = Collector::new(None);
    assert_send(&upstream::gc_pass(&mut collector, store, store, now));
}

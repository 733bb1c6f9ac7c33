//! Compares the requests of garbage collection with upstream's. No recording has them.

use libcalico::ipam::AffinityState;
use time::Duration;

use super::cluster::{Cluster, both, cidr, ip, requests};
use crate::upstream::{Collector, UpstreamError};

const GRACE: Duration = Duration::minutes(15);
const BLOCK: &str = "assignment/ipv4/block/10.65.166.128-26";

/// A cluster in which the pod `net.a` on `node1` has an address.
async fn with_pod(cluster: &Cluster) -> Collector {
    cluster.pool("pool4", "10.65.0.0/16", 26, |_| {});
    cluster.add_v4("node1", "net.a").await.unwrap();
    cluster.pod("node1", "net.a", "10.65.166.128");
    let mut collector = Collector::new(Some(GRACE));
    cluster.pass(&mut collector).await.unwrap();
    cluster.recorder.take();
    collector
}

fn handle_deletion(cluster: &Cluster) -> &'static [&'static str] {
    if cluster.is_kubernetes() {
        &[
            "get handle/net.a",
            "update handle/net.a marked",
            "get handle/net.a",
            "delete handle/net.a",
        ]
    } else {
        &["get handle/net.a", "delete handle/net.a"]
    }
}

#[tokio::test]
async fn collection_releases_a_leak_after_the_grace_period_and_a_look_at_the_pod() {
    for cluster in both() {
        let mut collector = with_pod(&cluster).await;
        cluster.remove_pod("net.a");
        for wait in [Duration::ZERO, GRACE] {
            cluster.wait(wait);
            collector.tick();
            cluster.pass(&mut collector).await.unwrap();
            assert_eq!(cluster.recorder.take(), Vec::<String>::new());
        }
        cluster.wait(Duration::seconds(1));
        collector.tick();
        cluster.pass(&mut collector).await.unwrap();
        let expected = requests(&[
            &[
                "get pods/ns/net.a missing",
                "list ippools/",
                "get config missing",
                "get assignment/ipv4/block/10.65.166.128-26",
                "update assignment/ipv4/block/10.65.166.128-26",
            ],
            handle_deletion(&cluster),
            &["get nodes/node1", "list ippools/"],
        ]);
        assert_eq!(cluster.recorder.take(), expected);
        assert_eq!(collector.take_reclaimed(), [ip("10.65.166.128")]);
    }
}

#[tokio::test]
async fn collection_with_old_caches_keeps_the_address_of_a_pod_in_the_api() {
    for cluster in both() {
        let mut collector = with_pod(&cluster).await;
        let mut lagging = cluster.snapshot().await;
        lagging.pods.clear();
        collector.observe(lagging);
        cluster.pass_with_lag(&mut collector).await.unwrap();
        cluster.wait(GRACE + Duration::seconds(1));
        collector.tick();
        cluster.pass_with_lag(&mut collector).await.unwrap();
        assert_eq!(cluster.recorder.take(), ["get pods/ns/net.a"]);
        assert!(collector.take_reclaimed().is_empty());
    }
}

#[tokio::test]
async fn collection_of_a_reassigned_address_fails_by_its_sequence_number() {
    for cluster in both() {
        let mut collector = with_pod(&cluster).await;
        cluster.remove_pod("net.a");
        collector.observe(cluster.snapshot().await);
        cluster.pass_with_lag(&mut collector).await.unwrap();
        // The same handle gets the address again, and the watch has not delivered the block yet.
        let mut block = cluster.block("10.65.166.128/26").unwrap();
        block
            .sequence_number_for_allocation
            .insert("0".into(), block.sequence_number);
        block.count_write();
        cluster.store().put(&cidr("10.65.166.128/26"), &block);
        cluster.wait(GRACE + Duration::seconds(1));
        collector.tick();
        let outcome = cluster.pass_with_lag(&mut collector).await;
        assert!(
            matches!(outcome, Err(UpstreamError::Release(_))),
            "{outcome:?}"
        );
        let sent = cluster.recorder.take();
        assert_eq!(sent.last().unwrap(), &format!("get {BLOCK}"));
        assert!(collector.take_reclaimed().is_empty());
    }
}

#[tokio::test]
async fn collection_gives_up_an_empty_block_unless_it_is_the_only_one() {
    for cluster in both() {
        let mut collector = Collector::new(Some(GRACE));
        let states = [AffinityState::Confirmed; 2];
        for (range, state) in ["10.65.0.0/26", "10.65.0.64/26"].into_iter().zip(states) {
            cluster.own("node1", range, state);
        }
        cluster.pass(&mut collector).await.unwrap();
        cluster.wait(GRACE + Duration::seconds(1));
        cluster.pass(&mut collector).await.unwrap();
        let (affinity, block) = (
            "host/node1/ipv4/block/10.65.0.0-26",
            "assignment/ipv4/block/10.65.0.0-26",
        );
        let mut expected = vec![
            format!("get {affinity}"),
            format!("get {block}"),
            format!("update {affinity} pendingDeletion"),
        ];
        for path in [block, affinity] {
            if cluster.is_kubernetes() {
                expected.extend([format!("update {path} marked"), format!("get {path}")]);
            }
            expected.push(format!("delete {path}"));
        }
        assert_eq!(cluster.recorder.take(), expected);
        cluster.wait(GRACE + GRACE);
        cluster.pass(&mut collector).await.unwrap();
        assert_eq!(cluster.recorder.take(), Vec::<String>::new());
    }
}

#[tokio::test]
async fn collection_of_a_deleted_node_releases_its_leaks_at_once_and_its_blocks() {
    for cluster in both() {
        let mut collector = with_pod(&cluster).await;
        cluster.remove_node("node1");
        cluster.pass(&mut collector).await.unwrap();
        assert_eq!(
            cluster.recorder.take(),
            ["get nodes/node1 missing"],
            "the pod keeps the address"
        );
        cluster.remove_pod("net.a");
        cluster.pass(&mut collector).await.unwrap();
        let sent = cluster.recorder.take();
        let expected = requests(&[
            &[
                "get nodes/node1 missing",
                "list ippools/",
                "get config missing",
                "get assignment/ipv4/block/10.65.166.128-26",
                "update assignment/ipv4/block/10.65.166.128-26",
            ],
            handle_deletion(&cluster),
            &[
                "get nodes/node1 missing",
                "list host/node1/ipv4/block/",
                "get host/node1/ipv4/block/10.65.166.128-26",
                "get assignment/ipv4/block/10.65.166.128-26",
                "update host/node1/ipv4/block/10.65.166.128-26 pendingDeletion",
            ],
        ]);
        assert_eq!(sent[..expected.len()], expected);
        assert_eq!(sent.last().unwrap(), "list host/node1/ipv6/block/");
        assert_eq!(cluster.block("10.65.166.128/26"), None);
    }
}

#[tokio::test]
async fn collection_writes_a_block_whose_cooldown_has_elapsed_from_the_cache() {
    for cluster in both() {
        let mut collector = with_pod(&cluster).await;
        cluster.configure(|config| config.ip_cooldown_seconds = 60);
        cluster.remove_pod("net.a");
        cluster.del("net.a").await.unwrap();
        cluster.pass(&mut collector).await.unwrap();
        cluster.wait(Duration::seconds(61));
        cluster.recorder.take();
        cluster.pass(&mut collector).await.unwrap();
        let expected = ["get config".to_owned(), format!("update {BLOCK} of cache")];
        assert_eq!(cluster.recorder.take(), expected);
        let block = cluster.block("10.65.166.128/26").unwrap();
        assert_eq!(block.allocated().count(), 0);
    }
}

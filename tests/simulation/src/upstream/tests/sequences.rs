//! Compares the requests of the plugin with upstream's. The calls are those of the recordings in
//! `tests/golden`, which are named; the recordings have the objects after each call.

use libcalico::ipam::AffinityState;
use libcalico::net::IpVersion;

use super::cluster::{Cluster, both, ip, requests};

const READ_FIRST: &[&str] = &[
    "get config missing",
    "list ipreservations/",
    "get nodes/node1",
    "list ippools/",
    "list host/node1/ipv4/block/",
];

/// The requests that delete an object.
fn deletion(cluster: &Cluster, path: &str) -> Vec<String> {
    let delete = format!("delete {path}");
    if cluster.is_kubernetes() {
        vec![
            format!("update {path} marked"),
            format!("get {path}"),
            delete,
        ]
    } else {
        vec![delete]
    }
}

fn pool4(cluster: &Cluster) {
    cluster.pool("pool4", "10.65.0.0/16", 26, |_| {});
}

/// The call of the recording `v4-add-del`, step 1.
#[tokio::test]
async fn add_without_block_claims_one_and_writes_it_again() {
    for cluster in both() {
        pool4(&cluster);
        let assigned = cluster.add_v4("node1", "net.a").await.unwrap();
        assert_eq!(assigned, [ip("10.65.166.128")]);
        let expected = requests(&[
            READ_FIRST,
            &[
                "list assignment/",
                "create host/node1/ipv4/block/10.65.166.128-26 pending",
                "get assignment/ipv4/block/10.65.166.128-26 missing",
                "update host/node1/ipv4/block/10.65.166.128-26 pending",
                "get config missing",
                "create assignment/ipv4/block/10.65.166.128-26",
                "update host/node1/ipv4/block/10.65.166.128-26 confirmed",
                "get handle/net.a missing",
                "create handle/net.a",
                "update assignment/ipv4/block/10.65.166.128-26",
            ],
        ]);
        assert_eq!(cluster.recorder.take(), expected);
    }
}

/// The call of the recording `v4-two-pods`, step 2.
#[tokio::test]
async fn add_with_block_reads_the_affinity_and_the_block() {
    for cluster in both() {
        pool4(&cluster);
        cluster.add_v4("node1", "net.a").await.unwrap();
        cluster.recorder.take();
        let assigned = cluster.add_v4("node1", "net.b").await.unwrap();
        assert_eq!(assigned, [ip("10.65.166.129")]);
        let expected = requests(&[
            READ_FIRST,
            &[
                "get host/node1/ipv4/block/10.65.166.128-26",
                "get assignment/ipv4/block/10.65.166.128-26",
                "get handle/net.b missing",
                "create handle/net.b",
                "update assignment/ipv4/block/10.65.166.128-26",
            ],
        ]);
        assert_eq!(cluster.recorder.take(), expected);
    }
}

/// The call of the recording `dual-stack`, step 1.
#[tokio::test]
async fn add_of_two_families_reads_everything_twice() {
    let [cluster, _] = both();
    pool4(&cluster);
    cluster.pool("pool6", "fd00:65::/64", 122, |_| {});
    let families = [IpVersion::V6, IpVersion::V4];
    let assigned = cluster.add("node1", "net.a", &families).await.unwrap();
    let second = "fd00:65::c11:b42f:f17e:a680";
    assert_eq!(assigned, [ip("10.65.166.128"), ip(second)]);
    let sent = cluster.recorder.take();
    assert_eq!(sent.len(), 30);
    let expected = requests(&[&[
        "get handle/net.a",
        "update handle/net.a",
        "update assignment/ipv6/block/fd00:65::c11:b42f:f17e:a680-122",
    ]]);
    assert_eq!(sent[27..], expected);
}

/// The calls of the recording `v4-add-del`, steps 2 and 3.
#[tokio::test]
async fn del_writes_the_block_then_deletes_the_handle() {
    for cluster in both() {
        pool4(&cluster);
        cluster.add_v4("node1", "net.a").await.unwrap();
        cluster.recorder.take();
        cluster.del("net.a").await.unwrap();
        let mut expected = requests(&[&[
            "get handle/net.a",
            "get config missing",
            "get assignment/ipv4/block/10.65.166.128-26",
            "update assignment/ipv4/block/10.65.166.128-26",
            "get handle/net.a",
        ]]);
        expected.extend(deletion(&cluster, "handle/net.a"));
        expected.extend(requests(&[&[
            "get nodes/node1",
            "list ippools/",
            "get handle/old missing",
        ]]));
        assert_eq!(cluster.recorder.take(), expected);
        cluster.del("net.a").await.unwrap();
        let expected = requests(&[&["get handle/net.a missing", "get handle/old missing"]]);
        assert_eq!(cluster.recorder.take(), expected);
    }
}

/// As in the recording `annot-pools`, step 4.
#[tokio::test]
async fn del_of_the_last_address_of_a_deselected_pool_gives_the_block_up() {
    for cluster in both() {
        cluster.pool("pool4", "10.66.0.0/29", 29, |_| {});
        cluster.add_v4("node1", "net.a").await.unwrap();
        let selector = |spec: &mut libcalico::api::IpPoolSpec| {
            spec.node_selector = "!all()".into();
        };
        cluster.pool("pool4", "10.66.0.0/29", 29, selector);
        cluster.recorder.take();
        cluster.del("net.a").await.unwrap();
        let sent = cluster.recorder.take();
        let (affinity, block) = (
            "host/node1/ipv4/block/10.66.0.0-29",
            "assignment/ipv4/block/10.66.0.0-29",
        );
        let mut expected = vec![
            "get nodes/node1".to_owned(),
            "list ippools/".into(),
            format!("get {affinity}"),
            format!("get {block}"),
            format!("update {affinity} pendingDeletion"),
        ];
        expected.extend(deletion(&cluster, block));
        expected.extend(deletion(&cluster, affinity));
        expected.push("get handle/old missing".into());
        assert_eq!(sent[sent.len() - expected.len()..], expected);
        assert!(cluster.block("10.66.0.0/29").is_none());
    }
}

/// The call of the recording `borrow`, step 2.
#[tokio::test]
async fn add_borrows_after_it_found_no_range_to_claim() {
    for cluster in both() {
        cluster.pool("tiny", "10.66.0.0/29", 29, |_| {});
        cluster.add_v4("node2", "net.a").await.unwrap();
        cluster.recorder.take();
        let assigned = cluster.add_v4("node1", "net.b").await.unwrap();
        assert_eq!(assigned, [ip("10.66.0.1")]);
        let expected = requests(&[
            READ_FIRST,
            &[
                "list assignment/",
                "get assignment/ipv4/block/10.66.0.0-29",
                "get handle/net.b missing",
                "create handle/net.b",
                "update assignment/ipv4/block/10.66.0.0-29",
            ],
        ]);
        assert_eq!(cluster.recorder.take(), expected);
    }
}

/// The calls of the recording `args-ip`, steps 1 and 2.
#[tokio::test]
async fn add_of_a_requested_address_reads_no_node_and_no_reservation() {
    for cluster in both() {
        pool4(&cluster);
        let first = cluster.add_fixed("node1", "net.a", "10.65.1.9").await;
        assert_eq!(first, Ok(()));
        let expected = requests(&[&[
            "list ippools/",
            "get config missing",
            "get assignment/ipv4/block/10.65.1.0-26 missing",
            "get config missing",
            "create host/node1/ipv4/block/10.65.1.0-26 pending",
            "create assignment/ipv4/block/10.65.1.0-26",
            "update host/node1/ipv4/block/10.65.1.0-26 confirmed",
            "get handle/net.a missing",
            "create handle/net.a",
            "update assignment/ipv4/block/10.65.1.0-26",
        ]]);
        assert_eq!(cluster.recorder.take(), expected);
        let second = cluster.add_fixed("node1", "net.b", "10.65.1.9").await;
        let error = second.unwrap_err().to_string();
        assert_eq!(error, "Address already assigned in block");
        let expected = requests(&[&[
            "list ippools/",
            "get config missing",
            "get assignment/ipv4/block/10.65.1.0-26",
        ]]);
        assert_eq!(cluster.recorder.take(), expected);
    }
}

#[tokio::test]
async fn add_with_pending_affinity_rewrites_the_block_before_it_confirms() {
    for cluster in both() {
        pool4(&cluster);
        cluster.own("node1", "10.65.0.0/26", AffinityState::PendingDeletion);
        cluster.add_v4("node1", "net.a").await.unwrap();
        let expected = requests(&[&[
            "get host/node1/ipv4/block/10.65.0.0-26",
            "get assignment/ipv4/block/10.65.0.0-26",
            "update host/node1/ipv4/block/10.65.0.0-26 pending",
            "update assignment/ipv4/block/10.65.0.0-26",
            "update host/node1/ipv4/block/10.65.0.0-26 confirmed",
            "get handle/net.a missing",
            "create handle/net.a",
            "update assignment/ipv4/block/10.65.0.0-26",
        ]]);
        assert_eq!(cluster.recorder.take()[5..], expected);
    }
}

#[tokio::test]
async fn add_at_the_block_limit_fails_without_a_search() {
    let [cluster, _] = both();
    cluster.pool("pool4", "10.65.0.0/24", 32, |_| {});
    cluster.configure(|config| config.max_blocks_per_host = 1);
    cluster.add_v4("node1", "net.a").await.unwrap();
    cluster.recorder.take();
    let error = cluster.add_v4("node1", "net.b").await.unwrap_err();
    assert_eq!(error, crate::upstream::UpstreamError::BlockLimit);
    assert_eq!(cluster.recorder.take().len(), 7);
}

#[tokio::test]
async fn add_without_second_family_releases_the_first_by_address() {
    for cluster in both() {
        cluster.configure(|config| config.strict_affinity = true);
        pool4(&cluster);
        cluster.pool("pool6", "fd00::/128", 128, |_| {});
        cluster
            .add("node2", "net.x", &[IpVersion::V6])
            .await
            .unwrap();
        cluster.recorder.take();
        let families = [IpVersion::V4, IpVersion::V6];
        let error = cluster.add("node1", "net.a", &families).await.unwrap_err();
        assert_eq!(
            error.to_string(),
            "Assigned 0 out of 1 requested IPv6 addresses"
        );
        let sent = cluster.recorder.take();
        let mut expected = requests(&[&[
            "list ippools/",
            "get config",
            "get assignment/ipv4/block/10.65.166.128-26",
            "update assignment/ipv4/block/10.65.166.128-26",
            "get handle/net.a",
        ]]);
        expected.extend(deletion(&cluster, "handle/net.a"));
        expected.extend(requests(&[&["get nodes/node1", "list ippools/"]]));
        assert_eq!(sent[sent.len() - expected.len()..], expected);
        assert_eq!(cluster.handle("net.a"), None);
    }
}

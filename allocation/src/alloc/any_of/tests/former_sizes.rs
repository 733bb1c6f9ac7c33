//! Lists with addresses in blocks of a former size: the pool was created again with another block
//! size.

use libcalico::api::IpPoolSpec;
use libcalico::ipam::{AffinityOwner, Block, BlockAffinity};
use libcalico::store::Kind;

use super::*;
use crate::testing::{Fault, affinity_key};

const RANGE: &str = "10.65.0.0/16";

/// The block size before and after, and the block of 10.65.3.3 from before.
const SIZES: [(u8, u8, &str); 2] = [(26, 28, "10.65.3.0/26"), (28, 26, "10.65.3.0/28")];

/// Creates the clusters after a change of the block size. The pod `web-0` of `node1` has 10.65.3.3,
/// and `web-9` has 10.65.3.5.
async fn clusters_with_a_former_block(former: u8, present: u8) -> [Cluster; 2] {
    let clusters = clusters();
    for cluster in &clusters {
        cluster.pool("pool4", RANGE, former);
        for (handle, pod, address) in [
            ("net.c1", "web-0", "10.65.3.3"),
            ("net.other", "web-9", "10.65.3.5"),
        ] {
            let earlier = request(cluster, "node1", handle, pod);
            assert_eq!(
                assign_as(cluster, &earlier, &list(&[address]))
                    .await
                    .unwrap(),
                [ip(address)]
            );
        }
        cluster.pool("pool4", RANGE, present);
    }
    clusters
}

fn blocks(cluster: &Cluster) -> Vec<Cidr> {
    cluster
        .store
        .pairs()
        .list::<Block>(&None)
        .into_iter()
        .map(|(cidr, _)| cidr)
        .collect()
}

/// Asserts that `net.c2` has 10.65.3.3, that `net.other` has its address as before, and that no
/// block was added.
fn assert_kept(cluster: &Cluster, block: &str) {
    let of = |handle: &str, address: &str| (HandleId::new(handle), vec![ip(address)]);
    let expected = [of("net.c2", "10.65.3.3"), of("net.other", "10.65.3.5")].into();
    assert_eq!(held(&cluster.store.pairs()), expected);
    assert_eq!(
        cluster.handle("net.c2").unwrap().block,
        [(cidr(block), 1)].into()
    );
    assert_eq!(cluster.handle("net.c1"), None);
    assert_eq!(blocks(cluster), [cidr(block)]);
    assert_consistent(&cluster.store.pairs(), true);
}

#[tokio::test]
async fn restarted_pod_gets_its_released_address_in_a_former_block() {
    for (former, present, block) in SIZES {
        for cluster in clusters_with_a_former_block(former, present).await {
            cluster.release("net.c1").await.unwrap();
            let next = request(&cluster, "node1", "net.c2", "web-0");
            let found = assign_as(&cluster, &next, &list(&["10.65.3.3", "10.65.9.9"]))
                .await
                .unwrap();
            assert_eq!(found, [ip("10.65.3.3")]);
            assert_kept(&cluster, block);
        }
    }
}

#[tokio::test]
async fn address_of_the_earlier_sandbox_passes_on_in_a_former_block() {
    // The endpoint names the address, or a read of the list finds the address.
    for (listed, order) in [
        (
            vec![ip("10.65.3.3")],
            ["10.65.9.9", "10.65.3.5", "10.65.3.3"],
        ),
        (vec![], ["10.65.3.5", "10.65.3.3", "10.65.9.9"]),
    ] {
        for (former, present, block) in SIZES {
            for cluster in clusters_with_a_former_block(former, present).await {
                let mut next = request(&cluster, "node1", "net.c2", "web-0");
                let mut sandbox =
                    Predecessor::from_annotation("net", "c1", "shop", "web-0").unwrap();
                sandbox.listed.clone_from(&listed);
                next.predecessor = Some(sandbox);
                assert_eq!(
                    assign_as(&cluster, &next, &list(&order)).await.unwrap(),
                    [ip("10.65.3.3")]
                );
                assert_kept(&cluster, block);
            }
        }
    }
}

#[tokio::test]
async fn former_block_of_another_node_gives_an_address_unless_affinity_is_strict() {
    for ((former, present, block), strict) in SIZES
        .into_iter()
        .flat_map(|size| [(size, false), (size, true)])
    {
        for cluster in clusters_with_a_former_block(former, present).await {
            cluster.configure(|config| config.strict_affinity = strict);
            let second = request(&cluster, "node2", "net.b", "web-1");
            let found = assign_as(
                &cluster,
                &second,
                &list(&["10.65.3.3", "10.65.3.4", "10.65.9.9"]),
            )
            .await
            .unwrap();
            assert_eq!(found, [ip(if strict { "10.65.9.9" } else { "10.65.3.4" })]);
            assert_eq!(
                cluster.affinity("node1", block),
                Some(AffinityState::Confirmed)
            );
            assert_eq!(cluster.affinity("node2", block), None);
            assert_eq!(blocks(&cluster).len(), if strict { 2 } else { 1 });
            assert_consistent(&cluster.store.pairs(), true);
        }
    }
}

#[tokio::test]
async fn former_block_gives_no_address_that_its_pool_withholds() {
    let changes: [fn(&mut IpPoolSpec); 3] = [
        |spec| spec.disabled = true,
        |spec| spec.allowed_uses = vec![AllowedUse::Tunnel.into()],
        |spec| spec.namespace_selector = "team == 'blue'".into(),
    ];
    for ((former, present, _), change) in SIZES
        .into_iter()
        .flat_map(|size| changes.map(|change| (size, change)))
    {
        for cluster in clusters_with_a_former_block(former, present).await {
            cluster.pool_with("pool4", RANGE, present, change);
            let second = request(&cluster, "node1", "net.b", "web-1");
            let outcome = assign_as(&cluster, &second, &list(&["10.65.3.4"])).await;
            let Err(IpamError::NoneFree { unavailable }) = &outcome else {
                panic!("{outcome:?}")
            };
            assert!(
                matches!(unavailable[0].reason, Obstacle::NoPool(_)),
                "{unavailable:?}"
            );
        }
    }
}

/// No block contains the address, and the block of the pool would contain the former one.
#[tokio::test]
async fn address_beside_a_smaller_former_block_is_not_free() {
    for cluster in clusters_with_a_former_block(28, 26).await {
        let second = request(&cluster, "node1", "net.b", "web-1");
        let found = assign_as(&cluster, &second, &list(&["10.65.3.20", "10.65.9.9"]))
            .await
            .unwrap();
        assert_eq!(found, [ip("10.65.9.9")]);
        let third = request(&cluster, "node1", "net.c", "web-2");
        let error = assign_as(&cluster, &third, &list(&["10.65.3.20"]))
            .await
            .unwrap_err();
        let expected = "the block of 10.65.3.20 overlaps with block 10.65.3.0/28 of another size";
        assert_eq!(told(&error).2, expected);
        assert_eq!(cluster.block("10.65.3.0/26"), None);
        assert_consistent(&cluster.store.pairs(), true);
    }
}

fn put_block(cluster: &Cluster, node: &str, range: Cidr) {
    let block = Block::new(
        range,
        &AffinityOwner::Host(node.into()),
        cluster.clock.now(),
    )
    .unwrap();
    cluster.store.put(&range, &block);
}

/// Upstream's plugin on another node claims a block of the present size over the former one.
#[tokio::test]
async fn address_in_two_blocks_is_not_free_after_a_read_of_the_ranges() {
    for cluster in clusters_with_a_former_block(28, 26).await {
        put_block(&cluster, "node2", cidr("10.65.3.0/26"));
        put_block(&cluster, "node1", cidr("10.65.4.0/28"));
        let second = request(&cluster, "node1", "net.b", "web-1");
        // The block of the first address is missing, so its state is in the ranges.
        let addresses = ["10.65.4.20", "10.65.3.3", "10.65.9.9"];
        assert_eq!(
            assign_as(&cluster, &second, &list(&addresses))
                .await
                .unwrap(),
            [ip("10.65.9.9")]
        );
        // The former block does not contain the second address.
        let third = request(&cluster, "node1", "net.c", "web-2");
        let addresses = ["10.65.4.20", "10.65.3.20"];
        assert_eq!(
            assign_as(&cluster, &third, &list(&addresses))
                .await
                .unwrap(),
            [ip("10.65.3.20")]
        );
    }
}

#[tokio::test]
async fn list_in_65_former_blocks_and_two_of_the_present_size_gives_an_address() {
    for cluster in clusters() {
        (0..65).for_each(|last| put_block(&cluster, "node2", cidr(&format!("10.65.3.{last}/32"))));
        let own = request(&cluster, "node1", "net.a", "web-0");
        assert_eq!(
            assign_as(&cluster, &own, &list(&["10.65.3.0/25"]))
                .await
                .unwrap(),
            [ip("10.65.3.0")]
        );
    }
}

/// Garbage collection deletes the empty former block between any two requests.
#[tokio::test]
async fn former_block_deleted_meanwhile_is_replaced_by_one_of_the_present_size() {
    for ((former, present, block), at) in SIZES
        .into_iter()
        .flat_map(|size| (0..10).map(move |at| (size, at)))
    {
        for cluster in clusters_with_a_former_block(former, present).await {
            for handle in ["net.c1", "net.other"] {
                cluster.release(handle).await.unwrap();
            }
            cluster.store.before_each(move |nth, _, pairs| {
                let found = pairs
                    .get::<Block>(&cidr(block))
                    .filter(|found| nth == at && found.is_empty());
                if found.is_some() {
                    pairs.remove(&Block::path(&cidr(block)));
                    pairs.remove(&BlockAffinity::path(&affinity_key("node1", block)));
                }
                Fault::None
            });
            let next = request(&cluster, "node1", "net.c2", "web-0");
            let outcome = assign_as(&cluster, &next, &list(&["10.65.3.3"])).await;
            cluster.store.end_faults();
            let context = format!("{former} to {present} at request {at}");
            assert_eq!(
                outcome.unwrap_or_else(|error| panic!("{context}: {error}")),
                [ip("10.65.3.3")]
            );
            let [of_address] = blocks(&cluster)[..] else {
                panic!("{context}: {:?}", blocks(&cluster))
            };
            assert!(
                of_address == cidr(block) || of_address.prefix() == present,
                "{context}: {of_address}"
            );
            assert_eq!(
                cluster.handle("net.c2").unwrap().block,
                [(of_address, 1)].into(),
                "{context}"
            );
            assert_consistent(&cluster.store.pairs(), true);
        }
    }
}

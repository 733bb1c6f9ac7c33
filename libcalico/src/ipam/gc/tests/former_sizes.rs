//! Tests of empty blocks whose pool has another block size now.

use super::super::*;
use super::cluster::{Cluster, GRACE, out_of_service};
use super::scenarios::cluster;

/// The empty block of `n2` in [`cluster`].
const FORMER: &str = "10.0.0.8/29";

fn in_service(range: &str, block_prefix: u8) -> PoolShape {
    PoolShape {
        block_prefix,
        in_service: true,
        ..out_of_service(range)
    }
}

/// Returns the blocks that are in excess after the grace period, with the reasons, sorted by the
/// text of the block.
fn excess(cluster: &mut Cluster) -> Vec<(String, ExcessReason)> {
    cluster.deliver_all();
    cluster.index.excess_blocks(cluster.now);
    cluster.now += GRACE;
    let excess = cluster.index.excess_blocks(cluster.now);
    cluster.check();
    let mut excess: Vec<_> = excess
        .into_iter()
        .map(|excess| (excess.block.to_string(), excess.reason))
        .collect();
    excess.sort_by(|a, b| a.0.cmp(&b.0));
    excess
}

#[test]
fn last_empty_block_of_a_former_size_is_excess() {
    let mut cluster = cluster();
    assert!(excess(&mut cluster).is_empty());
    cluster.index.put_pool("v4", in_service("10.0.0.0/16", 28));
    assert_eq!(
        excess(&mut cluster),
        [(FORMER.to_owned(), ExcessReason::FormerSize)]
    );
    cluster.run_rest_of_pass();
    cluster.now += GRACE;
    cluster.run_rest_of_pass();
    let blocks: Vec<String> = cluster.blocks.keys().map(ToString::to_string).collect();
    assert_eq!(
        blocks,
        ["10.0.0.0/29"],
        "the block with the address of a pod stays"
    );
}

#[test]
fn former_size_counts_only_in_a_pool_in_service() {
    let harmless: [fn(&mut Index); 4] = [
        |index| index.put_pool("v4", out_of_service("10.0.0.0/16")),
        |index| index.put_pool("v4", in_service("10.0.0.0/16", 29)),
        |index| index.put_pool("inner", in_service("10.0.0.0/24", 29)),
        |index| index.remove_pool("v4"),
    ];
    for change in harmless {
        let mut cluster = cluster();
        cluster.index.put_pool("v4", in_service("10.0.0.0/16", 28));
        assert_eq!(cluster.index.excess_blocks(cluster.now), []);
        change(&mut cluster.index);
        assert!(excess(&mut cluster).is_empty());
    }
}

#[test]
fn last_block_of_the_present_size_stays_beside_former_ones() {
    let mut cluster = cluster();
    cluster.index.put_pool("v4", in_service("10.0.0.0/16", 28));
    cluster.claim("10.0.1.0/28", "n1");
    let former = (FORMER.to_owned(), ExcessReason::FormerSize);
    assert_eq!(excess(&mut cluster), std::slice::from_ref(&former));
    cluster.claim("10.0.1.16/28", "n1");
    let excess = excess(&mut cluster);
    assert_eq!((excess.len(), &excess[0]), (2, &former));
    assert_eq!(excess[1].1, ExcessReason::OtherBlocks);
}

#[test]
fn former_block_of_a_migrating_node_or_without_a_grace_period_stays() {
    let mut migrating = cluster();
    migrating
        .index
        .put_pool("v4", in_service("10.0.0.0/16", 28));
    migrating.index.put_kubernetes_node("n2", true);
    assert!(excess(&mut migrating).is_empty());
    let mut without_grace = cluster();
    without_grace
        .index
        .put_pool("v4", in_service("10.0.0.0/16", 28));
    without_grace.index.set_settings(GcSettings {
        leak_grace: None,
        ..*without_grace.index.settings()
    });
    assert!(excess(&mut without_grace).is_empty());
}

//! Blocks of nodes that upstream's migration from flannel has claimed, and whose addresses
//! host-local still assigns (KC-457).

use serde_json::json;

use crate::controllers_gc::collected_cluster::{CollectedCluster, Given, LONG_GRACE, on, owned};

const NETWORK: &str = "projectcalico.org/node-network-during-migration";

/// Sets the label of a node, or removes it.
fn set_network(cluster: &CollectedCluster<'_>, node: &str, network: Option<&str>) {
    let labels = json!({ "metadata": { "labels": { NETWORK: network } } });
    cluster
        .servers
        .merge(&format!("/api/v1/nodes/{node}"), &labels);
}

/// Creates a node with the four blocks of its pod CIDR `10.0.THIRD.0/24`, as the migration claims
/// them: one has the tunnel address, and three are empty.
fn migrated_node(cluster: &CollectedCluster<'_>, node: &str, third: u8, network: Option<&str>) {
    cluster.node(node);
    set_network(cluster, node, network);
    let attributes = [("node", node), ("type", "vxlanTunnelAddress")]
        .map(owned)
        .into();
    let tunnel = Given {
        handle: format!("vxlan-tunnel-addr-{node}"),
        attributes,
    };
    cluster.block(&format!("10.0.{third}.0/26"), Some(node), &[tunnel]);
    for fourth in [64, 128, 192] {
        cluster.block(&format!("10.0.{third}.{fourth}/26"), Some(node), &[]);
    }
}

/// Returns the number of the node's blocks.
fn blocks_of(cluster: &CollectedCluster<'_>, node: &str) -> usize {
    let owner = format!("host:{node}");
    cluster
        .blocks()
        .into_values()
        .filter(|affinity| affinity.as_ref() == Some(&owner))
        .count()
}

#[on(kubernetes_v1)]
fn blocks_of_nodes_under_migration_stay(cluster: &CollectedCluster<'_>) {
    cluster.pool("default-ipv4-ippool", "10.0.0.0/16", 26);
    for (node, third, network) in [
        ("waits", 0, "flannel"),
        ("moves", 1, "none"),
        ("done", 2, "calico"),
    ] {
        migrated_node(cluster, node, third, Some(network));
    }
    let collector = cluster.collect_after(LONG_GRACE);
    collector.await_first_pass();
    collector.advance_until(
        LONG_GRACE / 2,
        "the empty blocks of the node that has moved",
        || blocks_of(cluster, "done") == 1,
    );
    collector.pass_after(LONG_GRACE * 2);
    collector.pass_after(LONG_GRACE * 2);
    assert_eq!(
        (blocks_of(cluster, "waits"), blocks_of(cluster, "moves")),
        (4, 4)
    );
    assert_eq!(cluster.affinities().len(), 9);
    assert_eq!(
        cluster.held().len(),
        3,
        "each node keeps its tunnel address"
    );
}

#[on(kubernetes_v1, kubernetes_v3)]
fn blocks_are_released_after_the_label_says_calico(cluster: &CollectedCluster<'_>) {
    cluster.pool("default-ipv4-ippool", "10.0.0.0/16", 26);
    migrated_node(cluster, "checked", 0, Some("flannel"));
    migrated_node(cluster, "complete", 1, Some("flannel"));
    let collector = cluster.collect_after(LONG_GRACE);
    collector.await_first_pass();
    collector.pass_after(LONG_GRACE * 2);
    collector.pass_after(LONG_GRACE * 2);
    assert_eq!(
        (
            blocks_of(cluster, "checked"),
            blocks_of(cluster, "complete")
        ),
        (4, 4)
    );

    // The label of a node has the value `calico` until all nodes have moved. Then it is removed.
    set_network(cluster, "checked", Some("calico"));
    set_network(cluster, "complete", None);
    collector.pass_after(LONG_GRACE / 4);
    assert_eq!(
        (
            blocks_of(cluster, "checked"),
            blocks_of(cluster, "complete")
        ),
        (4, 4)
    );
    collector.advance_until(LONG_GRACE / 2, "the empty blocks", || {
        (
            blocks_of(cluster, "checked"),
            blocks_of(cluster, "complete"),
        ) == (1, 1)
    });
    assert_eq!(cluster.held().len(), 2);
}

//! Blocks of nodes that upstream's migration from flannel has claimed, and whose addresses
//! host-local still assigns (KC-457).

use serde_json::json;

use crate::lab::{Given, LONG_GRACE, Lab, owned, with_a_long_grace_period};

const NETWORK: &str = "projectcalico.org/node-network-during-migration";

/// Sets the label of a node, or removes it.
fn set_network(lab: &Lab<'_>, node: &str, network: Option<&str>) {
    let labels = json!({ "metadata": { "labels": { NETWORK: network } } });
    lab.admin()
        .patch(&format!("/api/v1/nodes/{node}"), &labels)
        .unwrap()
        .success()
        .unwrap();
}

/// Creates a node with the four blocks of its pod CIDR `10.0.THIRD.0/24`, as the migration claims
/// them: one has the tunnel address, and three are empty.
fn migrated_node(lab: &Lab<'_>, node: &str, third: u8, network: Option<&str>) {
    lab.node(node);
    set_network(lab, node, network);
    let attributes = [("node", node), ("type", "vxlanTunnelAddress")]
        .map(owned)
        .into();
    let tunnel = Given {
        handle: format!("vxlan-tunnel-addr-{node}"),
        attributes,
    };
    lab.block(&format!("10.0.{third}.0/26"), Some(node), &[tunnel]);
    for fourth in [64, 128, 192] {
        lab.block(&format!("10.0.{third}.{fourth}/26"), Some(node), &[]);
    }
}

/// Returns the number of the node's blocks.
fn blocks_of(lab: &Lab<'_>, node: &str) -> usize {
    let owner = format!("host:{node}");
    lab.blocks()
        .into_values()
        .filter(|affinity| affinity.as_ref() == Some(&owner))
        .count()
}

#[on(kubernetes_v1, kubernetes_v3)]
fn blocks_of_nodes_under_migration_stay(lab: &Lab<'_>) {
    lab.pool("default-ipv4-ippool", "10.0.0.0/16", 26);
    for (node, third, network) in [
        ("waits", 0, "flannel"),
        ("moves", 1, "none"),
        ("done", 2, "calico"),
    ] {
        migrated_node(lab, node, third, Some(network));
    }
    let collecting = lab.collect(with_a_long_grace_period(lab));
    collecting.has_looked();
    collecting.as_time_goes_by(
        LONG_GRACE / 2,
        "the empty blocks of the node that has moved",
        || blocks_of(lab, "done") == 1,
    );
    collecting.pass_after(LONG_GRACE * 2);
    collecting.pass_after(LONG_GRACE * 2);
    assert_eq!((blocks_of(lab, "waits"), blocks_of(lab, "moves")), (4, 4));
    assert_eq!(lab.affinities().len(), 9);
    assert_eq!(lab.held().len(), 3, "each node keeps its tunnel address");
}

#[on(kubernetes_v1, kubernetes_v3)]
fn blocks_are_released_after_the_label_says_calico(lab: &Lab<'_>) {
    lab.pool("default-ipv4-ippool", "10.0.0.0/16", 26);
    migrated_node(lab, "checked", 0, Some("flannel"));
    migrated_node(lab, "complete", 1, Some("flannel"));
    let collecting = lab.collect(with_a_long_grace_period(lab));
    collecting.has_looked();
    collecting.pass_after(LONG_GRACE * 2);
    collecting.pass_after(LONG_GRACE * 2);
    assert_eq!(
        (blocks_of(lab, "checked"), blocks_of(lab, "complete")),
        (4, 4)
    );

    // The label of a node has the value `calico` until all nodes have moved. Then it is removed.
    set_network(lab, "checked", Some("calico"));
    set_network(lab, "complete", None);
    collecting.pass_after(LONG_GRACE / 4);
    assert_eq!(
        (blocks_of(lab, "checked"), blocks_of(lab, "complete")),
        (4, 4)
    );
    collecting.as_time_goes_by(LONG_GRACE / 2, "the empty blocks", || {
        (blocks_of(lab, "checked"), blocks_of(lab, "complete")) == (1, 1)
    });
    assert_eq!(lab.held().len(), 2);
}

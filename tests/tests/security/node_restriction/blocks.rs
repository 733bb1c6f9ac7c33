//! Blocks of other nodes: the token of a node can borrow addresses from them, but not delete or
//! take them.

use integration_tests::Place;
use integration_tests::kubernetes::Client;
use serde_json::{Value, json};

use crate::node_restriction::restricted_cluster::{RestrictedCluster, assert_denied, on};

const POLICY: &str = "calico-cni-blocks";

/// Creates six blocks: for `node1`, for `node2` and without an owner, one without addresses and one
/// with an address of `node2` each.
fn create_blocks(cluster: &RestrictedCluster<'_>) {
    for (cidr, owner, allocations) in [
        ("10.65.1.0/30", "host:node1", &[][..]),
        ("10.65.1.4/30", "host:node1", &["node2"][..]),
        ("10.65.2.0/30", "host:node2", &[][..]),
        ("10.65.2.4/30", "host:node2", &["node2"][..]),
        ("10.65.3.0/30", "", &[][..]),
        ("10.65.3.4/30", "", &["node2"][..]),
    ] {
        let block = cluster.block(cidr, owner, allocations);
        cluster
            .api
            .admin()
            .create(&cluster.path("ipamblocks"), &block)
            .unwrap()
            .success();
    }
}

#[track_caller]
fn assert_edit_denied(
    cluster: &RestrictedCluster<'_>,
    thief: &Client,
    name: &str,
    edit: impl FnOnce(&mut Value),
) {
    let path = cluster.object_path("ipamblocks", name);
    let spec = || cluster.api.admin().get(&path).unwrap().success()["spec"].clone();
    let before = spec();
    assert_denied(cluster.change(thief, &path, edit), POLICY);
    assert_eq!(spec(), before, "{name}");
}

fn other_blocks_keep_their_owner(cluster: &RestrictedCluster<'_>) {
    create_blocks(cluster);
    let thief = cluster.plugins_of("node1");
    for foreign in ["10-65-2-0-30", "10-65-2-4-30"] {
        assert_denied(
            thief.delete(&cluster.object_path("ipamblocks", foreign)),
            POLICY,
        );
        assert_edit_denied(cluster, &thief, foreign, |block| {
            block["spec"]["affinity"] = json!("host:node1")
        });
        assert_edit_denied(cluster, &thief, foreign, |block| {
            block["spec"].as_object_mut().unwrap().remove("affinity");
        });
        assert_edit_denied(cluster, &thief, foreign, |block| {
            block["spec"]["deleted"] = json!(true)
        });
        assert_edit_denied(cluster, &thief, foreign, |block| {
            block["spec"]["cidr"] = json!("10.66.0.0/30")
        });
        assert_edit_denied(cluster, &thief, foreign, |block| {
            block["metadata"]["finalizers"] = json!(["example.com/held"]);
        });
        // The garbage collector of Kubernetes would delete a block whose owner does not exist.
        assert_edit_denied(cluster, &thief, foreign, |block| {
            let gone = json!({ "apiVersion": "v1", "kind": "Node", "name": "gone", "uid": "none" });
            block["metadata"]["ownerReferences"] = json!([gone]);
        });
    }
    assert_edit_denied(cluster, &thief, "10-65-3-4-30", |block| {
        block["spec"]["affinity"] = json!("host:node1")
    });
    assert_edit_denied(cluster, &thief, "10-65-1-4-30", |block| {
        block["spec"]["affinity"] = json!("host:node2")
    });
    let block = cluster.block("10.65.4.0/30", "host:node2", &[]);
    assert_denied(thief.create(&cluster.path("ipamblocks"), &block), POLICY);
    // A second block must not have the range of another node's block, even in another spelling.
    for (name, cidr) in [
        ("10-65-9-0-30", "10.65.2.4/30"),
        ("10-65-2-5-30", "10.65.2.5/30"),
        ("fd00-10-244--1-0-0-40-126", "fd00:10:244::1:0:0:40/126"),
    ] {
        let mut block = cluster.block(cidr, "host:node1", &[]);
        block["metadata"]["name"] = json!(name);
        assert_denied(thief.create(&cluster.path("ipamblocks"), &block), POLICY);
    }
    // A block of this node cannot be deleted while another node has an address in it.
    assert_denied(
        thief.delete(&cluster.object_path("ipamblocks", "10-65-1-4-30")),
        POLICY,
    );
}

fn own_blocks_are_written_and_other_blocks_borrowed_from(cluster: &RestrictedCluster<'_>) {
    create_blocks(cluster);
    let plugins = cluster.plugins_of("node1");
    let block = cluster.block("10.65.4.0/30", "host:node1", &["node1"]);
    plugins
        .create(&cluster.path("ipamblocks"), &block)
        .unwrap()
        .success();
    for (name, cidr, owner) in [
        ("10-65-2-4-30", "10.65.2.4/30", "host:node2"),
        ("10-65-3-4-30", "10.65.3.4/30", ""),
    ] {
        for allocations in [&["node2", "node1"][..], &["node2"][..]] {
            let spec = cluster.block(cidr, owner, allocations)["spec"].take();
            let written = cluster.change(
                &plugins,
                &cluster.object_path("ipamblocks", name),
                |block| block["spec"] = spec,
            );
            written.unwrap().success();
        }
    }
    let given_up = cluster.change(
        &plugins,
        &cluster.object_path("ipamblocks", "10-65-1-4-30"),
        |block| {
            block["spec"].as_object_mut().unwrap().remove("affinity");
        },
    );
    given_up.unwrap().success();
    // The plugin that releases the last address of a block without an owner deletes the stored
    // block, which still has the address.
    for name in ["10-65-1-0-30", "10-65-3-0-30", "10-65-3-4-30"] {
        plugins
            .delete(&cluster.object_path("ipamblocks", name))
            .unwrap()
            .success();
    }
    let ipv6 = cluster.block("fd00:10:244:0:1::40/126", "host:node1", &[]);
    plugins
        .create(&cluster.path("ipamblocks"), &ipv6)
        .unwrap()
        .success();
}

/// Policies cannot tell these writes from the work of a node. Shows SEC-92.
#[on(kubernetes_v1)]
fn token_of_a_node_still_makes_the_listed_ipam_writes(cluster: &RestrictedCluster<'_>) {
    create_blocks(cluster);
    let thief = cluster.plugins_of("node1");
    let blocks = cluster.path("ipamblocks");
    // Any entry in any block: a release, the assignment of each address, and entries that
    // contradict each other.
    let foreign = cluster.object_path("ipamblocks", "10-65-2-4-30");
    let taken = cluster.block("10.65.2.4/30", "host:node2", &["node1"; 4]);
    let mut contradicting = taken.clone();
    contradicting["spec"]["unallocated"] = json!([0, 1, 2, 3]);
    contradicting["spec"]["attributes"] = json!([]);
    for mut entries in [
        cluster.block("10.65.2.4/30", "host:node2", &[]),
        taken,
        contradicting,
    ] {
        let spec = entries["spec"].take();
        let expected = [
            &spec["allocations"],
            &spec["unallocated"],
            &spec["attributes"],
        ]
        .map(Value::clone);
        let written = cluster
            .change(&thief, &foreign, |block| block["spec"] = spec)
            .unwrap()
            .success();
        assert_eq!(
            ["allocations", "unallocated", "attributes"]
                .map(|field| written["spec"][field].clone()),
            expected
        );
    }
    // The deletion of any block without an owner, with the addresses in it.
    thief
        .delete(&cluster.object_path("ipamblocks", "10-65-3-4-30"))
        .unwrap()
        .success();
    // Any range without a block: around the blocks of others, and outside of all pools.
    for cidr in ["10.65.0.0/16", "172.16.0.0/30"] {
        thief
            .create(&blocks, &cluster.block(cidr, "host:node1", &["node1"]))
            .unwrap()
            .success();
    }
    // Any handle.
    let (handles, handle) = (
        cluster.path("ipamhandles"),
        cluster.object_path("ipamhandles", "net.node2"),
    );
    let spec = json!({ "handleID": "net.node2", "block": { "10.65.2.4/30": 1 }, "deleted": false });
    let object = cluster.calico("IPAMHandle", "net.node2", spec);
    cluster
        .api
        .admin()
        .create(&handles, &object)
        .unwrap()
        .success();
    let changed = cluster.change(&thief, &handle, |handle| {
        handle["spec"]["block"] = json!({})
    });
    assert_eq!(changed.unwrap().success()["spec"]["block"], json!({}));
    thief.delete(&handle).unwrap().success();
    thief.create(&handles, &object).unwrap().success();
}

#[on(kubernetes_v1)]
fn blocks_that_ipam_deletes_may_be_deleted(cluster: &RestrictedCluster<'_>) {
    let plugins = cluster.plugins_of("node1");
    for (attribute, owner, deleted) in [
        (
            json!({ "handle_id": "Windows-Reserved-IPAM-Handle" }),
            "host:node1",
            false,
        ),
        (
            json!({ "handle_id": "net.a", "releasedAt": "2026-01-02T03:04:05Z" }),
            "host:node1",
            false,
        ),
        (json!({ "handle_id": "net.a" }), "host:node2", true),
    ] {
        let mut block = cluster.block("10.65.1.0/30", owner, &["node1"]);
        block["spec"]["attributes"][0] = attribute;
        block["spec"]["deleted"] = json!(deleted);
        cluster
            .api
            .admin()
            .create(&cluster.path("ipamblocks"), &block)
            .unwrap()
            .success();
        plugins
            .delete(&cluster.object_path("ipamblocks", "10-65-1-0-30"))
            .unwrap()
            .success();
    }
}

/// Shows SEC-97.
#[test]
fn token_of_a_node_neither_deletes_nor_takes_blocks_of_another_node_in_crd_v1() {
    on(Place::KubernetesV1, other_blocks_keep_their_owner);
}

/// Shows SEC-97.
#[test]
fn token_of_a_node_neither_deletes_nor_takes_blocks_of_another_node_in_v3() {
    on(Place::KubernetesV3, other_blocks_keep_their_owner);
}

/// Shows SEC-97.
#[test]
fn token_of_a_node_writes_its_blocks_and_borrows_in_crd_v1() {
    on(
        Place::KubernetesV1,
        own_blocks_are_written_and_other_blocks_borrowed_from,
    );
}

#[test]
fn token_of_a_node_writes_its_blocks_and_borrows_in_v3() {
    on(
        Place::KubernetesV3,
        own_blocks_are_written_and_other_blocks_borrowed_from,
    );
}

//! Tests of conflicts.

use std::net::IpAddr;
use std::time::Duration;

use super::super::*;
use super::cluster::Cluster;
use super::scenarios::{cluster, examine};
use crate::ipam::{
    AffinityOwner, Block, BlockRequest, HandleId, OwnerSlot, PodState, ReportedAddresses,
};

const TWO_MINUTES: Duration = Duration::from_secs(120);
const ALMOST: Duration = Duration::from_nanos(119_999_999_999);

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// Sets the addresses that `ns/<name>` reports.
fn report(cluster: &mut Cluster, name: &str, addresses: &[&str], runs: bool) {
    let addresses = ReportedAddresses::new(addresses.iter().map(|text| ip(text)).collect());
    cluster.index.put_pod(
        "ns",
        name,
        &PodState {
            node: "n1",
            addresses,
            ended: None,
            runs,
        },
    );
}

/// Returns the block as it is, and with 10.0.0.5 allocated to `ns/<name>`.
fn free_and_held(cluster: &Cluster, name: &str) -> (Block, Block) {
    let free = cluster.blocks[&"10.0.0.0/29".parse().unwrap()].clone();
    let mut held = free.clone();
    let attributes = [("namespace", "ns"), ("pod", name)]
        .map(|(k, v)| (k.to_owned(), v.to_owned()))
        .into();
    let (handle, requester) = (
        HandleId::new(format!("net.{name}")),
        AffinityOwner::Host("n1".into()),
    );
    let request = BlockRequest {
        handle: Some(&handle),
        attributes: &attributes,
        requester: &requester,
        check_affinity: true,
    };
    held.assign_address(ip("10.0.0.5"), &request).unwrap();
    (free, held)
}

fn lasting(cluster: &mut Cluster) -> Vec<(String, IpAddr)> {
    examine(cluster);
    let conflicts = cluster.index.conflicts(cluster.now);
    conflicts
        .into_iter()
        .map(|conflict| (conflict.name, conflict.address))
        .collect()
}

fn after(cluster: &mut Cluster, time: Duration) -> Vec<(String, IpAddr)> {
    examine(cluster);
    cluster.now += time;
    lasting(cluster)
}

#[test]
fn reported_address_that_is_free_in_ipam_conflicts_after_two_minutes() {
    let mut cluster = cluster();
    report(&mut cluster, "lost", &["10.0.0.5"], true);
    assert_eq!(after(&mut cluster, ALMOST), []);
    assert_eq!(
        cluster.index.next_deadline(cluster.now),
        Some(cluster.now + Duration::from_nanos(1))
    );
    cluster.now += Duration::from_nanos(1);
    assert_eq!(lasting(&mut cluster), [("lost".to_owned(), ip("10.0.0.5"))]);
    assert_eq!(cluster.index.conflicting(cluster.now), (1, 0));
    let conflict = cluster.index.conflicts(cluster.now).remove(0);
    assert_eq!(
        (
            conflict.namespace.as_str(),
            conflict.block.to_string().as_str()
        ),
        ("ns", "10.0.0.0/29")
    );
    cluster.index.postpone_conflict(&conflict, cluster.now);
    assert_eq!(
        lasting(&mut cluster),
        [],
        "a postponed conflict is not returned"
    );
    assert_eq!(
        cluster.index.next_deadline(cluster.now),
        Some(cluster.now + Duration::from_secs(1))
    );
    assert_eq!(after(&mut cluster, Duration::from_secs(1)).len(), 1);
    cluster.index.mark_conflict_reported(&conflict);
    assert_eq!(
        after(&mut cluster, TWO_MINUTES),
        [],
        "a conflict is returned once"
    );
    assert_eq!(
        cluster.index.conflicting(cluster.now),
        (1, 0),
        "a reported conflict still counts"
    );
}

#[test]
fn reported_address_allocated_to_another_pod_is_in_conflict() {
    let mut cluster = cluster();
    // The address 10.0.0.0 belongs to p.
    report(&mut cluster, "older", &["10.0.0.0"], true);
    assert_eq!(
        after(&mut cluster, TWO_MINUTES),
        [("older".to_owned(), ip("10.0.0.0"))]
    );
    assert_eq!(cluster.index.conflicting(cluster.now), (0, 1));
}

/// The status of a pod whose ADDs fail lists the address of its last sandbox, which another pod has
/// by now. Shows SEC-17.
#[test]
fn conflict_with_the_next_owner_lasts_while_the_adds_of_the_pod_fail() {
    let mut cluster = cluster();
    report(&mut cluster, "older", &["10.0.0.0"], true);
    assert_eq!(after(&mut cluster, TWO_MINUTES).len(), 1);
    let conflict = cluster.index.conflicts(cluster.now).remove(0);
    cluster.index.mark_conflict_reported(&conflict);
    for _ in 0..3 {
        // The ADD got another address and released it.
        let (free, held) = free_and_held(&cluster, "older");
        for block in [&held, &free] {
            cluster.index.put_block(block).unwrap();
            report(&mut cluster, "older", &["10.0.0.0"], true);
            assert_eq!(lasting(&mut cluster), [], "the conflict is reported once");
            assert_eq!(cluster.index.conflicting(cluster.now), (0, 1));
        }
    }
    report(&mut cluster, "older", &["10.0.0.0"], false);
    assert_eq!(after(&mut cluster, TWO_MINUTES), []);
    assert_eq!(
        cluster.index.conflicting(cluster.now),
        (0, 0),
        "the pod has ended"
    );
}

#[test]
fn host_network_terminating_and_foreign_pods_are_in_no_conflict() {
    let mut cluster = cluster();
    report(&mut cluster, "host-network-or-going", &["10.0.0.5"], false);
    // As with another IPAM plugin or a host's address.
    report(&mut cluster, "foreign", &["10.0.0.16", "192.168.7.7"], true);
    assert_eq!(after(&mut cluster, TWO_MINUTES), []);
    assert_eq!(cluster.index.conflicting(cluster.now), (0, 0));
}

#[test]
fn interrupted_conflict_restarts_its_two_minutes() {
    for act in [
        (|c: &mut Cluster| report(c, "lost", &["10.0.0.5"], false)) as fn(&mut Cluster),
        |c| report(c, "lost", &["10.0.0.6"], true),
        |c| c.index.remove_pod("ns", "lost"),
        // Both changes come before the next examination.
        |c| {
            let (free, held) = free_and_held(c, "lost");
            c.index.put_block(&held).unwrap();
            c.index.put_block(&free).unwrap();
        },
    ] {
        let mut cluster = cluster();
        report(&mut cluster, "lost", &["10.0.0.5"], true);
        assert_eq!(after(&mut cluster, ALMOST), []);
        act(&mut cluster);
        cluster.deliver_all();
        report(&mut cluster, "lost", &["10.0.0.5"], true);
        assert_eq!(after(&mut cluster, ALMOST), []);
        assert_eq!(after(&mut cluster, Duration::from_nanos(1)).len(), 1);
    }
}

/// After a restore, the watch delivers the blocks of the backup again.
#[test]
fn conflicts_of_a_restored_datastore_are_found_and_end_with_the_repair() {
    let mut cluster = cluster();
    let backup = cluster.blocks.clone();
    for name in ["a", "b", "c"] {
        cluster.schedule(name, "n1");
        assert!(cluster.add(name, false));
        cluster.report(name);
    }
    assert_eq!(after(&mut cluster, TWO_MINUTES), []);
    let later = std::mem::replace(&mut cluster.blocks, backup);
    let tell = |cluster: &mut Cluster| {
        cluster.index.begin_list(WatchedKind::Blocks);
        for block in cluster.blocks.values() {
            cluster.index.put_block(block).unwrap();
        }
        cluster.index.end_list(WatchedKind::Blocks);
    };
    tell(&mut cluster);
    assert_eq!(after(&mut cluster, TWO_MINUTES).len(), 3);
    cluster.blocks = later;
    tell(&mut cluster);
    assert_eq!(lasting(&mut cluster), []);
    assert_eq!(cluster.index.conflicting(cluster.now), (0, 0));
}

#[test]
fn block_added_after_its_pods_is_compared_with_them() {
    let mut cluster = cluster();
    report(&mut cluster, "early", &["10.0.0.17"], true);
    assert_eq!(after(&mut cluster, TWO_MINUTES), []);
    cluster.claim("10.0.0.16/29", "n1");
    cluster.deliver_all();
    assert_eq!(after(&mut cluster, ALMOST), []);
    assert_eq!(after(&mut cluster, Duration::from_nanos(1)).len(), 1);
    cluster.clear_affinity("10.0.0.16/29");
    assert_eq!(lasting(&mut cluster), [], "no block contains the address");
}

/// Both pods of a live migration have the VMI's address.
#[test]
fn pods_of_a_vmi_are_in_no_conflict_with_the_vmi() {
    let mut cluster = cluster();
    cluster.set_vmi("vm", true);
    cluster.run_vmi("vm", "n1", OwnerSlot::Active);
    let handle = HandleId::for_vmi("net", "ns", "vm");
    let address = cluster
        .blocks
        .values()
        .flat_map(|block| block.addresses_of(&handle))
        .next()
        .unwrap();
    let reporting = |cluster: &mut Cluster, pods: &[&str]| {
        pods.iter()
            .for_each(|pod| report(cluster, pod, &[&address.to_string()], true));
        after(cluster, TWO_MINUTES)
    };
    assert_eq!(reporting(&mut cluster, &["virt-launcher-vm-2"]), []);
    assert_eq!(
        reporting(&mut cluster, &["other"]),
        [("other".to_owned(), address)]
    );
    cluster.run_vmi("vm", "n1", OwnerSlot::Alternate);
    assert_eq!(
        reporting(&mut cluster, &["virt-launcher-vm-3"]).len(),
        2,
        "the first pod of the VMI, and the other"
    );
    // The allocation names no pod, so any pod of the namespace may have the address.
    let mut block = cluster
        .blocks
        .values()
        .find(|block| block.cidr.contains(address))
        .cloned()
        .unwrap();
    block.set_owner(&handle, OwnerSlot::Alternate, &Default::default());
    cluster.index.put_block(&block).unwrap();
    assert_eq!(after(&mut cluster, TWO_MINUTES), []);
}

#[test]
fn conflict_kind_names_the_other_owner_of_a_reported_address() {
    let cluster = cluster();
    let block = &cluster.blocks[&"10.0.0.0/29".parse().unwrap()];
    assert_eq!(conflict_kind(block, ip("10.0.0.0"), "ns", "p"), None);
    assert_eq!(
        conflict_kind(block, ip("10.0.0.3"), "ns", "p"),
        Some(ConflictKind::Free)
    );
    assert_eq!(
        conflict_kind(block, ip("10.0.0.0"), "ns", "q")
            .unwrap()
            .to_string(),
        "allocated to pod ns/p"
    );
}

#[test]
fn conflict_kind_names_no_owner_of_another_namespace() {
    let cluster = cluster();
    let block = &cluster.blocks[&"10.0.0.0/29".parse().unwrap()];
    let kind = conflict_kind(block, ip("10.0.0.0"), "tenant", "p").unwrap();
    assert_eq!(kind.to_string(), "allocated to another namespace");
    assert_eq!(
        kind.whole(),
        "allocated to pod ns/p",
        "the log has the whole description"
    );
    assert_eq!(ConflictKind::Free.whole(), "free");
}

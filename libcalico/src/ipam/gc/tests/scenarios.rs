//! Tests of garbage collection in single scenarios.

use std::net::IpAddr;
use std::time::Duration;

use super::super::*;
use super::cluster::{Cluster, EPOCH, GRACE, Pod, Queue, out_of_service};
use crate::api::{IpReservation, IpReservationSpec};
use crate::ipam::{EndedPod, HandleId, InUseReason, LeakReason, OwnerSlot};

/// Returns a cluster with two nodes, a block for each, and pod p on n1 with an address.
pub(super) fn cluster() -> Cluster {
    let mut cluster = Cluster::new(0);
    for node in ["n1", "n2"] {
        cluster.node(node, true);
    }
    cluster.claim("10.0.0.0/29", "n1");
    cluster.claim("10.0.0.8/29", "n2");
    cluster.schedule("p", "n1");
    assert!(cluster.add("p", false));
    cluster.report("p");
    cluster.deliver_all();
    cluster
}

pub(super) fn examine(cluster: &mut Cluster) -> Vec<ChangeKind> {
    cluster.deliver_all();
    let changes = cluster.index.examine(cluster.now, Scope::Changed);
    cluster.check();
    changes.into_iter().map(|change| change.kind).collect()
}

/// Runs a pass before and after the grace period.
pub(super) fn after_grace(cluster: &mut Cluster) -> usize {
    cluster.deliver_all();
    let before = cluster.pass();
    cluster.deliver_all();
    cluster.now += GRACE;
    let released = before + cluster.pass();
    cluster.deliver_all();
    cluster.check();
    released
}

#[test]
fn address_is_released_after_its_pod_is_missing_for_the_grace_period() {
    let mut cluster = cluster();
    assert_eq!(examine(&mut cluster), []);
    cluster.delete("p", false);
    assert_eq!(
        examine(&mut cluster),
        [ChangeKind::Candidate(LeakReason::PodGone)]
    );
    assert_eq!(cluster.index.leaks(), (1, 0));
    let due = cluster.index.next_deadline(cluster.now).unwrap();
    assert_eq!(
        due,
        cluster.now + GRACE,
        "the examination is due at the end of the grace period"
    );
    cluster.now = due - Duration::from_nanos(1);
    assert_eq!(examine(&mut cluster), []);
    cluster.now = due;
    assert_eq!(
        examine(&mut cluster),
        [ChangeKind::Confirmed(LeakReason::PodGone)]
    );
    let suspects = cluster.index.suspects(cluster.now, 10);
    assert_eq!(suspects.len(), 1);
    assert_eq!(suspects[0].required_lookups().pod, Some(("ns", "p")));
    assert_eq!(
        (suspects[0].node.as_deref(), suspects[0].pool.as_deref()),
        (Some("n1"), Some("v4"))
    );
    assert_eq!(cluster.pass(), 1);
    assert_eq!(cluster.leaked(), [] as [std::net::IpAddr; 0]);
    assert_eq!(
        cluster.index.reclaimed().collect::<Vec<_>>(),
        [Reclaimed {
            pool: Some("v4"),
            node: Some("n1"),
            addresses: 1
        }]
    );
    assert_eq!(cluster.index.next_deadline(cluster.now), None);
}

#[test]
fn each_leak_reason_of_a_pod_is_recognized() {
    for (act, reason) in [
        (
            (|c: &mut Cluster| c.delete("p", false)) as fn(&mut Cluster),
            LeakReason::PodGone,
        ),
        (|c| c.end("p", EndedPod::Finished), LeakReason::PodFinished),
        (|c| c.end("p", EndedPod::Evicted), LeakReason::PodEvicted),
        (
            |c| {
                c.delete("p", false);
                c.schedule("p", "n2");
            },
            LeakReason::PodElsewhere,
        ),
        (
            |c| {
                c.add("p", false);
                c.report("p");
            },
            LeakReason::OtherAddresses,
        ),
    ] {
        let mut cluster = cluster();
        act(&mut cluster);
        assert_eq!(examine(&mut cluster), [ChangeKind::Candidate(reason)]);
        assert_eq!(after_grace(&mut cluster), 1);
    }
}

#[test]
fn addresses_with_a_possible_owner_are_retained() {
    for act in [
        (|_: &mut Cluster| ()) as fn(&mut Cluster),
        // The pod has not reported an address yet.
        |c| {
            c.delete("p", false);
            c.schedule("p", "n1");
        },
        |c| c.allocate_without_owner("n1"),
        |c| c.tunnel("n1"),
        |c| c.service("s", true),
        |c| {
            c.set_vmi("vm", true);
            c.run_vmi("vm", "n1", OwnerSlot::Active);
        },
        |c| c.node("n2", false),
    ] {
        let mut cluster = cluster();
        act(&mut cluster);
        assert_eq!(after_grace(&mut cluster), 0);
        assert_eq!(cluster.index.leaks(), (0, 0));
    }
}

#[test]
fn live_pod_overrides_the_index() {
    let mut cluster = cluster();
    // Only the index lost the pod.
    cluster.index.remove_pod("ns", "p");
    cluster.index.examine(cluster.now, Scope::Changed);
    cluster.now += GRACE;
    let plan = cluster.decide(|_| false);
    assert!(plan.blocks.is_empty());
    assert_eq!(
        plan.kept
            .iter()
            .map(|(_, in_use_reason)| *in_use_reason)
            .collect::<Vec<_>>(),
        [InUseReason::Pod]
    );
    assert_eq!(cluster.index.leaks(), (0, 0), "the address is no leak");
}

#[test]
fn unreachable_api_releases_no_address_and_is_polled_less_often() {
    let mut cluster = cluster();
    cluster.delete("p", false);
    examine(&mut cluster);
    cluster.now += GRACE;
    for wait in [1, 2, 4] {
        let plan = cluster.decide(|_| true);
        assert_eq!(plan.kept.len(), 1);
        assert_eq!(
            cluster.index.suspects(cluster.now, 10),
            [],
            "no suspect is returned"
        );
        let again = cluster.index.next_deadline(cluster.now).unwrap();
        assert_eq!(again, cluster.now + Duration::from_secs(wait));
        cluster.now = again;
    }
    assert_eq!(cluster.pass(), 1);
}

#[test]
fn addresses_of_a_handle_are_released_together() {
    let mut cluster = cluster();
    cluster.claim("fd00::/126", "n1");
    cluster.schedule("q", "n1");
    assert!(cluster.add("q", true));
    let pod = cluster.pods["q"].clone();
    let one = Pod {
        addresses: pod.addresses[..1].to_vec(),
        reported: true,
        ..pod.clone()
    };
    cluster.queue_event(Queue::Pods, super::cluster::Event::Pod("q".into(), one));
    assert_eq!(
        examine(&mut cluster),
        [ChangeKind::Candidate(LeakReason::OtherAddresses)]
    );
    cluster.now += GRACE;
    assert_eq!(
        examine(&mut cluster),
        [ChangeKind::Confirmed(LeakReason::OtherAddresses)]
    );
    assert_eq!(cluster.index.suspects(cluster.now, 10), []);
    assert_eq!(
        cluster.index.next_deadline(cluster.now),
        None,
        "no deadline without a change"
    );
    cluster.delete("q", false);
    assert_eq!(after_grace(&mut cluster), 2);
}

#[test]
fn owner_found_for_an_address_spares_its_whole_handle() {
    let mut cluster = cluster();
    cluster.claim("fd00::/126", "n1");
    cluster.schedule("q", "n1");
    cluster.add("q", true);
    cluster.delete("q", false);
    examine(&mut cluster);
    cluster.now += GRACE;
    examine(&mut cluster);
    let suspects = cluster.index.suspects(cluster.now, 1);
    assert_eq!(suspects.len(), 2, "a limit does not split a handle");
    let decisions = [
        Decision::Release(LeakReason::PodGone),
        Decision::Keep(InUseReason::Pod),
    ];
    let plan = plan(suspects.into_iter().zip(decisions));
    assert_eq!(
        (plan.blocks.len(), plan.spared.len(), plan.kept.len()),
        (0, 1, 1)
    );
}

#[test]
fn without_a_grace_period_only_vmis_and_deleted_nodes_lose_addresses() {
    for (grace, leaks) in [(None, (0, 0)), (Some(Duration::ZERO), (1, 0))] {
        let mut cluster = cluster();
        let settings = GcSettings {
            leak_grace: grace,
            ..*cluster.index.settings()
        };
        cluster.index.set_settings(settings);
        cluster.delete("p", false);
        cluster.deliver_all();
        cluster.pass();
        cluster.now += Duration::from_secs(86_400);
        cluster.pass();
        assert_eq!(cluster.index.leaks(), leaks);
        cluster.set_vmi("vm", true);
        cluster.run_vmi("vm", "n2", OwnerSlot::Active);
        cluster.set_vmi("vm", false);
        cluster.deliver_all();
        assert_eq!(cluster.pass(), 0);
        cluster.now += Duration::from_secs(300);
        assert_eq!(cluster.pass(), 1, "five minutes");
        cluster.node("n1", false);
        cluster.deliver_all();
        assert_eq!(cluster.pass(), 1);
    }
}

#[test]
fn first_grace_period_applies_to_addresses_whose_owners_are_already_missing() {
    let mut cluster = cluster();
    let settings = *cluster.index.settings();
    cluster.index.set_settings(GcSettings {
        leak_grace: None,
        ..settings
    });
    cluster.delete("p", false);
    assert_eq!(examine(&mut cluster), []);
    cluster.index.set_settings(settings);
    assert_eq!(
        examine(&mut cluster),
        [ChangeKind::Candidate(LeakReason::PodGone)]
    );
}

#[test]
fn shortened_grace_period_counts_from_the_first_detection() {
    let mut cluster = cluster();
    cluster.delete("p", false);
    examine(&mut cluster);
    cluster.now += Duration::from_secs(60);
    let settings = GcSettings {
        leak_grace: Some(Duration::from_secs(30)),
        ..*cluster.index.settings()
    };
    cluster.index.set_settings(settings);
    assert_eq!(
        examine(&mut cluster),
        [ChangeKind::Confirmed(LeakReason::PodGone)]
    );
}

#[test]
fn vmi_and_service_addresses_are_retained_until_their_kinds_are_watched() {
    let mut cluster = cluster();
    cluster.set_vmi("vm", true);
    cluster.run_vmi("vm", "n1", OwnerSlot::Active);
    cluster.service("s", true);
    let unwatched = GcSettings {
        vmis: VmiAvailability::Unwatched,
        services: false,
        ..*cluster.index.settings()
    };
    cluster.index.set_settings(unwatched);
    cluster.set_vmi("vm", false);
    cluster.service("s", false);
    assert_eq!(after_grace(&mut cluster), 0);
    cluster.index.set_settings(GcSettings {
        vmis: VmiAvailability::Watched,
        services: true,
        ..unwatched
    });
    assert_eq!(after_grace(&mut cluster), 2);
}

#[test]
fn vmi_of_a_deleted_vm_retains_its_address() {
    let mut cluster = cluster();
    cluster.set_vmi("vm", true);
    cluster.run_vmi("vm", "n1", OwnerSlot::Active);
    cluster.deliver_all();
    cluster.index.remove_virtual_machine("ns", "vm");
    assert_eq!(examine(&mut cluster), []);
    cluster.index.remove_vmi("ns", "vm");
    assert_eq!(
        examine(&mut cluster),
        [ChangeKind::Candidate(LeakReason::VmiGone)]
    );
}

#[test]
fn owning_launcher_retains_the_address_of_a_deleted_vmi() {
    let mut cluster = cluster();
    cluster.set_vmi("vm", true);
    cluster.run_vmi("vm", "n1", OwnerSlot::Active);
    cluster.deliver_all();
    let handle = HandleId::for_vmi("net", "ns", "vm");
    let held = cluster
        .blocks
        .values()
        .flat_map(|block| block.allocated().collect::<Vec<_>>());
    let held = held
        .into_iter()
        .find(|held| held.handle().as_ref() == Some(&handle))
        .unwrap();
    let (address, launcher) = (held.ip, held.attributes().unwrap()["pod"].clone());
    let pod = |addresses: &[IpAddr], ended| Pod {
        node: "n1".into(),
        addresses: addresses.into(),
        reported: true,
        ended,
    };
    cluster
        .index
        .put_pod("ns", &launcher, &pod(&[address], None).state());
    cluster.index.remove_virtual_machine("ns", "vm");
    cluster.index.remove_vmi("ns", "vm");
    assert_eq!(examine(&mut cluster), []);
    let leaked = [ChangeKind::Candidate(LeakReason::VmiGone)];
    for change in [
        pod(&[address], Some(EndedPod::Finished)),
        pod(&["10.0.9.9".parse().unwrap()], None),
    ] {
        cluster.index.put_pod("ns", &launcher, &change.state());
        assert_eq!(examine(&mut cluster), leaked);
        cluster
            .index
            .put_pod("ns", &launcher, &pod(&[address], None).state());
        assert_eq!(examine(&mut cluster), [ChangeKind::Cleared]);
    }
    cluster.index.remove_pod("ns", &launcher);
    assert_eq!(examine(&mut cluster), leaked);
}

#[test]
fn missing_kubevirt_throughout_the_grace_period_makes_vmi_addresses_leaks() {
    let mut cluster = cluster();
    cluster.set_vmi("vm", true);
    cluster.run_vmi("vm", "n1", OwnerSlot::Active);
    cluster.deliver_all();
    assert!(cluster.index.has_vmis());
    let watched = *cluster.index.settings();
    let undefined = GcSettings {
        vmis: VmiAvailability::Undefined,
        ..watched
    };
    let leaked = ChangeKind::Candidate(LeakReason::NoKubeVirt);
    // Entries from the earlier watches remain in the index.
    cluster.index.set_settings(undefined);
    assert_eq!(examine(&mut cluster), [leaked]);
    cluster.now += GRACE - Duration::from_secs(1);
    assert_eq!(examine(&mut cluster), []);
    cluster.index.set_settings(watched);
    assert_eq!(examine(&mut cluster), [ChangeKind::Cleared]);

    cluster.index.remove_virtual_machine("ns", "vm");
    cluster.index.remove_vmi("ns", "vm");
    assert_eq!(
        examine(&mut cluster),
        [ChangeKind::Candidate(LeakReason::VmiGone)]
    );
    cluster.now += Duration::from_secs(200);
    cluster.index.set_settings(undefined);
    assert_eq!(examine(&mut cluster), [ChangeKind::Cleared, leaked]);
    cluster.now += GRACE - Duration::from_secs(1);
    assert_eq!(examine(&mut cluster), []);
    cluster.now += Duration::from_secs(1);
    assert_eq!(
        examine(&mut cluster),
        [ChangeKind::Confirmed(LeakReason::NoKubeVirt)]
    );
}

/// A VMI's address keeps its sequence number with a new owner (KC-422).
#[test]
fn new_owner_of_a_vmi_address_is_counted_and_prevents_a_decided_release() {
    let mut cluster = cluster();
    cluster.set_vmi("vm", true);
    cluster.run_vmi("vm", "n1", OwnerSlot::Active);
    cluster.run_vmi("vm", "n2", OwnerSlot::Alternate);
    examine(&mut cluster);
    let on = |cluster: &Cluster, node: &str| {
        cluster
            .index
            .samples()
            .filter(|s| s.node == Some(node))
            .map(|sample| sample.in_use)
            .sum::<i64>()
    };
    assert_eq!(
        (on(&cluster, "n1"), on(&cluster, "n2")),
        (1, 1),
        "one address of the pod, one of the VMI"
    );
    cluster.set_vmi("vm", false);
    examine(&mut cluster);
    cluster.now += GRACE;
    let plan = cluster.decide(|_| false);
    assert_eq!(plan.blocks.len(), 1);
    cluster.set_vmi("vm", true);
    cluster.run_vmi("vm", "n2", OwnerSlot::Active);
    assert_eq!(cluster.apply(&plan), 0);
}

#[test]
fn reallocated_address_restarts_its_leak_detection() {
    let mut cluster = cluster();
    cluster.delete("p", false);
    examine(&mut cluster);
    cluster.now += GRACE;
    let plan = cluster.decide(|_| false);
    let (cidr, suspects) = plan.blocks.iter().next().unwrap();
    let mut block = cluster.blocks[cidr].clone();
    let requests = still_leaked(&block, suspects).0;
    assert_eq!(
        (
            requests.len(),
            requests[0].sequence,
            requests[0].handle.is_some()
        ),
        (1, suspects[0].sequence, true)
    );
    block.release(&requests, 0, EPOCH).unwrap();
    assert_eq!(still_leaked(&block, suspects).0, []);
    block.count_write();
    cluster.blocks.insert(*cidr, block);
    for name in ["a", "b", "c", "d", "e", "f", "g", "h"] {
        cluster.schedule(name, "n1");
        assert!(cluster.add(name, false));
    }
    assert!(cluster.in_use(suspects[0].address));
    assert_eq!(cluster.apply(&plan), 0);
    examine(&mut cluster);
    assert_eq!(cluster.index.leaks(), (0, 0));
}

#[test]
fn gauges_count_addresses_candidates_and_blocks_by_pool_and_node() {
    let mut cluster = cluster();
    cluster.allocate_without_owner("n2");
    cluster.claim("192.168.0.0/30", "n1");
    cluster.deliver_all();
    let sample = |cluster: &Cluster, pool: Option<&str>, node: Option<&str>| {
        let sample = cluster
            .index
            .samples()
            .find(|sample| (sample.pool, sample.node) == (pool, node));
        sample.map(|s| {
            (
                s.in_use,
                s.borrowed,
                s.candidates,
                s.unknown_owner,
                s.blocks,
            )
        })
    };
    assert_eq!(
        sample(&cluster, Some("v4"), Some("n1")),
        Some((1, 0, 0, 0, 1))
    );
    assert_eq!(
        sample(&cluster, Some("v4"), Some("n2")),
        Some((1, 0, 0, 1, 1))
    );
    assert_eq!(sample(&cluster, None, Some("n1")), Some((0, 0, 0, 0, 1)));
    cluster.clear_affinity("10.0.0.0/29");
    cluster.delete("p", false);
    examine(&mut cluster);
    assert_eq!(
        sample(&cluster, Some("v4"), Some("n1")),
        Some((1, 1, 1, 0, 0)),
        "borrowed, and a candidate"
    );
    assert_eq!(sample(&cluster, Some("v4"), None), Some((0, 0, 0, 0, 1)));
    cluster.index.remove_pool("v4");
    cluster.check();
    assert_eq!(sample(&cluster, None, Some("n1")), Some((1, 1, 1, 0, 1)));
    cluster
        .index
        .put_pool("narrow", out_of_service("192.168.0.0/24"));
    cluster.check();
    assert_eq!(
        sample(&cluster, Some("narrow"), Some("n1")),
        Some((0, 0, 0, 0, 1))
    );

    let reserved = |cidrs: &[&str]| IpReservationSpec {
        reserved_cidrs: cidrs.iter().map(|&cidr| cidr.to_owned()).collect(),
        ..IpReservationSpec::default()
    };
    cluster
        .index
        .put_reservation(&IpReservation::new("a", reserved(&["192.168.0.0/28"])));
    cluster.index.put_reservation(&IpReservation::new(
        "b",
        reserved(&["192.168.0.0/28", "192.168.0.200"]),
    ));
    let numbers = |reserved| PoolSize {
        name: "narrow",
        size: 256,
        reserved,
    };
    assert_eq!(cluster.index.pools()[0], numbers(17));
    cluster.index.remove_reservation("b");
    assert_eq!(cluster.index.pools()[0], numbers(16));
    assert_eq!(cluster.index.calico_nodes().count(), 2);
}

#[test]
fn unreadable_or_deleted_block_is_removed_from_the_index() {
    let mut cluster = cluster();
    let mut block = cluster.blocks[&"10.0.0.0/29".parse().unwrap()].clone();
    block.unallocated.push(0);
    assert!(
        cluster
            .index
            .put_block(&block)
            .unwrap_err()
            .to_string()
            .contains("corrupt")
    );
    assert_eq!(cluster.index.size().addresses, 0);
    cluster.check();
    block.unallocated.pop();
    cluster.index.put_block(&block).unwrap();
    assert_eq!(cluster.index.size().addresses, 1);
    block.deleted = true;
    cluster.index.put_block(&block).unwrap();
    assert_eq!(cluster.index.size().blocks, 1);
    assert_eq!(
        cluster.index.marked_blocks().count(),
        0,
        "the block has an address"
    );
    cluster.check();
}

#[test]
fn empty_block_that_is_marked_for_deletion_is_known_until_it_is_gone() {
    let mut cluster = cluster();
    let owner = crate::ipam::AffinityOwner::Host("n1".into());
    let mut block = crate::ipam::Block::new(
        "10.9.0.0/29".parse().unwrap(),
        &owner,
        time::OffsetDateTime::UNIX_EPOCH,
    )
    .unwrap();
    for is_marked in [true, false, true] {
        block.deleted = is_marked;
        cluster.index.put_block(&block).unwrap();
        assert_eq!(
            cluster.index.marked_blocks().count(),
            usize::from(is_marked)
        );
    }
    cluster.index.remove_block(&block.cidr);
    assert_eq!(cluster.index.marked_blocks().count(), 0);
}

#[test]
fn pod_change_marks_only_that_pods_addresses() {
    let mut cluster = cluster();
    for name in ["a", "b", "c"] {
        cluster.schedule(name, "n1");
        cluster.add(name, false);
        cluster.report(name);
    }
    examine(&mut cluster);
    assert!(!cluster.index.has_changed());
    let facts = cluster.pods["a"].clone();
    cluster.index.put_pod("ns", "a", &facts.state());
    assert!(
        !cluster.index.has_changed(),
        "an unchanged object marks no address"
    );
    cluster.index.remove_pod("ns", "a");
    assert_eq!(cluster.index.dirty_addresses(), 1);
}

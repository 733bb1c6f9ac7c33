//! Tests of excess blocks, deleted nodes, elapsed cooldowns, and of the search for wrong handles
//! and affinities.

use std::collections::BTreeMap;
use std::time::Duration;

use super::super::*;
use super::cluster::{Cluster, GRACE, Queue};
use super::scenarios::{after_grace, cluster, examine};
use crate::ipam::{
    AffinityKey, AffinityOwner, AffinityState, Block, BlockAffinity, Handle, HandleId,
    HandleRepair, LeakReason, SuspectHandle, repair,
};
use crate::net::Cidr;
use crate::store::{Entry, Revision};

#[test]
fn deleted_node_loses_addresses_then_tunnels_then_affinities() {
    let mut cluster = cluster();
    cluster.tunnel("n1");
    examine(&mut cluster);
    cluster.node("n1", false);
    let kinds = examine(&mut cluster);
    assert_eq!(
        kinds,
        [
            ChangeKind::Confirmed(LeakReason::PodGone),
            ChangeKind::Confirmed(LeakReason::NodeGone)
        ]
    );
    assert_eq!(
        cluster.index.nodes_to_release(cluster.now),
        [],
        "the addresses are released first"
    );
    assert_eq!(cluster.pass(), 2);
    cluster.deliver_all();
    assert!(
        !cluster.blocks.contains_key(&"10.0.0.0/29".parse().unwrap()),
        "the same pass released its blocks"
    );
    cluster.check();
    let size = cluster.index.size();
    assert_eq!((size.nodes, size.addresses, size.blocks), (1, 0, 1));
    assert_eq!(
        cluster.index.reclaimed().count(),
        0,
        "the node's counters are removed"
    );
}

#[test]
fn block_claimed_again_by_a_deleted_node_between_lists_is_released_again() {
    let mut cluster = Cluster::new(0);
    cluster.claim("10.0.0.8/29", "gone");
    cluster.deliver_all();
    cluster.pass();
    assert!(cluster.blocks.is_empty());
    // The deletion event is lost.
    cluster.claim("10.0.0.8/29", "gone");
    cluster.relist(Queue::Blocks);
    cluster.pass();
    assert!(cluster.blocks.is_empty());
    cluster.check();
}

#[test]
fn deleted_node_with_existing_pods_is_not_released() {
    let mut cluster = cluster();
    cluster.tunnel("n1");
    cluster.index.remove_kubernetes_node("n1");
    cluster.index.remove_calico_node("n1");
    assert_eq!(after_grace(&mut cluster), 0);
    assert_eq!(cluster.index.nodes_to_release(cluster.now), []);
    // The index has the node and the pod as deleted.
    cluster.index.remove_pod("ns", "p");
    let mut gone = cluster.decide(|_| false);
    assert!(gone.blocks.is_empty() && !gone.kept.is_empty());
    cluster.index.put_kubernetes_node("n1", false);
    cluster.index.put_calico_node("n1", Some("n1"));
    gone = cluster.decide(|_| false);
    assert!(gone.blocks.is_empty());
    assert_eq!(
        cluster.index.leaks(),
        (1, 0),
        "the grace period begins when the node exists again"
    );
}

#[test]
fn node_without_a_kubernetes_node_retains_all_addresses() {
    let mut cluster = cluster();
    cluster.index.remove_kubernetes_node("n1");
    cluster.index.put_calico_node("n1", None);
    cluster.index.remove_pod("ns", "p");
    assert_eq!(cluster.index.examine(cluster.now, Scope::Changed), []);
    cluster.check();
}

/// On etcd, the Calico node `calico-1` is the Kubernetes node `n1`.
#[test]
fn calico_node_with_another_name_follows_its_kubernetes_node() {
    let mut cluster = cluster();
    cluster.index.put_calico_node("calico-1", Some("n1"));
    cluster.claim("10.0.1.0/30", "calico-1");
    cluster.deliver_all();
    assert_eq!(cluster.index.nodes_to_release(cluster.now), []);
    cluster.index.remove_kubernetes_node("n1");
    examine(&mut cluster);
    let gone = cluster.index.nodes_to_release(cluster.now);
    let gone: Vec<_> = gone
        .iter()
        .map(|gone| (gone.calico.as_str(), gone.kubernetes.as_deref()))
        .collect();
    assert_eq!(gone, [("calico-1", Some("n1"))]);
    cluster.index.put_kubernetes_node("n1", false);
    examine(&mut cluster);
    assert_eq!(cluster.index.nodes_to_release(cluster.now), []);
}

#[test]
fn affinity_without_a_block_is_released_with_its_node() {
    let mut cluster = cluster();
    cluster.index.add_affinity("n1");
    cluster.index.add_affinity("long-gone");
    examine(&mut cluster);
    let gone = cluster.index.nodes_to_release(cluster.now);
    assert_eq!(
        gone.iter()
            .map(|gone| gone.calico.as_str())
            .collect::<Vec<_>>(),
        ["long-gone"]
    );
    cluster.index.postpone_node("long-gone", cluster.now);
    assert_eq!(cluster.index.nodes_to_release(cluster.now), []);
    assert_eq!(
        cluster.index.next_deadline(cluster.now),
        Some(cluster.now + Duration::from_secs(1))
    );
    cluster.index.remove_released_node("long-gone");
    cluster.check();
    assert_eq!(cluster.index.size().nodes, 2);
}

#[test]
fn empty_blocks_are_released_except_one_per_node_and_family() {
    let mut cluster = cluster();
    for block in ["10.0.1.0/30", "10.0.1.4/30", "fd00::/126", "fd00::4/126"] {
        cluster.claim(block, "n2");
    }
    cluster.deliver_all();
    assert_eq!(cluster.index.excess_blocks(cluster.now), []);
    let due = cluster.now + GRACE;
    assert_eq!(cluster.index.next_deadline(cluster.now), Some(due));
    assert_eq!(
        cluster.index.excess_blocks(due - Duration::from_nanos(1)),
        []
    );
    let went = cluster.index.excess_blocks(due);
    let v6 = went
        .iter()
        .filter(|went| went.block.version() == crate::net::IpVersion::V6)
        .count();
    assert_eq!((went.len(), v6), (3, 1));
    assert_eq!(
        cluster.index.excess_blocks(due),
        [],
        "a block is not returned twice"
    );
    went.iter()
        .for_each(|went| cluster.index.remove_block(&went.block));
    assert_eq!(cluster.index.excess_blocks(due + GRACE), []);
    cluster.check();

    let mut cluster = cluster_with_spare();
    cluster.index.put_kubernetes_node("n2", true);
    assert_eq!(cluster.index.excess_blocks(cluster.now + GRACE), []);
    assert_eq!(cluster.index.excess_blocks(cluster.now + GRACE * 3), []);
    let mut cluster = cluster_with_spare();
    cluster.index.set_settings(GcSettings {
        leak_grace: None,
        ..*cluster.index.settings()
    });
    assert_eq!(cluster.index.excess_blocks(cluster.now + GRACE), []);
    let mut cluster = cluster_with_spare();
    cluster.schedule("q", "n2");
    for pod in ["q", "r"] {
        cluster.schedule(pod, "n2");
        while cluster.blocks.values().any(|block| block.is_empty()) {
            assert!(cluster.add(pod, false));
        }
    }
    cluster.deliver_all();
    assert_eq!(cluster.index.excess_blocks(cluster.now + GRACE), []);
}

/// Returns a cluster in which n2 has two empty blocks, whose timers have started.
fn cluster_with_spare() -> Cluster {
    let mut cluster = cluster();
    cluster.claim("10.0.1.0/30", "n2");
    cluster.deliver_all();
    assert_eq!(cluster.index.excess_blocks(cluster.now), []);
    cluster
}

#[test]
fn block_that_changes_owner_is_no_longer_counted_for_the_old_owner() {
    let mut cluster = cluster();
    cluster.claim("10.0.1.0/30", "n1");
    cluster.deliver_all();
    cluster.claim("10.0.1.0/30", "n2");
    cluster.deliver_all();
    cluster.check();
    cluster.index.excess_blocks(cluster.now);
    let went = cluster.index.excess_blocks(cluster.now + GRACE);
    assert_eq!(
        went.iter()
            .map(|went| went.node.as_str())
            .collect::<Vec<_>>(),
        ["n2"]
    );
    cluster.clear_affinity("10.0.1.0/30");
    cluster.deliver_all();
    cluster.check();
}

#[test]
fn blocks_with_cooled_down_addresses_are_read_after_the_cooldown() {
    let mut cluster = cluster();
    cluster.index.set_settings(GcSettings {
        cooldown: 30,
        ..*cluster.index.settings()
    });
    cluster.cooldown = 30;
    cluster.delete("p", true);
    cluster.deliver_all();
    assert_eq!(
        cluster.index.size().addresses,
        0,
        "a cooling address has no owner"
    );
    assert_eq!(
        cluster.index.next_cooldown_end(cluster.wall()),
        Some(Duration::from_secs(31))
    );
    let at = |seconds: u64| {
        (
            cluster.wall() + Duration::from_secs(seconds),
            cluster.now + Duration::from_secs(seconds),
        )
    };
    let (early, late, again) = (at(30), at(31), at(62));
    assert!(cluster.index.cooled_blocks(early.0, early.1).is_empty());
    assert_eq!(cluster.index.cooled_blocks(late.0, late.1).len(), 1);
    assert!(
        cluster.index.cooled_blocks(late.0, late.1).is_empty(),
        "a block is not returned twice"
    );
    assert_eq!(cluster.index.cooled_blocks(again.0, again.1).len(), 1);
    cluster.now += Duration::from_secs(100);
    cluster.run_rest_of_pass();
    cluster.deliver_all();
    assert_eq!(cluster.index.next_cooldown_end(cluster.wall()), None);
}

fn handles(cluster: &Cluster) -> BTreeMap<HandleId, Handle> {
    let mut handles = BTreeMap::<HandleId, Handle>::new();
    for block in cluster.blocks.values() {
        for handle in block.allocated().filter_map(|held| held.handle()) {
            handles.entry(handle).or_default().increment(block.cidr, 1);
        }
    }
    handles
}

fn list(
    wrong: &mut OrphanHandles,
    cluster: &Cluster,
    handles: &BTreeMap<HandleId, Handle>,
    revision: &str,
) {
    wrong.begin_list();
    for (key, value) in handles {
        let entry = Entry {
            key: key.clone(),
            value: value.clone(),
            revision: Revision(revision.into()),
        };
        wrong.listed(&entry, &cluster.index, cluster.now);
    }
    wrong.end_list(&cluster.index, cluster.now);
}

fn read(cluster: &Cluster, suspect: &SuspectHandle) -> BTreeMap<Cidr, Option<Block>> {
    suspect
        .blocks
        .iter()
        .map(|cidr| (*cidr, cluster.blocks.get(cidr).cloned()))
        .collect()
}

#[test]
fn handles_that_disagree_with_the_blocks_are_repaired() {
    let mut cluster = cluster();
    cluster.deliver_all();
    let truth = handles(&cluster);
    let id = truth.keys().next().unwrap().clone();
    let grace = Duration::from_secs(300);
    let block: Cidr = "10.0.0.0/29".parse().unwrap();
    let elsewhere: Cidr = "10.0.0.8/29".parse().unwrap();
    let with = |change: &dyn Fn(&mut BTreeMap<HandleId, Handle>)| {
        let mut handles = truth.clone();
        change(&mut handles);
        handles
    };
    let orphan = HandleId::new("orphan");
    let counting = |blocks: &[(Cidr, i64)]| Handle {
        block: blocks.iter().copied().collect(),
        ..Handle::default()
    };
    for (stored, expected) in [
        (with(&|_| ()), None),
        // No block names the handle, whether it counts addresses or not.
        (
            with(&|all| _ = all.insert(orphan.clone(), counting(&[(block, 1)]))),
            Some((&orphan, HandleRepair::Delete)),
        ),
        (
            with(&|all| _ = all.insert(orphan.clone(), counting(&[]))),
            Some((&orphan, HandleRepair::Delete)),
        ),
        (
            with(&|all| _ = all.insert(id.clone(), counting(&[(block, 2)]))),
            Some((&id, HandleRepair::Write(truth[&id].clone()))),
        ),
        (
            with(&|all| _ = all.insert(id.clone(), counting(&[(block, 0)]))),
            Some((&id, HandleRepair::Write(truth[&id].clone()))),
        ),
        (
            with(&|all| _ = all.insert(id.clone(), counting(&[(block, 1), (elsewhere, 1)]))),
            Some((&id, HandleRepair::Write(truth[&id].clone()))),
        ),
        (
            with(&|all| _ = all.remove(&id)),
            Some((&id, HandleRepair::Write(truth[&id].clone()))),
        ),
    ] {
        let mut wrong = OrphanHandles::default();
        list(&mut wrong, &cluster, &stored, "1");
        assert_eq!(
            wrong.due(cluster.now + grace - Duration::from_nanos(1), grace),
            []
        );
        let due = wrong.due(cluster.now + grace, grace);
        let Some((expected, repaired)) = expected else {
            assert_eq!(due, []);
            continue;
        };
        assert_eq!(
            due.iter().map(|due| &due.id).collect::<Vec<_>>(),
            [expected]
        );
        let entry = |handle: Option<&Handle>, revision: &str| {
            handle.map(|handle| Entry {
                key: expected.clone(),
                value: handle.clone(),
                revision: Revision(revision.into()),
            })
        };
        let (stored, blocks) = (entry(stored.get(expected), "1"), read(&cluster, &due[0]));
        let repair = |handle: Option<&Entry<Handle>>, blocks: &BTreeMap<Cidr, Option<Block>>| {
            repair(&due[0], handle, |cidr| blocks.get(cidr).map(Option::as_ref))
        };
        assert_eq!(repair(stored.as_ref(), &blocks), repaired);
        let mut unread = blocks.clone();
        if unread.pop_first().is_some() {
            assert_eq!(repair(stored.as_ref(), &unread), HandleRepair::Keep);
        }
        let mut corrupt = blocks.clone();
        if let Some(Some(block)) = corrupt.values_mut().next() {
            block.allocations.pop();
            assert_eq!(repair(stored.as_ref(), &corrupt), HandleRepair::Keep);
        }
        // The handle was repaired or written meanwhile.
        assert_eq!(
            repair(entry(truth.get(expected), "2").as_ref(), &blocks),
            HandleRepair::Keep
        );
        if let Some(stored) = stored {
            assert_eq!(
                repair(
                    Some(&Entry {
                        revision: Revision("2".into()),
                        ..stored
                    }),
                    &blocks
                ),
                HandleRepair::Keep
            );
            assert_eq!(repair(None, &blocks), HandleRepair::Keep);
        }
    }
}

#[test]
fn rewritten_orphan_handle_restarts_its_grace_period() {
    let mut cluster = cluster();
    let grace = Duration::from_secs(300);
    let mut stored = handles(&cluster);
    let orphan = HandleId::new("orphan");
    stored.insert(
        orphan.clone(),
        Handle {
            block: [("10.0.0.0/29".parse().unwrap(), 1)].into(),
            ..Handle::default()
        },
    );
    let mut wrong = OrphanHandles::default();
    list(&mut wrong, &cluster, &stored, "1");
    cluster.now += grace;
    list(&mut wrong, &cluster, &stored, "2");
    assert_eq!(wrong.due(cluster.now, grace), []);
    assert_eq!(
        wrong.next_deadline(cluster.now, grace),
        Some(cluster.now + grace)
    );
    cluster.now += grace;
    list(&mut wrong, &cluster, &stored, "2");
    assert_eq!(wrong.due(cluster.now, grace).len(), 1);
    wrong.postpone(&orphan, cluster.now);
    assert_eq!(wrong.due(cluster.now, grace), []);
    stored.remove(&orphan);
    list(&mut wrong, &cluster, &stored, "2");
    assert!(wrong.is_empty());
}

#[test]
fn unfinished_affinities_are_due_when_unchanged_for_the_grace_period() {
    let cluster = cluster();
    let (mut claims, at) = (UnfinishedAffinities::default(), Duration::from_secs);
    let entry = |node: &str, cidr: &str, state, revision: &str| {
        let key = AffinityKey {
            owner: AffinityOwner::Host(node.into()),
            cidr: cidr.parse().unwrap(),
        };
        Entry {
            key,
            value: BlockAffinity {
                state,
                ..BlockAffinity::default()
            },
            revision: Revision(revision.into()),
        }
    };
    use AffinityState::{Confirmed, Pending, PendingDeletion, Unset};
    let list = |claims: &mut UnfinishedAffinities, now: Duration, revision: &str| {
        claims.begin_list();
        for (node, cidr, state) in [
            ("n1", "10.0.0.0/29", Confirmed),
            ("n1", "10.0.0.8/29", Confirmed),
            ("n1", "10.0.0.16/29", Unset),
            ("n2", "10.0.0.8/29", Pending),
            ("n2", "10.0.0.24/29", PendingDeletion),
            ("gone", "10.0.0.32/29", Pending),
        ] {
            let revision = if node == "n2" { revision } else { "1" };
            claims.listed(&entry(node, cidr, state, revision), &cluster.index, now);
        }
        for (cidr, state) in [("10.0.0.40/29", Pending), ("10.0.0.48/29", Confirmed)] {
            let mut of_services = entry("", cidr, state, "1");
            of_services.key.owner = AffinityOwner::Virtual("load-balancer".into());
            claims.listed(&of_services, &cluster.index, now);
        }
        claims.end_list();
    };
    list(&mut claims, at(0), "1");
    list(&mut claims, at(200), "2");
    let due = |claims: &UnfinishedAffinities, now, grace| {
        let due = claims.due(at(now), at(grace)).into_iter();
        due.map(|(key, revision)| format!("{} {} {revision}", key.owner, key.cidr))
            .collect::<Vec<_>>()
    };
    assert_eq!(due(&claims, 299, 1), [""; 0], "five minutes at least");
    let unchanged = [
        "host:n1 10.0.0.8/29 1",
        "host:n1 10.0.0.16/29 1",
        "virtual:load-balancer 10.0.0.40/29 1",
    ];
    assert_eq!(
        due(&claims, 300, 1),
        unchanged,
        "the block of another node, no block, an unfinished claim of Services"
    );
    assert_eq!(
        claims.next_deadline(at(300), at(1)),
        Some(at(500)),
        "a changed affinity starts anew"
    );
    assert_eq!(due(&claims, 500, 1).len(), 5);
    assert_eq!(due(&claims, 899, 900), [""; 0]);
    let key = claims.due(at(500), at(1)).remove(0).0;
    claims.postpone(&key, at(500));
    assert_eq!(
        (due(&claims, 500, 1).len(), due(&claims, 501, 1).len()),
        (4, 5)
    );
    claims.done(&key);
    assert_eq!(due(&claims, 501, 1).len(), 4);
}
